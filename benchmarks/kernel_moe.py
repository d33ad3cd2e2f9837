"""Mixture of experts on the GPU: checks against the references, and times of the model's shapes.

``python benchmarks/kernel_moe.py`` checks, then prints one JSON line for each shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from kernel_gemm import calc_diff, random_rows, random_weight
from kernel_timing import Ceilings, Row, microseconds, print_row
from torch import Tensor

from deepinfer.kernels.gemm import HopperWeight, Weight, native_weight
from deepinfer.kernels.gemm.activations import quantize_activations
from deepinfer.kernels.gemm.gluon_kernel import expert_linear_gluon, hopper_tile
from deepinfer.kernels.gemm.matrix_path import TILES, MatrixPath, tile_for
from deepinfer.kernels.gemm.triton_kernel import expert_linear_triton, k_order
from deepinfer.kernels.moe import experts, native_experts, route, swiglu
from deepinfer.kernels.moe.pair_order import order_pairs
from deepinfer.kernels.moe.reference import experts_reference, route_reference, swiglu_reference
from deepinfer.kernels.moe.triton_kernel import experts_triton

_WIDTH, _INNER, _EXPERTS, _CHOSEN, _LIMIT = 5120, 2304, 384, 6, 10.0

# Any: they are keyword arguments of different types.
_ROUTING: dict[str, Any] = {
    "num_experts_per_tok": _CHOSEN,
    "normalize": True,
    "scaling_factor": 1.5,
}


def checks() -> Iterator[tuple[str, Callable[[], str]]]:
    """(name, check); a check returns what it measured and raises AssertionError."""
    yield "route", _check_route
    yield "swiglu", _check_swiglu
    for path in sorted({MatrixPath.of(torch.device("cuda")), MatrixPath.DECODED}):
        yield f"experts of full width, {path.name}", partial(_check_experts, path)
    yield "experts of other ranks", _check_absent
    yield "same bits in any batch and order", _check_bits
    yield "captured graph with another routing", _check_graph


def _choices(tokens: int, count: int) -> Tensor:
    order = torch.rand(tokens, count, device="cuda").argsort(1)[:, :_CHOSEN]
    return order.sort(1).values


def _case(tokens: int, count: int) -> tuple[Tensor, Tensor, Tensor, Weight, Weight]:
    gate_up = random_weight("fp4", count, 2 * _INNER, _WIDTH)
    down = random_weight("fp4", count, _WIDTH, _INNER)
    weights = torch.rand(tokens, _CHOSEN, device="cuda")
    return random_rows(tokens, _WIDTH), _choices(tokens, count), weights, gate_up, down


def _check_route() -> str:
    gate = random_weight("bf16", _EXPERTS, _WIDTH)
    bias = torch.randn(_EXPERTS, device="cuda") / 10
    worst, moved = 0.0, 0
    for rows in (1, 5, 1537):
        x = torch.randn(rows, _WIDTH, device="cuda").to(torch.bfloat16)
        ids, weights = route(x, gate, bias, **_ROUTING)
        expected_ids, expected = route_reference(x, gate, bias, **_ROUTING)
        same = (ids == expected_ids).all(1)
        moved += int((~same).sum())
        worst = max(worst, float((weights - expected)[same].abs().max()))
    assert moved <= 3, f"{moved} of 1,543 rows chose other experts (near ties allow a few)"
    assert worst < 1e-4, f"weights differ by {worst:.2e}"
    return f"weights {worst:.2e}, near ties moved {moved}"


def _check_swiglu() -> str:
    gate_up = (torch.randn(777, 2 * _INNER, device="cuda") * 6).to(torch.bfloat16)
    weights = torch.rand(777, device="cuda")
    diff = calc_diff(swiglu(gate_up, _LIMIT, weights), swiglu_reference(gate_up, _LIMIT, weights))
    assert diff < 1e-6, f"calc_diff {diff:.2e}"
    return f"calc_diff {diff:.2e}"


def _check_experts(path: MatrixPath) -> str:
    worst = 0.0
    for tokens in (1, 33, 300, 2000):
        x, ids, weights, gate_up, down = _case(tokens, 12)
        actual = experts_triton(x, ids, weights, gate_up, down, _LIMIT, path=path)
        expected = experts_reference(x, ids, weights, gate_up, down, _LIMIT)
        worst = max(worst, calc_diff(actual, expected))
    assert worst < 1e-4, f"calc_diff {worst:.2e}"
    return f"calc_diff {worst:.2e}"


def _check_absent() -> str:
    x, ids, weights, gate_up, down = _case(100, 8)
    absent = ids >= 6
    ids = torch.where(absent, -1, ids)
    ids[50] = -1
    actual = experts(x, ids, weights, *native_experts(gate_up, down), _LIMIT)
    expected = experts_reference(
        x, ids.clamp(min=0), weights.masked_fill(ids < 0, 0), gate_up, down, _LIMIT
    )
    diff = calc_diff(actual, expected)
    assert not actual[50].any(), "a token without experts is not zero"
    assert diff < 1e-4, f"calc_diff {diff:.2e}"
    return f"calc_diff {diff:.2e}"


def _check_bits() -> str:
    x, ids, weights, *packed = _case(2000, 12)
    native = native_experts(*packed)

    def run(rows: Tensor) -> Tensor:
        return experts(x[rows], ids[rows], weights[rows], *native, _LIMIT)

    everyone = torch.arange(2000, device="cuda")
    whole = run(everyone)
    for count in (1, 2, 7, 64, 256, 1500):
        same = torch.equal(run(everyone[:count]), whole[:count])
        assert same, f"{count} tokens differ from the same tokens of 2,000"
    shuffled = torch.randperm(2000, device="cuda")
    assert torch.equal(run(shuffled), whole[shuffled]), "another order differs"
    assert torch.equal(run(everyone), whole), "a second run differs"
    return "1 to 2,000 tokens, shuffled"


def _check_graph() -> str:
    x, ids, weights, *packed = _case(64, 8)
    native = native_experts(*packed)
    experts(x, ids, weights, *native, _LIMIT)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = experts(x, ids, weights, *native, _LIMIT)
    ids.copy_(_choices(64, 8))
    x.normal_()
    graph.replay()
    same = torch.equal(out, experts(x, ids, weights, *native, _LIMIT))
    assert same, "the replayed graph differs from a direct run"
    return "64 tokens"


def timings(ceilings: Ceilings) -> Iterator[Row]:
    for name, n, k in [("up", 2 * _INNER, _WIDTH), ("down", _WIDTH, _INNER)]:
        for count, rows in [(6, 16), (6, 64), (6, 256), (6, 512), (6, 1536), (48, 512)]:
            yield _grouped_gemm(ceilings, name, n, k, count, rows)
    yield from _whole(ceilings)


def _grouped_gemm(ceilings: Ceilings, name: str, n: int, k: int, count: int, rows: int) -> Row:
    """Every expert has the same number of rows."""
    weight = random_weight("fp4", count, n, k)
    native = native_weight(weight)
    ids = torch.arange(count, device="cuda").repeat_interleave(rows)[:, None]
    x = random_rows(count * rows, k)
    path = MatrixPath.of(torch.device("cuda"))
    if isinstance(native, HopperWeight):
        hopper = hopper_tile(native, rows)
        order = order_pairs(ids, count, hopper.rows)
        acts = quantize_activations(x, path, native.order, order)
        us = microseconds(partial(expert_linear_gluon, acts, native, order, hopper))
    else:
        tile = tile_for(rows, n, count, path, weight.values.device)
        order = order_pairs(ids, count, tile.tokens)
        acts = quantize_activations(x, path, k_order(weight), order)
        us = microseconds(partial(expert_linear_triton, acts, weight, order, tile))
    num_bytes = count * (n * k * 17 / 32 + rows * (k * 33 / 32 + 2 * n))
    return ceilings.row(f"expert {name}, {count} x {rows}", us, 2 * count * rows * n * k, num_bytes)


def _whole(ceilings: Ceilings) -> Iterator[Row]:
    """One rank of 64: six experts and what reaches them at 16, 256 and 1,536 positions a rank."""
    for count, tokens in [(6, 16), (6, 256), (6, 1536)]:
        x, ids, weights, *packed = _case(tokens, count)
        native = native_experts(*packed)
        us = microseconds(partial(experts, x, ids, weights, *native, _LIMIT))
        flop = 2 * tokens * _CHOSEN * 3 * _INNER * _WIDTH
        num_bytes = count * 3 * _INNER * _WIDTH * 17 / 32 + tokens * _WIDTH * 6
        yield ceilings.row(f"all of experts, {count} experts x {tokens} rows", us, flop, num_bytes)
        us = microseconds(partial(order_pairs, ids, count, TILES[1].tokens))
        yield ceilings.row(
            f"order of {ids.numel()} pairs, {count} experts", us, 0, ids.numel() * 12
        )
    ids = _choices(1536, _EXPERTS)
    us = microseconds(partial(order_pairs, ids, _EXPERTS, TILES[1].tokens))
    yield ceilings.row(f"order of {ids.numel()} pairs, 384 experts", us, 0, ids.numel() * 12)
    hidden = random_rows(9216, 2 * _INNER)
    us = microseconds(partial(swiglu, hidden, _LIMIT))
    yield ceilings.row("swiglu 9216 x 4608", us, 0, hidden.numel() * 3)


def main() -> None:
    for name, check in checks():
        print(f"{name}: {check()}", flush=True)
    for row in timings(Ceilings.measure()):
        print_row(row)


if __name__ == "__main__":
    main()
