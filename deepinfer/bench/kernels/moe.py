"""Mixture of experts at the model's shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from deepinfer.kernels.gemm import (
    HopperWeight,
    Weight,
    native_gate_up,
    native_weight,
    recast_weight,
)
from deepinfer.kernels.gemm.gluon_kernel import linear_rows_gluon
from deepinfer.kernels.gemm.hopper_tile import hopper_tile
from deepinfer.kernels.gemm.matrix_path import TILES, MatrixPath, tile_for
from deepinfer.kernels.gemm.triton_kernel import expert_linear_triton
from deepinfer.kernels.moe import experts, gated_linear, native_experts, route, swiglu
from deepinfer.kernels.moe.pair_order import order_pairs, order_tokens

from .case import KernelCase
from .gemm import random_rows, random_weight

_WIDTH, _INNER, _EXPERTS, _CHOSEN, _LIMIT = 5120, 2304, 384, 6, 10.0
_BYTES = {"FP4": 17 / 32, "FP8": 1.0}  # per weight


def random_choices(tokens: int, count: int) -> Tensor:
    order = torch.rand(tokens, count, device="cuda").argsort(1)[:, :_CHOSEN]
    return order.sort(1).values


def expert_case(tokens: int, count: int) -> tuple[Tensor, Tensor, Tensor, Weight, Weight]:
    gate_up = random_weight("fp4", count, 2 * _INNER, _WIDTH)
    down = random_weight("fp4", count, _WIDTH, _INNER)
    weights = torch.rand(tokens, _CHOSEN, device="cuda")
    return random_rows(tokens, _WIDTH), random_choices(tokens, count), weights, gate_up, down


def cases() -> Iterator[KernelCase]:
    for name, n, k in [("up", 2 * _INNER, _WIDTH), ("down", _WIDTH, _INNER)]:
        for count, rows in [(6, 16), (6, 64), (6, 256), (6, 512), (6, 1536), (48, 192), (48, 512)]:
            yield from _grouped_gemm(name, n, k, count, rows)
    yield from _whole()
    yield from (shared(tokens) for tokens in (16, 256, 1536))
    yield from (routing(tokens) for tokens in (16, 256, 1536, 16_384))


def routing(tokens: int, width: int = _WIDTH, count: int = _EXPERTS) -> KernelCase:
    """The router's GEMM, and the selection of experts with their weights."""
    gate, bias = random_weight("bf16", count, width), torch.randn(count, device="cuda") / 10
    call = partial(
        route, random_rows(tokens, width), gate, bias,
        num_experts_per_tok=_CHOSEN, normalize=True, scaling_factor=1.5,
    )  # fmt: skip
    num_bytes = 2 * (tokens + count) * width + tokens * _CHOSEN * 12
    name = f"routing, {tokens} rows, {_CHOSEN} of {count}"
    return KernelCase(name, call, 2 * tokens * count * width, num_bytes, "bf16")


def shared(tokens: int, width: int = _WIDTH, inner: int = _INNER) -> KernelCase:
    """Gate and up projections of the shared expert, with SwiGLU and quantization."""
    gate_up, down = random_weight("fp8", 2 * inner, width), random_weight("fp8", width, inner)
    call = partial(
        gated_linear, random_rows(tokens, width), native_gate_up(gate_up), _LIMIT,
        native_weight(down),
    )  # fmt: skip
    num_bytes = 2 * inner * width + tokens * (2 * width + inner)
    return KernelCase(f"shared up, {tokens} rows", call, 4 * tokens * inner * width, num_bytes)


def _grouped_gemm(name: str, n: int, k: int, count: int, rows: int) -> Iterator[KernelCase]:
    """Every expert has the same number of rows; weights as stored, and recast to FP8 if the device
    supports that."""
    weight = random_weight("fp4", count, n, k)
    native = native_weight(weight)
    ids = torch.arange(count, device="cuda").repeat_interleave(rows)[:, None]
    x = random_rows(count * rows, k)
    path = MatrixPath.of(torch.device("cuda"))
    calls: dict[str, Callable[[], object]] = {}
    if isinstance(native, HopperWeight):
        for form, wanted in (("FP4", native), ("FP8", recast_weight(native))):
            hopper = hopper_tile(wanted, rows)
            order, acts = order_tokens(x, ids, count, hopper.rows, path, wanted.order)
            calls[form] = partial(linear_rows_gluon, acts, wanted, order, hopper)
    else:
        tile = tile_for(rows, n, count, path, weight.values.device)
        order, acts = order_tokens(x, ids, count, tile.tokens, path, weight.order)
        calls["FP4"] = partial(expert_linear_triton, acts, weight, order, tile)
    flop = 2 * count * rows * n * k
    for form, call in calls.items():
        num_bytes = count * (n * k * _BYTES[form] + rows * (k * 33 / 32 + 2 * n))
        yield KernelCase(f"expert {name}, {form}, {count} x {rows}", call, flop, num_bytes)


def _whole() -> Iterator[KernelCase]:
    """One rank of 64: six experts and their tokens with 16, 256 and 1,536 positions per rank."""
    for count, tokens in [(6, 16), (6, 256), (6, 1536)]:
        x, ids, weights, *packed = expert_case(tokens, count)
        yield KernelCase(
            f"all of experts, {count} experts x {tokens} rows",
            partial(experts, x, ids, weights, *native_experts(*packed), _LIMIT),
            2 * tokens * _CHOSEN * 3 * _INNER * _WIDTH,
            count * 3 * _INNER * _WIDTH * 17 / 32 + tokens * _WIDTH * 6,
        )
        yield _order(ids, count)
    yield _order(random_choices(1536, _EXPERTS), _EXPERTS)
    hidden = random_rows(9216, 2 * _INNER)
    yield KernelCase("swiglu 9216 x 4608", partial(swiglu, hidden, _LIMIT), 0, hidden.numel() * 3)


def _order(ids: Tensor, count: int) -> KernelCase:
    name = f"order of {ids.numel()} pairs, {count} experts"
    return KernelCase(name, partial(order_pairs, ids, count, TILES[1].tokens), 0, ids.numel() * 12)
