"""Mixture of experts: the reference on a CPU, Triton or Gluon kernels on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.gemm import (
    HopperWeight,
    Weight,
    native_gate_up,
    native_weight,
    quantized_linear,
    recast_weight,
)
from deepinfer.kernels.placement import on_accelerator

from .pages import Pages
from .reference import experts_reference, route_reference, sum_rows_reference, swiglu_reference
from .slots import Slots

if TYPE_CHECKING:
    from deepinfer.kernels.exchange import Arrivals
    from deepinfer.kernels.gemm.activations import Activations


def route(
    x: Tensor,
    gate: Weight,
    bias: Tensor,
    *,
    num_experts_per_tok: int,
    normalize: bool,
    scaling_factor: float,
    slots: Slots | Pages | None = None,
    logits: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``route_reference``; on a GPU it also fills the ``slots`` of the selected experts, and takes
    ``logits`` if ``gated_linear_and_logits`` has computed them."""
    implementation: Callable[..., tuple[Tensor, Tensor]] = route_reference
    if on_accelerator(x):
        from .triton_router import route_triton

        implementation = partial(route_triton, slots=slots, logits=logits)
    return implementation(
        x,
        gate,
        bias,
        num_experts_per_tok=num_experts_per_tok,
        normalize=normalize,
        scaling_factor=scaling_factor,
    )


def slots_for(x: Tensor, choices: int, gate_up: Weight | HopperWeight) -> Slots | Pages:
    """Buffers that ``route`` of x [T, d], T > 0, fills for ``expert_pairs``: for a GPU that has all
    experts."""
    if isinstance(gate_up, HopperWeight):
        from .gluon_experts import slots_gluon

        return slots_gluon(x, choices, gate_up)
    return Slots.empty(len(x), choices, len(gate_up.values), x.device)


def swiglu(gate_up: Tensor, limit: float, weights: Tensor | None = None) -> Tensor:
    """``swiglu_reference``."""
    if on_accelerator(gate_up):
        from .triton_swiglu import swiglu_triton

        return swiglu_triton(gate_up, limit, weights)
    return swiglu_reference(gate_up, limit, weights)


def gated_linear(
    x: Tensor | Activations,
    gate_up: Weight | HopperWeight,
    limit: float,
    linear: Weight | HopperWeight,
) -> Tensor | Activations:
    """``swiglu`` of ``quantized_linear`` with a weight of ``native_gate_up``, as input of
    ``quantized_linear`` with the weight ``linear``: on a GPU it is quantized in the same pass."""
    if isinstance(x, Tensor) and not on_accelerator(x):
        return swiglu_reference(quantized_linear(x, gate_up), limit)
    if isinstance(gate_up, HopperWeight) and isinstance(linear, HopperWeight):
        from .gluon_experts import gated_linear_gluon

        return gated_linear_gluon(x, gate_up, limit, linear)
    from .triton_swiglu import swiglu_for_triton

    return swiglu_for_triton(quantized_linear(x, gate_up), limit, linear)


def gated_linear_and_logits(
    x: Tensor,
    operand: Tensor | Activations,
    gate_up: Weight | HopperWeight,
    limit: float,
    linear: Weight | HopperWeight,
    gate: Weight,
    slots: Slots | Pages,
) -> tuple[Tensor | Activations, Tensor | None]:
    """``gated_linear`` of ``operand``; on a GPU, if that is faster, fused into one launch with the
    router GEMM on the same rows, whose ``logits`` ``route`` then takes.

    Shapes: x [T, d] bf16, ``operand`` the same rows as input of ``quantized_linear``, gate_up N
    rows, gate E rows; returns activations [T, N / 2], and logits [T, P, E] f32 in P split-K parts,
    or None, in which case ``route`` computes them.  Raises: TensorError.
    """
    if isinstance(gate_up, HopperWeight) and isinstance(linear, HopperWeight):
        from .gluon_shared import gated_linear_and_logits_gluon

        return gated_linear_and_logits_gluon(x, operand, gate_up, limit, linear, gate, slots)
    return gated_linear(operand, gate_up, limit, linear), None


