"""Experts in Gluon on NVIDIA SM90: against references, the same bits from every tile."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gemm_operands import (
    CUDA,
    FP4_TILES,
    FP8_TILES,
    bytes_of,
    random_choices,
    random_fp4,
    random_rows,
)
from torch import Tensor

from deepinfer.kernels.exchange import (
    Arrivals,
    Buffers,
    ExchangeLayout,
    copy_tokens,
    make_heads,
    receive_tokens,
    sendable,
)
from deepinfer.kernels.gemm import (
    HopperWeight,
    Weight,
    native_weight,
)
from deepinfer.kernels.gemm.gluon_kernel import linear_rows_gluon
from deepinfer.kernels.gemm.hopper_tile import (
    TRIPLE,
)
from deepinfer.kernels.gemm.hopper_weights import recast_weight
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.moe import (
    Pages,
    expert_pairs,
    experts,
    native_experts,
    route,
    send_back_experts,
    slots_for,
    sum_rows,
)
from deepinfer.kernels.moe.pair_order import order_tokens
from deepinfer.kernels.moe.reference import experts_reference
from deepinfer.kernels.norm import NormedRows
from deepinfer.kernels.testing import assert_bitwise_equal, relative_error

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("needs_sm90")]


_LIMIT = 10.0


# With 5,600 tokens, and with 150 of 2,000, two programs share each of the last tiles of 256 rows
# and of the last square ones.
@pytest.mark.parametrize(
    "tokens, here", [(7, 7), (90, 90), (400, 400), (1300, 1300), (5600, 5600), (2000, 150)]
)
def test_every_tile_of_experts_has_the_same_bits(tokens: int, here: int) -> None:
    """Experts with few, many and no rows; of all tokens the first ``here`` choose any."""
    packed = native_weight(random_fp4(5, 768, 512))
    assert isinstance(packed, HopperWeight)
    ids = random_choices(tokens, 2, 7) - 1  # -1 and 5 are elsewhere
    ids[ids == 3] = -1
    ids[here:] = -1
    x = random_rows(tokens, 512)
    results = []
    for weight, tiles in ((packed, FP4_TILES), (recast_weight(packed), FP8_TILES)):
        for tile in tiles:
            path = MatrixPath.FP8
            rows, acts = order_tokens(x, ids, 5, tile.rows, path, weight.order)
            out = linear_rows_gluon(acts, weight, rows, tile)
            results.append((str(tile), out[rows.row[rows.row >= 0].long()]))
    for name, result in results[1:]:
        assert_bitwise_equal(result, results[0][1], name)


@pytest.mark.parametrize("tokens", [6, 64, 700, 2800])
def test_every_tile_sends_results_back(tokens: int) -> None:
    """Rows of two ranks' tokens, to the buffers of both, which are on this GPU here."""
    packed = native_weight(random_fp4(5, 768, 512))
    assert isinstance(packed, HopperWeight)
    layout = ExchangeLayout(
        num_ranks=2, capacity=tokens + 3, num_choices=2, hidden_size=768, block=128
    )
    memory = torch.empty(2, layout.num_bytes, dtype=torch.uint8, device=CUDA)
    homes = torch.tensor([own[layout.results :].data_ptr() for own in memory], device=CUDA)
    buffers = Buffers(
        layout=layout, rank=0, own=memory[0], peers={1: memory[1]}, homes=homes, rounds=homes
    )
    buffers_1 = replace(buffers, own=memory[1])
    ids = random_choices(2 * tokens, 2, 7) - 1
    x = random_rows(2 * tokens, 512)
    sending = [tile for tile in FP8_TILES if tile is not TRIPLE]
    for weight, tiles in ((packed, FP4_TILES), (recast_weight(packed), sending)):
        for tile in tiles:
            rows, acts = order_tokens(x, ids, 5, tile.rows, MatrixPath.FP8, weight.order)
            wanted = linear_rows_gluon(acts, weight, rows, tile)
            memory.fill_(7)
            linear_rows_gluon(acts, weight, rows, tile, Arrivals(buffers, acts, tokens))
            results = torch.cat([b.results[: 2 * tokens] for b in (buffers, buffers_1)])
            row = rows.row
            assert_bitwise_equal(results[row >= 0], wanted[row[row >= 0].long()], str(tile))
            assert bool((bytes_of(results[row < 0]) == 7).all()), "of no expert here"
            assert bool((memory[:, : layout.results] == 7).all())
            assert bool((memory[:, layout.sent :] == 7).all())


