"""Mixture of experts in Triton against its reference, on every matrix path the machine can run."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.gemm.activations import quantize_activations
from deepinfer.kernels.gemm.expert_rows import ExpertRows
from deepinfer.kernels.gemm.k_order import KOrder
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.moe.pair_order import order_pairs, order_tokens
from deepinfer.kernels.moe.reference import (
    experts_reference,
    sum_rows_reference,
    swiglu_reference,
)
from deepinfer.kernels.moe.slots import Slots
from deepinfer.kernels.moe.triton_kernel import (
    expert_pairs_triton,
    experts_triton,
    sum_of_pairs,
    sum_rows_triton,
)
from deepinfer.kernels.moe.triton_router import route_triton
from deepinfer.kernels.moe.triton_swiglu import swiglu_triton
from deepinfer.kernels.testing import assert_bitwise_equal, assert_close, relative_error

_LIMIT = 10.0


def _paths(device: torch.device) -> list[MatrixPath]:
    if device.type == "cpu":
        return list(MatrixPath)
    return sorted({MatrixPath.DECODED, MatrixPath.of(device)})


def _packed(experts: int, n: int, k: int, kind: str, device: torch.device) -> Weight:
    if kind == "fp4":
        values = torch.randint(-128, 128, (experts, n, k // 2), dtype=torch.int8)
        scales = torch.randint(122, 125, (experts, n, k // 32), dtype=torch.uint8)
    else:
        values = torch.randn(experts, n, k).mul(60).clamp(-400, 400).to(torch.float8_e4m3fn)
        scales = torch.randint(116, 119, (experts, n // 32, k // 32), dtype=torch.uint8)
    return Weight(values.to(device), scales.view(torch.float8_e8m0fnu).to(device))


def _choices(tokens: int, per_token: int, experts: int, device: torch.device) -> Tensor:
    order = torch.rand(tokens, experts).argsort(1)[:, :per_token]
    return order.sort(1).values.to(device)


@pytest.mark.parametrize(
    "tokens, per_token, experts", [(1, 2, 3), (40, 3, 5), (0, 2, 4), (9, 1, 1), (1500, 6, 7)]
)
def test_order_and_tiles_cover_each_pair_once(
    tokens: int, per_token: int, experts: int, device: torch.device
) -> None:
    ids = _choices(tokens, per_token, experts, device)
    if tokens:
        ids[0, 0] = -1
        ids[-1, -1] = experts
    rows = order_pairs(ids, experts, 16)
    flat = ids.flatten().cpu()
    expected: list[int] = []
    owners: list[int] = []
    for e in range(experts):
        own = (flat == e).nonzero()[:, 0].tolist()
        tiles = -(-len(own) // 16)
        expected += own + [-1] * (tiles * 16 - len(own))
        owners += [e] * tiles
    assert rows.pair[: len(expected)].tolist() == expected
    assert rows.expert.tolist() == owners + [-1] * (len(rows.expert) - len(owners))
    assert (rows.pair[len(expected) :] == -1).all()
    assert not tokens or rows.used.tolist() == [len(expected)]
    places = {pair: row for row, pair in enumerate(expected) if pair >= 0}
    assert rows.row.tolist() == [places.get(pair, -1) for pair in range(tokens * per_token)]


def test_order_when_one_expert_takes_all(device: torch.device) -> None:
    """More pairs than a block of the sorting kernel, all of the last expert."""
    ids = torch.full((700, 2), 2, device=device)
    rows = order_pairs(ids, 3, 16)
    assert rows.row.tolist() == list(range(1400))
    assert rows.pair[:1400].tolist() == list(range(1400))
    assert rows.expert.tolist() == [2] * 88 + [-1] * 2


@pytest.mark.parametrize("tokens, experts", [(1, 3), (20, 40), (9, 200)])
def test_tokens_are_moved_to_their_rows(tokens: int, experts: int, device: torch.device) -> None:
    ids = _choices(tokens, 3, experts + 2, device)  # two of the experts are elsewhere
    x = torch.randn(tokens, 256).bfloat16().to(device)
    form = MatrixPath.of(device), KOrder.PLAIN
    whole, expected = quantize_activations(x, *form), order_pairs(ids, experts, 16)
    here = (expected.row >= 0).nonzero()[:, 0]
    rows, acts = order_tokens(x, ids, experts, 16, *form)
    for name in ("pair", "row", "expert", "used"):
        assert_bitwise_equal(getattr(rows, name), getattr(expected, name), name)
    moved = acts.values[expected.row[here].long()]
    assert_bitwise_equal(moved.view(torch.uint8), whole.values[here // 3].view(torch.uint8))


@pytest.mark.parametrize("absent", [-1, 5, 2**31, 2**32, 2**32 + 3, -(2**32), -(2**63), 2**63 - 1])
def test_ids_of_no_expert_get_no_row(absent: int, device: torch.device) -> None:
    """Also those whose lower half looks like that of an expert."""
    x = torch.randn(30, 64, device=device).bfloat16()
    ids = _choices(30, 3, 5, device)
    is_absent = torch.rand(30, 3, device=device) < 0.3
    ids, plain = ids.masked_fill(is_absent, absent), ids.masked_fill(is_absent, -1)
    form = MatrixPath.of(device), KOrder.PLAIN
    expected = order_pairs(plain, 5, 16)
    tokens, acts = order_tokens(x, ids, 5, 16, *form)
    slotted, _ = order_tokens(x, ids, 5, 16, *form, _slots(plain, 5))
    for name in ("pair", "row", "expert", "used"):
        for rows in (order_pairs(ids, 5, 16), tokens):
            assert_bitwise_equal(getattr(rows, name), getattr(expected, name), name)
    assert_bitwise_equal(slotted.row < 0, plain.flatten() < 0)


def _slots(ids: Tensor, experts: int) -> Slots:
    """Taken in another order than that of pairs."""
    slots = Slots(torch.full_like(ids, -1, dtype=torch.int32), torch.zeros(experts).int())
    flat = ids.flatten().tolist()
    for pair in torch.randperm(len(flat)).tolist():
        if 0 <= flat[pair] < experts:
            slots.slot.view(-1)[pair] = slots.total[flat[pair]]
            slots.total[flat[pair]] += 1
    return Slots(slots.slot.to(ids.device), slots.total.to(ids.device))


@pytest.mark.parametrize("tokens, experts", [(1, 3), (30, 5), (9, 200)])
def test_tokens_are_moved_to_their_slots(tokens: int, experts: int, device: torch.device) -> None:
    ids = _choices(tokens, 3, experts + 2, device)  # two of the experts are elsewhere
    x = torch.randn(tokens, 256).bfloat16().to(device)
    form = MatrixPath.of(device), KOrder.PLAIN
    whole, counted = quantize_activations(x, *form), order_pairs(ids, experts, 16)
    slots = _slots(ids, experts)
    rows, acts = order_tokens(x, ids, experts, 16, *form, slots)
    for name in ("expert", "used"):
        assert_bitwise_equal(getattr(rows, name), getattr(counted, name), name)
    first = {e: 16 * rows.expert.tolist().index(e) for e in set(rows.expert.tolist())}
    flat, slot = ids.flatten().tolist(), slots.slot.flatten().tolist()
    places = [first[e] + s if e < experts else -1 for e, s in zip(flat, slot, strict=True)]
    assert rows.row.tolist() == places
    by_row = {row: pair for pair, row in enumerate(places) if row >= 0}
    assert rows.pair.tolist() == [by_row.get(row, -1) for row in range(len(rows.pair))]
    here = (rows.row >= 0).nonzero()[:, 0]
    moved = acts.values[rows.row[here].long()]
    assert_bitwise_equal(moved.view(torch.uint8), whole.values[here // 3].view(torch.uint8))


def test_the_order_of_slots_does_not_reach_the_bits(device: torch.device) -> None:
    x = torch.randn(16, 64, device=device).to(torch.bfloat16)
    ids, weights = _choices(16, 2, 3, device), torch.rand(16, 2, device=device)
    packed = _packed(3, 64, 64, "fp4", device), _packed(3, 64, 32, "fp4", device)
    expected = experts_triton(x, ids, weights, *packed, _LIMIT)
    for _ in range(2):
        pairs = expert_pairs_triton(x, ids, weights, *packed, _LIMIT, slots=_slots(ids, 3))
        assert_bitwise_equal(sum_of_pairs(*pairs), expected)


@pytest.mark.parametrize("rows, inner", [(1, 2), (3, 96), (2, 1300), (0, 64)])
@pytest.mark.parametrize("weighted", [False, True])
def test_swiglu(rows: int, inner: int, weighted: bool, device: torch.device) -> None:
    gate_up = (torch.randn(rows, 2 * inner, device=device) * 8).to(torch.bfloat16)
    if rows:
        gate_up[0, 0], gate_up[0, inner] = -200.0, 200.0
        gate_up[-1, 1], gate_up[-1, inner + 1] = _LIMIT, -_LIMIT
    weights = torch.rand(rows, device=device) if weighted else None
    expected = swiglu_reference(gate_up, _LIMIT, weights)
    assert_close(swiglu_triton(gate_up, _LIMIT, weights), expected, atol=1e-6, rtol=8e-3)


def test_nan_passes_the_clamps(device: torch.device) -> None:
    gate_up = torch.ones(1, 8, dtype=torch.bfloat16, device=device)
    gate_up[0, 1] = gate_up[0, 6] = float("nan")
    assert swiglu_triton(gate_up, _LIMIT).isnan()[0].tolist() == [False, True, True, False]


@pytest.mark.parametrize("kind", ["fp4", "fp8"])
@pytest.mark.parametrize(
    "tokens, per_token, experts, width, inner", [(1, 2, 3, 32, 32), (9, 2, 4, 160, 96)]
)
def test_experts(
    tokens: int, per_token: int, experts: int, width: int, inner: int, kind: str,
    device: torch.device,
) -> None:  # fmt: skip
    x = torch.randn(tokens, width, device=device).to(torch.bfloat16)
    ids = _choices(tokens, per_token, experts, device)
    weights = torch.rand(tokens, per_token, device=device)
    gate_up = _packed(experts, 2 * inner, width, kind, device)
    down = _packed(experts, width, inner, kind, device)
    expected = experts_reference(x, ids, weights, gate_up, down, _LIMIT)
    for path in _paths(device):
        actual = experts_triton(x, ids, weights, gate_up, down, _LIMIT, path=path)
        assert float(relative_error(actual, expected).max()) < 2e-2, path.name


def test_experts_of_other_ranks_add_nothing(device: torch.device) -> None:
    """Choices of -1 or beyond, one token without any expert, one expert without any token."""
    x = torch.randn(5, 64, device=device).to(torch.bfloat16)
    ids = torch.tensor([[-1, 0], [-1, -1], [0, 3], [0, 2], [-1, 2]], device=device)
    weights = torch.rand(5, 2, device=device)
    gate_up, down = _packed(3, 64, 64, "fp4", device), _packed(3, 64, 32, "fp4", device)
    actual = experts_triton(x, ids, weights, gate_up, down, _LIMIT)
    absent = (ids < 0) | (ids > 2)
    expected = experts_reference(
        x, ids.masked_fill(absent, 0), weights.masked_fill(absent, 0), gate_up, down, _LIMIT
    )
    assert not actual[1].any()
    assert float(relative_error(actual, expected)[[0, 2, 3, 4]].max()) < 2e-2


@pytest.mark.parametrize("tokens", [1, 5])
def test_tokens_without_any_expert(tokens: int, device: torch.device) -> None:
    x = torch.randn(tokens, 64, device=device).to(torch.bfloat16)
    ids = torch.full((tokens, 2), -1, dtype=torch.int64, device=device)
    weights = torch.rand(tokens, 2, device=device)
    gate_up, down = _packed(3, 64, 64, "fp4", device), _packed(3, 64, 32, "fp4", device)
    for path in _paths(device):
        out = experts_triton(x, ids, weights, gate_up, down, _LIMIT, path=path)
        assert_bitwise_equal(out, torch.zeros_like(out), path.name)


def test_no_tokens(device: torch.device) -> None:
    gate_up, down = _packed(3, 64, 64, "fp4", device), _packed(3, 64, 32, "fp4", device)
    empty = torch.empty(0, 2, device=device)
    x = torch.empty(0, 64, dtype=torch.bfloat16, device=device)
    assert experts_triton(x, empty.long(), empty, gate_up, down, _LIMIT).shape == (0, 64)


def test_a_nan_token_harms_no_other(device: torch.device) -> None:
    x = torch.randn(4, 64, device=device).to(torch.bfloat16)
    ids, weights = _choices(4, 2, 3, device), torch.rand(4, 2, device=device)
    gate_up, down = _packed(3, 64, 64, "fp4", device), _packed(3, 64, 32, "fp4", device)
    clean = experts_triton(x, ids, weights, gate_up, down, _LIMIT)
    x[2] = float("nan")
    harmed = experts_triton(x, ids, weights, gate_up, down, _LIMIT)
    assert harmed[2].isnan().all()
    assert_bitwise_equal(harmed[[0, 1, 3]], clean[[0, 1, 3]])


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["fp4", "fp8"])
def test_a_token_has_the_same_bits_in_any_batch(kind: str, device: torch.device) -> None:
    """Batches that choose every tile, in another order, twice."""
    experts, width, inner = 16, 1024, 512
    x = torch.randn(1600, width, device=device).to(torch.bfloat16)
    ids, weights = _choices(1600, 6, experts, device), torch.rand(1600, 6, device=device)
    gate_up = _packed(experts, 2 * inner, width, kind, device)
    down = _packed(experts, width, inner, kind, device)

    def run(rows: Tensor) -> Tensor:
        return experts_triton(x[rows], ids[rows], weights[rows], gate_up, down, _LIMIT)

    everyone = torch.arange(1600, device=device)
    whole = run(everyone)
    for count in (1, 2, 7, 64, 256, 1500):
        assert_bitwise_equal(run(everyone[:count]), whole[:count], f"{count} tokens")
    shuffled = torch.randperm(1600, device=device)
    assert_bitwise_equal(run(shuffled), whole[shuffled], "shuffled")
    assert_bitwise_equal(run(everyone), whole, "second run")


@pytest.mark.gpu
def test_experts_in_a_graph(device: torch.device) -> None:
    """Captured with one routing, replayed with another: nothing in it depends on the routing."""
    x = torch.randn(64, 256, device=device).to(torch.bfloat16)
    ids, weights = _choices(64, 2, 8, device), torch.rand(64, 2, device=device)
    gate_up, down = _packed(8, 256, 256, "fp4", device), _packed(8, 256, 128, "fp4", device)
    experts_triton(x, ids, weights, gate_up, down, _LIMIT)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = experts_triton(x, ids, weights, gate_up, down, _LIMIT)
    ids.fill_(7)
    x.normal_()
    graph.replay()
    assert_bitwise_equal(out, experts_triton(x, ids, weights, gate_up, down, _LIMIT))


@pytest.mark.gpu
def test_slots_in_a_graph(device: torch.device) -> None:
    """Who counts is set to zero by each replay, before and after other tokens."""
    x = torch.randn(1536, 5120, device=device).to(torch.bfloat16)
    gate = Weight((torch.randn(384, 5120, device=device) / 40).to(torch.bfloat16))
    bias = torch.randn(384, device=device) / 10
    args = {"num_experts_per_tok": 6, "normalize": True, "scaling_factor": 1.5}
    form = MatrixPath.of(device), KOrder.PLAIN

    def call() -> tuple[Tensor, Tensor, ExpertRows]:
        slots = Slots.empty(len(x), 6, 384, device)
        ids, _ = route_triton(x, gate, bias, **args, slots=slots)  # type: ignore[arg-type]
        return ids, slots.total, order_tokens(x, ids, 384, 16, *form, slots)[0]

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ids, total, rows = call()
    for _ in range(3):
        x.normal_()
        graph.replay()
        expected = order_pairs(ids, 384, 16)
        assert total.tolist() == torch.bincount(ids.flatten(), minlength=384).tolist()
        assert_bitwise_equal(rows.expert, expected.expert)
        assert_bitwise_equal(rows.row.sort().values, expected.row.sort().values)
        assert rows.pair[rows.row.long()].tolist() == list(range(9216))


@pytest.mark.gpu
def test_experts_of_the_real_size(device: torch.device) -> None:
    """5,120 x 2,304, weights beyond 2**31 bytes, one token in the last expert."""
    experts = 384
    gate_up = _packed(experts, 4608, 5120, "fp4", device)
    down = _packed(experts, 5120, 2304, "fp4", device)
    x = torch.randn(33, 5120, device=device).to(torch.bfloat16)
    ids, weights = _choices(33, 6, experts, device), torch.rand(33, 6, device=device)
    ids[0, -1] = experts - 1
    actual = experts_triton(x, ids, weights, gate_up, down, _LIMIT)
    used = sorted(set(ids.flatten().tolist()))
    place = torch.zeros(experts, dtype=torch.int64, device=device)
    place[used] = torch.arange(len(used), device=device)
    expected = experts_reference(
        x, place[ids], weights, _some(gate_up, used), _some(down, used), _LIMIT
    )
    assert float(relative_error(actual, expected).max()) < 1e-2


def _some(weight: Weight, experts: list[int]) -> Weight:
    assert weight.scales is not None
    scales = weight.scales.view(torch.uint8)[experts].view(torch.float8_e8m0fnu)
    return Weight(weight.values[experts], scales)


def test_what_does_not_fit_is_named(device: torch.device) -> None:
    gate_up, down = _packed(3, 64, 64, "fp4", device), _packed(3, 64, 32, "fp4", device)
    x = torch.zeros(2, 64, dtype=torch.bfloat16, device=device)
    ids = torch.zeros(2, 2, dtype=torch.int64, device=device)
    weights = torch.zeros(2, 2, device=device)
    with pytest.raises(TensorError, match="ids: expected"):
        experts_triton(x, ids.int(), weights, gate_up, down, _LIMIT)
    with pytest.raises(TensorError, match="weights: expected"):
        experts_triton(x, ids, weights[:1], gate_up, down, _LIMIT)
    with pytest.raises(TensorError, match=r"x: expected .* \[any, 64\]"):
        experts_triton(x[:, :32].contiguous(), ids, weights, gate_up, down, _LIMIT)
    with pytest.raises(TensorError, match="contiguous"):
        experts_triton(x, ids, weights, gate_up, Weight(down.values[:, ::2], down.scales), _LIMIT)
    with pytest.raises(TensorError, match="cannot select 9 of 4"):
        gate = Weight(torch.zeros(4, 64, dtype=torch.bfloat16, device=device))
        bias = torch.zeros(4, device=device)
        route_triton(x, gate, bias, num_experts_per_tok=9, normalize=True, scaling_factor=1.0)
    with pytest.raises(TensorError, match="gate_up: expected"):
        swiglu_triton(torch.zeros(2, 6, dtype=torch.bfloat16, device=device), _LIMIT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens, per_token, width", [(5, 6, 1100), (1, 1, 32), (0, 3, 64)])
def test_named_rows_are_added_in_their_order(device, tokens, per_token, width, dtype) -> None:
    rows = (torch.randn(9, width) * torch.randn(9, 1).exp2()).to(torch.bfloat16)
    row = torch.randint(-1, 9, (tokens * per_token,), dtype=torch.int32)
    expected = sum_rows_reference(rows, row, per_token, dtype)
    actual = sum_rows_triton(rows.to(device), row.to(device), per_token, dtype)
    assert_bitwise_equal(actual.cpu(), expected)