def native_experts(
    gate_up: Weight, down: Weight, *, as_fp8: bool = False
) -> tuple[Weight | HopperWeight, Weight | HopperWeight]:
    """Both weights converted by ``native_gate_up`` and ``native_weight``, or none of them.

    ``as_fp8``: FP4 is decoded to E4M3 if ``native_weight`` makes a copy anyway: twice the memory,
    faster if each expert has many rows, and the same bits in results.
    """
    native = native_gate_up(gate_up), native_weight(down)
    if not isinstance(native[0], HopperWeight) or not isinstance(native[1], HopperWeight):
        return gate_up, down
    if as_fp8 and native[0].exponents is not None and native[1].exponents is not None:
        return recast_weight(native[0]), recast_weight(native[1])
    return native


def experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: Weight | HopperWeight,
    down: Weight | HopperWeight,
    limit: float,
    *,
    num_pairs: int | None = None,
) -> Tensor:
    """``experts_reference``; on a GPU weights stay packed, and an id of -1 contributes nothing.

    ``num_pairs``: approximate number of (token, expert) pairs whose expert is local, if not all
    are.
    It selects the tile shape, which does not change the bits.

    Both weights come from ``native_experts``, or both are in the checkpoint's format.
    """
    if isinstance(gate_up, HopperWeight) and isinstance(down, HopperWeight):
        if not on_accelerator(x):
            return experts_reference(x, ids, weights, gate_up.plain, down.plain, limit)
        from .gluon_experts import experts_gluon

        return experts_gluon(x, ids, weights, gate_up, down, limit, num_pairs)
    if isinstance(gate_up, HopperWeight) or isinstance(down, HopperWeight):
        raise TensorError("experts: only one of gate_up and down is prepared for this device")
    if on_accelerator(x):
        from .triton_kernel import experts_triton

        return experts_triton(x, ids, weights, gate_up, down, limit, num_pairs)
    return experts_reference(x, ids, weights, gate_up, down, limit)


def expert_pairs(
    x: Tensor | Arrivals,
    ids: Tensor,
    weights: Tensor,
    gate_up: Weight | HopperWeight,
    down: Weight | HopperWeight,
    limit: float,
    *,
    num_pairs: int | None = None,
    slots: Slots | Pages | None = None,
) -> tuple[Tensor, Tensor]:
    """On a GPU, the terms of the sum in ``experts``: rows [R, d] bf16, and the row of each pair,
    [T K] i32, -1 if its expert is not local.  ``slots``: from ``slots_for``, filled by
    ``route``."""
    if isinstance(gate_up, HopperWeight) and isinstance(down, HopperWeight):
        from .gluon_experts import expert_pairs_gluon

        outputs, rows = expert_pairs_gluon(x, ids, weights, gate_up, down, limit, num_pairs, slots)
    else:
        from .triton_kernel import expert_pairs_triton

        assert isinstance(gate_up, Weight) and isinstance(down, Weight)
        assert not isinstance(slots, Pages)
        outputs, rows = expert_pairs_triton(x, ids, weights, gate_up, down, limit, num_pairs, slots)
    return outputs, rows.row


def send_back_experts(
    arrivals: Arrivals,
    places: Tensor,
    weights: Tensor,
    gate_up: Weight | HopperWeight,
    down: Weight | HopperWeight,
    limit: float,
    *,
    num_pairs: int | None = None,
) -> None:
    """``expert_pairs`` of tokens that came from other GPUs; each row is sent back to where its
    token came from, on Hopper by the epilogue of the last GEMM."""
    if isinstance(gate_up, HopperWeight) and isinstance(down, HopperWeight):
        from .gluon_experts import send_back_experts_gluon

        send_back_experts_gluon(arrivals, places, weights, gate_up, down, limit, num_pairs)
        return
    from .triton_kernel import expert_pairs_triton

    assert isinstance(gate_up, Weight) and isinstance(down, Weight)
    arrivals.send_back(
        *expert_pairs_triton(arrivals, places, weights, gate_up, down, limit, num_pairs)
    )


def sum_rows(
    rows: Tensor, row: Tensor, per_token: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """``sum_rows_reference``."""
    if on_accelerator(rows):
        from .triton_kernel import sum_rows_triton

        return sum_rows_triton(rows, row, per_token, dtype)
    return sum_rows_reference(rows, row, per_token, dtype)