@pytest.mark.parametrize("tokens", [1, 33, 300, 2000])
def test_experts(tokens: int) -> None:
    gate_up, down = random_fp4(12, 4608, 5120), random_fp4(12, 5120, 2304)
    x, ids = random_rows(tokens, 5120), random_choices(tokens, 6, 12)
    weights = torch.rand(tokens, 6, device=CUDA)
    native = native_experts(gate_up, down)
    assert isinstance(native[0], HopperWeight)
    actual = experts(x, ids, weights, *native, _LIMIT)
    expected = experts_reference(x, ids, weights, gate_up, down, _LIMIT)
    assert float(relative_error(actual, expected).max()) < 2e-2
    recast = [recast_weight(weight) for weight in native if isinstance(weight, HopperWeight)]
    same = experts(x, ids, weights, recast[0], recast[1], _LIMIT)
    assert_bitwise_equal(same, actual, "weights recast to E4M3")


@pytest.mark.parametrize("as_fp8", [False, True])
def test_tokens_in_pages_have_the_same_bits(as_fp8: bool) -> None:
    """In a graph, with other tokens each time."""
    native = native_experts(random_fp4(384, 512, 1024), random_fp4(384, 1024, 256), as_fp8=as_fp8)
    gate = Weight((torch.randn(384, 1024, device=CUDA) / 32).to(torch.bfloat16))
    bias = torch.randn(384, device=CUDA) / 10
    for tokens in (1, 7, 16, 800):
        x = random_rows(tokens, 1024)

        def call(in_pages: bool, x: Tensor = x) -> Tensor:
            slots = slots_for(x, 6, native[0]) if in_pages else None
            assert not in_pages or isinstance(slots, Pages)
            ids, weights = route(
                x, gate, bias, num_experts_per_tok=6, normalize=True, scaling_factor=1.5,
                slots=slots,
            )  # fmt: skip
            rows, row = expert_pairs(x, ids, weights, *native, _LIMIT, slots=slots)
            return sum_rows(rows, row, 6)

        call(in_pages=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = call(in_pages=True)
        for _ in range(20):
            x.copy_(random_rows(tokens, 1024))
            graph.replay()
            assert_bitwise_equal(out, call(in_pages=False), f"{tokens} tokens")


def test_a_token_has_the_same_bits_in_any_batch() -> None:
    """Batches that choose every tile, in another order, twice."""
    native = native_experts(random_fp4(16, 1024, 1024), random_fp4(16, 1024, 512))
    x, ids = random_rows(4000, 1024), random_choices(4000, 6, 16)
    weights = torch.rand(4000, 6, device=CUDA)

    def run(rows: Tensor) -> Tensor:
        return experts(x[rows], ids[rows], weights[rows], *native, _LIMIT)

    everyone = torch.arange(4000, device=CUDA)
    whole = run(everyone)
    for count in (1, 2, 7, 64, 150, 256, 1500):
        assert_bitwise_equal(run(everyone[:count]), whole[:count], f"{count} tokens")
    shuffled = torch.randperm(4000, device=CUDA)
    assert_bitwise_equal(run(shuffled), whole[shuffled], "shuffled")
    assert_bitwise_equal(run(everyone), whole, "second run")


def test_experts_of_other_ranks_add_nothing() -> None:
    gate_up, down = random_fp4(3, 512, 256), random_fp4(3, 256, 256)
    x = random_rows(5, 256)
    ids = torch.tensor([[-1, 0], [-1, -1], [0, 3], [0, 2], [-1, 2]], device=CUDA)
    weights = torch.rand(5, 2, device=CUDA)
    actual = experts(x, ids, weights, *native_experts(gate_up, down), _LIMIT)
    absent = (ids < 0) | (ids > 2)
    expected = experts_reference(
        x, ids.masked_fill(absent, 0), weights.masked_fill(absent, 0), gate_up, down, _LIMIT
    )
    assert not actual[1].any()
    assert float(relative_error(actual, expected)[[0, 2, 3, 4]].max()) < 2e-2


@pytest.mark.parametrize("tokens", [1, 300])
def test_tokens_without_any_expert(tokens: int) -> None:
    native = native_experts(random_fp4(3, 512, 256), random_fp4(3, 256, 256))
    ids = torch.full((tokens, 2), -1, dtype=torch.int64, device=CUDA)
    out = experts(
        random_rows(tokens, 256), ids, torch.rand(tokens, 2, device=CUDA), *native, _LIMIT
    )
    assert_bitwise_equal(out, torch.zeros_like(out))


def test_experts_in_a_graph() -> None:
    """Captured with one routing, replayed with another: nothing in it depends on the routing."""
    native = native_experts(random_fp4(8, 512, 256), random_fp4(8, 256, 256))
    x, ids, weights = random_rows(64, 256), random_choices(64, 2, 8), torch.rand(64, 2, device=CUDA)
    experts(x, ids, weights, *native, _LIMIT)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = experts(x, ids, weights, *native, _LIMIT)
    ids.fill_(7)
    x.normal_()
    graph.replay()
    assert_bitwise_equal(out, experts(x, ids, weights, *native, _LIMIT))


@pytest.mark.parametrize("tokens", [16, 300, 1500, 5000])
def test_experts_of_two_ranks_have_the_bits_of_one(tokens: int) -> None:
    """The whole exchange, both ranks on this GPU one after the other: heads, copies, tokens read
    where they landed, results stored where they belong."""
    width, inner, members, choices = 512, 256, 12, 3
    gate_up = random_fp4(members, 2 * inner, width)
    down = random_fp4(members, width, inner)
    halves = [slice(0, members // 2), slice(members // 2, members)]
    x, ids = random_rows(2 * tokens, width), random_choices(2 * tokens, choices, members)
    weights = torch.rand(2 * tokens, choices, device=CUDA)
    everyone = native_experts(gate_up, down)
    wanted = experts(x, ids, weights, *everyone, 10.0)
    layout = ExchangeLayout(
        num_ranks=2, capacity=tokens + 1, num_choices=choices, hidden_size=width, block=128
    )
    memory = torch.zeros(2, layout.num_bytes, dtype=torch.uint8, device=CUDA)
    homes = torch.tensor([own[layout.results :].data_ptr() for own in memory], device=CUDA)
    number = torch.arange(members, device=CUDA)[:, None]
    table = (number // 6, number % 6, torch.ones(members, dtype=torch.int64, device=CUDA))
    sent = []
    for rank in range(2):
        buffers = Buffers(
            layout=layout, rank=rank, own=memory[rank], peers={1 - rank: memory[1 - rank]},
            homes=homes, rounds=torch.zeros(1, dtype=torch.int32, device=CUDA),
        )  # fmt: skip
        mine = slice(rank * tokens, (rank + 1) * tokens)
        own = sendable(NormedRows(x[mine], x[mine]))
        row = make_heads(buffers, own, ids[mine], weights[mine], table, tokens)
        copy_tokens(buffers, own, 1 - rank, tokens)
        sent.append((Arrivals(buffers, own, tokens), row))
    for arrivals, _ in sent:
        half = halves[arrivals.buffers.rank]
        local = native_experts(*(Weight(w.values[half], w.scales[half]) for w in (gate_up, down)))
        send_back_experts(arrivals, *receive_tokens(arrivals.buffers, tokens), *local, 10.0)
    found = [sum_rows(arrivals.buffers.results, row, choices) for arrivals, row in sent]
    assert_bitwise_equal(torch.cat(found), wanted)
