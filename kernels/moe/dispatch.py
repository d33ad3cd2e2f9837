"""Mixture of experts on the device of its tensors."""

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
    """``route_reference``; on a GPU ``slots`` of what is chosen are filled in passing, and
    ``logits`` may be there already, see ``gated_linear_and_logits``."""
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
    """What ``route`` of x [T, d], at least one token, is to fill for ``expert_pairs``: on a GPU, if
    all experts are here."""
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
    """``swiglu`` of ``quantized_linear`` by ``native_gate_up``, as that takes it for ``linear``: on
    a GPU quantised in passing."""
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
    """``gated_linear`` of ``operand``; on a GPU, if that is faster, in one launch with the
    ``logits`` of the same rows x that ``route`` takes for these slots.

    Shapes: x [T, d] bf16, ``operand`` the same rows as a product takes them, gate_up N rows, gate
    E rows; activations [T, N / 2], and logits [T, P, E] f32 in P parts, or None: then ``route``
    makes them.  Raises: TensorError.
    """
    if isinstance(gate_up, HopperWeight) and isinstance(linear, HopperWeight):
        from .gluon_shared import gated_linear_and_logits_gluon

        return gated_linear_and_logits_gluon(x, operand, gate_up, limit, linear, gate, slots)
    return gated_linear(operand, gate_up, limit, linear), None


def native_experts(
    gate_up: Weight, down: Weight, *, as_fp8: bool = False
) -> tuple[Weight | HopperWeight, Weight | HopperWeight]:
    """Both as ``native_gate_up`` and ``native_weight`` make them, or none.

    ``as_fp8``: FP4 becomes E4M3, where ``native_weight`` makes a copy anyway: twice the memory,
    faster where each expert meets many rows, and the same bits in results.
    """
    native = native_gate_up(gate_up), native_weight(down)
    if not isinstance(native[0], HopperWeight) or not isinstance(native[1], HopperWeight):
        return gate_up, down
    if as_fp8 and native[0].steps is not None and native[1].steps is not None:
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
    """``experts_reference``; on a GPU weights stay packed and -1 among the ids adds nothing.

    ``num_pairs``: about how many of the choices have an expert here, if not all.  It decides the
    shape of tiles, which does not reach the bits.

    Both weights come from ``native_experts``, or both are as on disk.
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
    """On a GPU, what ``experts`` adds up: rows [R, d] bf16, and the row of each choice, [T K] i32,
    -1 where its expert is not here.  ``slots``: by ``slots_for``, as ``route`` filled them."""
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
    """The same rows, of tokens that came from other GPUs: each goes back to where its token came
    from, on Hopper while the others are computed."""
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
