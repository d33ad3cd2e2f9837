"""The Gluon forms on an NVIDIA SM90: against references, and the same bits from every kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from deepinfer.errors import TensorError
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
    fp32_linear,
    grouped_linear,
    grouped_linear_quantized,
    native_gate_up,
    native_grouped_weight,
    native_weight,
    quantized_linear,
)
from deepinfer.kernels.gemm.activations import Activations, quantize_activations
from deepinfer.kernels.gemm.gluon_grouped_launch import grouped_linear_gluon
from deepinfer.kernels.gemm.gluon_kernel import fits_gate, gated_rows_gluon, linear_rows_gluon
from deepinfer.kernels.gemm.gluon_parts_launch import fits_parts, fp32_linear_parts_gluon
from deepinfer.kernels.gemm.gluon_plain_launch import fits_plain
from deepinfer.kernels.gemm.hopper_tile import (
    SLIM,
    SQUARE_FP8,
    TRIPLE,
    WIDE_FP4,
    WIDE_FP8,
    NarrowTile,
    Speed,
    hopper_tile,
)
from deepinfer.kernels.gemm.hopper_weights import recast_weight
from deepinfer.kernels.gemm.k_order import KOrder
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.gemm.parts_tiles import TILES
from deepinfer.kernels.gemm.reference import grouped_linear_reference, quantized_linear_reference
from deepinfer.kernels.gemm.triton_kernel import (
    fp32_linear_parts_triton,
    fp32_linear_triton,
    grouped_linear_triton,
)
from deepinfer.kernels.moe import (
    experts,
    gated_linear,
    native_experts,
    send_back_experts,
    sum_rows,
)
from deepinfer.kernels.moe.pair_order import order_tokens
from deepinfer.kernels.moe.reference import experts_reference
from deepinfer.kernels.moe.triton_swiglu import swiglu_for_triton, swiglu_of_rows
from deepinfer.kernels.norm import NormedRows
from deepinfer.kernels.testing import assert_bitwise_equal, relative_error

pytestmark = pytest.mark.gpu
_LIMIT = 10.0
_CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def _hopper() -> Iterator[None]:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("no NVIDIA SM90")
    torch.manual_seed(0)
    yield


def _fp8(n: int, k: int) -> Weight:
    values = torch.randn(n, k, device=_CUDA).mul(60).clamp(-448, 448).to(torch.float8_e4m3fn)
    scales = torch.randint(116, 120, (n // 32, k // 32), dtype=torch.uint8, device=_CUDA)
    return Weight(values, scales.view(torch.float8_e8m0fnu))


def _fp4(members: int, n: int, k: int) -> Weight:
    shape = (members, n, k // 2)
    values = torch.randint(-128, 128, shape, dtype=torch.int8, device=_CUDA)
    scales = torch.randint(118, 124, (members, n, k // 32), dtype=torch.uint8, device=_CUDA)
    return Weight(values, scales.view(torch.float8_e8m0fnu))


def _rows(rows: int, k: int) -> Tensor:
    x = torch.randn(rows, k, device=_CUDA)
    sizes = torch.exp2(torch.randint(-2, 3, (rows, k // 32), device=_CUDA).float())
    return (x * sizes.repeat_interleave(32, 1)).to(torch.bfloat16)


def _choices(tokens: int, per_token: int, count: int) -> Tensor:
    return torch.rand(tokens, count, device=_CUDA).argsort(1)[:, :per_token].sort(1).values


@pytest.mark.parametrize("n, k", [(1792, 5120), (32768, 1280), (5120, 8192), (192, 512)])
def test_linear_layers_of_the_model(n: int, k: int) -> None:
    weight, x = _fp8(n, k), _rows(1100, k)
    native = native_weight(weight)
    assert isinstance(native, HopperWeight)
    whole = quantized_linear(x, native)
    expected = quantized_linear_reference(x, weight)
    assert float(relative_error(whole, expected).max()) < 4e-3
    for rows in (1, 2, 7, 16, 17, 63, 64, 65, 129, 256, 300):
        part = quantized_linear(x[:rows].contiguous(), native)
        assert_bitwise_equal(part, whole[:rows], f"{rows} rows")
    assert_bitwise_equal(quantized_linear(x, native), whole, "second run")
    assert quantized_linear(x[:0], native).shape == (0, n)


@pytest.mark.parametrize("n, k", [(1792, 5120), (192, 512)])
def test_4097_rows(n: int, k: int) -> None:
    """One more than whole tiles of every size."""
    weight, x = native_weight(_fp8(n, k)), _rows(4097, k)
    whole = quantized_linear(x, weight)
    for part in (slice(0, 64), slice(4000, 4097), slice(4096, 4097)):
        assert_bitwise_equal(quantized_linear(x[part].contiguous(), weight), whole[part], f"{part}")


_SPEED = Speed(1, 1.0, 1.0)
_FP8_TILES = (NarrowTile(64, 3, _SPEED), WIDE_FP8, SQUARE_FP8, TRIPLE)
_FP4_TILES = (NarrowTile(64, 2, _SPEED), NarrowTile(128, 2, _SPEED), WIDE_FP4)


@pytest.mark.parametrize("rows", [1, 64, 100, 192, 193, 700])
def test_every_tile_has_the_same_bits(rows: int) -> None:
    """Whatever the sizes would choose; the last columns are less than a tile."""
    native = native_weight(_fp8(1344, 768))
    assert isinstance(native, HopperWeight)
    acts = quantize_activations(_rows(rows, 768), MatrixPath.FP8, native.order)
    tiles = (*_FP8_TILES, SLIM)
    first, *others = [linear_rows_gluon(acts, native, None, tile) for tile in tiles]
    for tile, other in zip(tiles[1:], others, strict=True):
        assert_bitwise_equal(other, first, str(tile))


@pytest.mark.parametrize("tokens", [7, 90, 400, 1300])
def test_every_tile_of_experts_has_the_same_bits(tokens: int) -> None:
    """Experts with few, many and no rows."""
    packed = native_weight(_fp4(5, 768, 512))
    assert isinstance(packed, HopperWeight)
    ids = _choices(tokens, 2, 7) - 1  # -1 and 5 are elsewhere
    ids[ids == 3] = -1
    x = _rows(tokens, 512)
    results = []
    for weight, tiles in ((packed, _FP4_TILES), (recast_weight(packed), _FP8_TILES)):
        for tile in tiles:
            path = MatrixPath.FP8
            rows, acts = order_tokens(x, ids, 5, tile.rows, path, weight.order)
            out = linear_rows_gluon(acts, weight, rows, tile)
            here = rows.row >= 0
            results.append((str(tile), out[rows.row[here].long()]))
    for name, result in results[1:]:
        assert_bitwise_equal(result, results[0][1], name)


@pytest.mark.parametrize("tokens", [6, 64, 700])
def test_every_tile_sends_results_back(tokens: int) -> None:
    """Rows of two ranks' tokens, to the buffers of both, which are on this GPU here."""
    packed = native_weight(_fp4(5, 768, 512))
    assert isinstance(packed, HopperWeight)
    layout = ExchangeLayout(
        num_ranks=2, capacity=tokens + 3, num_choices=2, hidden_size=768, block=128
    )
    memory = torch.empty(2, layout.num_bytes, dtype=torch.uint8, device=_CUDA)
    homes = torch.tensor([own[layout.results :].data_ptr() for own in memory], device=_CUDA)
    buffers = Buffers(
        layout=layout, rank=0, own=memory[0], peers={1: memory[1]}, homes=homes, rounds=homes
    )
    buffers_1 = replace(buffers, own=memory[1])
    ids = _choices(2 * tokens, 2, 7) - 1
    x = _rows(2 * tokens, 512)
    sending = [tile for tile in _FP8_TILES if tile is not TRIPLE]
    for weight, tiles in ((packed, _FP4_TILES), (recast_weight(packed), sending)):
        for tile in tiles:
            rows, acts = order_tokens(x, ids, 5, tile.rows, MatrixPath.FP8, weight.order)
            wanted = linear_rows_gluon(acts, weight, rows, tile)
            memory.fill_(7)
            linear_rows_gluon(acts, weight, rows, tile, Arrivals(buffers, acts, tokens))
            results = torch.cat([b.results[: 2 * tokens] for b in (buffers, buffers_1)])
            row = rows.row
            assert_bitwise_equal(results[row >= 0], wanted[row[row >= 0].long()], str(tile))
            assert bool((_bytes(results[row < 0]) == 7).all()), "of no expert here"
            assert bool((memory[:, : layout.results] == 7).all())
            assert bool((memory[:, layout.sent :] == 7).all())


def _bytes(values: Tensor) -> Tensor:
    return values.contiguous().view(torch.uint8)


@pytest.mark.parametrize("groups, n, k", [(8, 1024, 4096), (3, 256, 64), (0, 5000, 512)])
def test_bf16_layers_have_the_portable_forms_bits(groups: int, n: int, k: int) -> None:
    """``groups`` 0: one layer with fp32 results, whose columns end inside of a tile."""
    lead = (groups,) if groups else ()
    weight = Weight((torch.randn(*lead, n, k, device=_CUDA) / k**0.5).to(torch.bfloat16))
    for rows in (256, 300, 1100):
        x = torch.randn(rows, *lead, k, device=_CUDA).to(torch.bfloat16)
        assert fits_plain(x, weight)
        if groups:
            assert_bitwise_equal(grouped_linear(x, weight), grouped_linear_triton(x, weight))
        else:
            assert_bitwise_equal(fp32_linear(x, weight), fp32_linear_triton(x, weight))


@pytest.mark.parametrize("n, k", [(384, 5120), (256, 512), (64, 256)])
def test_parts_of_bf16_layers_have_the_portable_forms_bits(n: int, k: int) -> None:
    weight = Weight((torch.randn(n, k, device=_CUDA) / k**0.5).to(torch.bfloat16))
    for rows in (1, 60, 300, 1500, 9000):
        x = torch.randn(rows, k, device=_CUDA).to(torch.bfloat16)
        assert fits_parts(x, weight, 4)
        parts = fp32_linear_parts_triton(x, weight, 4)
        first, second, third, fourth = parts.split(1, dim=1)
        whole = first + second + third + fourth
        for form in product(TILES, (1, 4)):
            actual = fp32_linear_parts_gluon(x, weight, 4, form)
            assert_bitwise_equal(actual, parts if form[1] == 1 else whole, str(form))


@pytest.mark.parametrize("rows", [256, 300, 1100])
def test_groups_leave_quantised_with_the_same_bits(rows: int) -> None:
    weight = Weight((torch.randn(8, 256, 512, device=_CUDA) / 16).to(torch.bfloat16))
    linear, x = native_weight(_fp8(512, 2048)), torch.randn(rows, 8, 512, device=_CUDA).bfloat16()
    x[3, 2, 1], x[4, 0, 0] = float("nan"), float("inf")
    assert isinstance(linear, HopperWeight)
    actual = grouped_linear_quantized(x, weight, linear)
    expected = quantize_activations(
        grouped_linear(x, weight).flatten(1), MatrixPath.FP8, linear.order
    )
    assert isinstance(actual, Activations)
    assert_same_codes(actual, expected, torch.arange(rows))


@pytest.mark.parametrize("groups, n, k", [(8, 1024, 4096), (3, 128, 512)])
def test_fp8_groups(groups: int, n: int, k: int) -> None:
    """Against the reference, one row against many, other rows beside one of NaN."""
    weight = _fp8(groups * n, k).split_rows(groups)
    native = native_grouped_weight(weight, fp8=True)
    assert isinstance(native, HopperWeight)
    x = _rows(700, groups * k).view(700, groups, k)
    whole = grouped_linear(x, native, fp8=True)
    expected = grouped_linear_reference(x, weight, fp8=True)
    assert_bitwise_equal(
        grouped_linear(_quantized(x.flatten(1)), native), whole, "quantised before"
    )
    whole, expected = whole.flatten(1), expected.flatten(1)
    assert float(relative_error(whole, expected).max()) < 4e-3
    for rows in (0, 1, 2, 16, 17, 63, 64, 65, 129, 192, 256, 300):
        part = grouped_linear(x[:rows], native, fp8=True).flatten(1)
        assert_bitwise_equal(part, whole[:rows], f"{rows} rows")
    x[2, 1, 7] = float("nan")
    harmed = grouped_linear(x, native, fp8=True).flatten(1)
    assert harmed[2, n : 2 * n].isnan().all()
    whole[2, n : 2 * n] = harmed[2, n : 2 * n]
    assert_bitwise_equal(harmed, whole)


@pytest.mark.parametrize("rows", [1, 16, 100, 192, 193, 300])
def test_every_tile_of_groups_has_the_bits_of_each_group(rows: int) -> None:
    """As bf16, and quantised in passing; what is left is less than a tile of rows."""
    weight, x = _fp8(4 * 256, 768).split_rows(4), _rows(rows, 4 * 768).view(rows, 4, 768)
    x[rows // 2, 2, 1], x[rows - 1, 0, 0] = float("nan"), float("inf")
    native, linear = native_grouped_weight(weight, fp8=True), native_weight(_fp8(256, 1024))
    assert isinstance(native, HopperWeight) and isinstance(linear, HopperWeight)
    expected = torch.cat(
        [quantized_linear(x[:, g].contiguous(), native_weight(weight[g])) for g in range(4)], 1
    )
    acts, codes = _quantized(x.flatten(1)), _quantized(expected)
    for tile in _FP8_TILES:
        plain = grouped_linear_gluon(acts, native, tile=tile)
        assert isinstance(plain, Tensor)
        assert_bitwise_equal(plain, expected, str(tile))
        passed = grouped_linear_gluon(acts, native, linear, tile)
        if isinstance(tile, NarrowTile):
            assert isinstance(passed, Tensor)
            passed = _quantized(passed)
        assert isinstance(passed, Activations)
        assert_same_codes(passed, codes, torch.arange(rows))


def _quantized(x: Tensor) -> Activations:
    return quantize_activations(x, MatrixPath.FP8, KOrder.PLAIN)


@pytest.mark.parametrize("few", [16, 64, None])
def test_products_leave_activated_with_the_same_bits(few: int | None) -> None:
    """Experts of many, few and no rows, as after SwiGLU by itself; the order of K too.  Twice:
    programs count who is done where those before them did."""
    prepared = native_gate_up(_fp4(5, 512, 512))
    assert isinstance(prepared, HopperWeight) and prepared.is_gated
    weight = recast_weight(prepared) if few is None else prepared
    tile = WIDE_FP8 if few is None else hopper_tile(weight, few)
    ids = torch.tensor([0] * 300 + [1] * 40 + [3] * 129 + [4] * 256, device=_CUDA)[:, None]
    weights = torch.rand(len(ids), 1, device=_CUDA)
    x = _rows(len(ids), 512)
    x[5], x[320, 7] = float("nan"), float("inf")
    rows, acts = order_tokens(x, ids, 5, tile.rows, MatrixPath.FP8, weight.order)
    assert fits_gate(weight, tile, len(rows.pair))
    hidden = linear_rows_gluon(acts, weight, rows, tile)
    for order in (KOrder.PLAIN, KOrder.FRAGMENT):
        actual = gated_rows_gluon(acts, weight, tile, order, _LIMIT, rows, weights)
        expected = swiglu_of_rows(
            hidden, _LIMIT, weights, rows, MatrixPath.FP8, order, alternate=True
        )
        assert_same_codes(actual, expected, (rows.pair >= 0).nonzero()[:, 0])


@pytest.mark.parametrize("tokens", [1, 60, 200, 300, 2000])
def test_gated_linear(tokens: int) -> None:
    """The shared expert, in every tile, against halves that do not alternate."""
    packed, down = _fp8(4608, 5120), native_weight(_fp8(5120, 2304))
    x = _rows(tokens, 5120)
    actual = gated_linear(x, native_gate_up(packed), _LIMIT, down)
    hidden = quantized_linear(x, native_weight(packed))
    expected = swiglu_for_triton(hidden, _LIMIT, down)
    assert isinstance(actual, Activations)
    assert_same_codes(actual, expected, torch.arange(tokens))


def assert_same_codes(actual: Activations, expected: Activations, rows: Tensor) -> None:
    assert actual.scales is not None and expected.scales is not None
    rows = rows.to(_CUDA)
    values = [acts.values.view(torch.uint8)[rows] for acts in (actual, expected)]
    assert_bitwise_equal(values[0], values[1], "codes")
    assert_bitwise_equal(actual.scales[:, rows], expected.scales[:, rows], "scales")


def test_a_row_of_nan_harms_no_other() -> None:
    native, x = native_weight(_fp8(256, 512)), _rows(70, 512)
    whole = quantized_linear(x, native)
    x[2] = float("nan")
    harmed = quantized_linear(x, native)
    assert harmed[2].isnan().all()
    rest = [row for row in range(70) if row != 2]
    assert_bitwise_equal(harmed[rest], whole[rest])


@pytest.mark.parametrize("tokens", [1, 33, 300, 2000])
def test_experts(tokens: int) -> None:
    gate_up, down = _fp4(12, 4608, 5120), _fp4(12, 5120, 2304)
    x, ids = _rows(tokens, 5120), _choices(tokens, 6, 12)
    weights = torch.rand(tokens, 6, device=_CUDA)
    native = native_experts(gate_up, down)
    assert isinstance(native[0], HopperWeight)
    actual = experts(x, ids, weights, *native, _LIMIT)
    expected = experts_reference(x, ids, weights, gate_up, down, _LIMIT)
    assert float(relative_error(actual, expected).max()) < 2e-2
    recast = [recast_weight(weight) for weight in native if isinstance(weight, HopperWeight)]
    same = experts(x, ids, weights, recast[0], recast[1], _LIMIT)
    assert_bitwise_equal(same, actual, "weights recast to E4M3")


def test_a_token_has_the_same_bits_in_any_batch() -> None:
    """Batches that choose every tile, in another order, twice."""
    native = native_experts(_fp4(16, 1024, 1024), _fp4(16, 1024, 512))
    x, ids = _rows(4000, 1024), _choices(4000, 6, 16)
    weights = torch.rand(4000, 6, device=_CUDA)

    def run(rows: Tensor) -> Tensor:
        return experts(x[rows], ids[rows], weights[rows], *native, _LIMIT)

    everyone = torch.arange(4000, device=_CUDA)
    whole = run(everyone)
    for count in (1, 2, 7, 64, 150, 256, 1500):
        assert_bitwise_equal(run(everyone[:count]), whole[:count], f"{count} tokens")
    shuffled = torch.randperm(4000, device=_CUDA)
    assert_bitwise_equal(run(shuffled), whole[shuffled], "shuffled")
    assert_bitwise_equal(run(everyone), whole, "second run")


def test_experts_of_other_ranks_add_nothing() -> None:
    gate_up, down = _fp4(3, 512, 256), _fp4(3, 256, 256)
    x = _rows(5, 256)
    ids = torch.tensor([[-1, 0], [-1, -1], [0, 3], [0, 2], [-1, 2]], device=_CUDA)
    weights = torch.rand(5, 2, device=_CUDA)
    actual = experts(x, ids, weights, *native_experts(gate_up, down), _LIMIT)
    absent = (ids < 0) | (ids > 2)
    expected = experts_reference(
        x, ids.masked_fill(absent, 0), weights.masked_fill(absent, 0), gate_up, down, _LIMIT
    )
    assert not actual[1].any()
    assert float(relative_error(actual, expected)[[0, 2, 3, 4]].max()) < 2e-2


@pytest.mark.parametrize("tokens", [1, 300])
def test_tokens_without_any_expert(tokens: int) -> None:
    native = native_experts(_fp4(3, 512, 256), _fp4(3, 256, 256))
    ids = torch.full((tokens, 2), -1, dtype=torch.int64, device=_CUDA)
    out = experts(_rows(tokens, 256), ids, torch.rand(tokens, 2, device=_CUDA), *native, _LIMIT)
    assert_bitwise_equal(out, torch.zeros_like(out))


def test_experts_in_a_graph() -> None:
    """Captured with one routing, replayed with another: nothing in it depends on the routing."""
    native = native_experts(_fp4(8, 512, 256), _fp4(8, 256, 256))
    x, ids, weights = _rows(64, 256), _choices(64, 2, 8), torch.rand(64, 2, device=_CUDA)
    experts(x, ids, weights, *native, _LIMIT)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = experts(x, ids, weights, *native, _LIMIT)
    ids.fill_(7)
    x.normal_()
    graph.replay()
    assert_bitwise_equal(out, experts(x, ids, weights, *native, _LIMIT))


def test_what_does_not_fit_is_named() -> None:
    native = native_weight(_fp8(64, 256))
    with pytest.raises(TensorError, match=r"x: expected .* \[\.\.\., 256\]"):
        quantized_linear(torch.zeros(2, 128, dtype=torch.bfloat16, device=_CUDA), native)
    gate_up, down = native_experts(_fp4(3, 512, 256), _fp4(3, 256, 256))
    with pytest.raises(TensorError, match="ids: expected"):
        ids = torch.zeros(2, 2, dtype=torch.int32, device=_CUDA)
        experts(_rows(2, 256), ids, torch.zeros(2, 2, device=_CUDA), gate_up, down, _LIMIT)


@pytest.mark.parametrize("tokens", [16, 300, 1500, 5000])
def test_experts_of_two_ranks_have_the_bits_of_one(tokens: int) -> None:
    """The whole exchange, both ranks on this GPU one after the other: heads, copies, tokens read
    where they landed, results stored where they belong."""
    width, inner, members, choices = 512, 256, 12, 3
    gate_up = _fp4(members, 2 * inner, width)
    down = _fp4(members, width, inner)
    halves = [slice(0, members // 2), slice(members // 2, members)]
    x, ids = _rows(2 * tokens, width), _choices(2 * tokens, choices, members)
    weights = torch.rand(2 * tokens, choices, device=_CUDA)
    everyone = native_experts(gate_up, down)
    wanted = experts(x, ids, weights, *everyone, 10.0)
    layout = ExchangeLayout(
        num_ranks=2, capacity=tokens + 1, num_choices=choices, hidden_size=width, block=128
    )
    memory = torch.zeros(2, layout.num_bytes, dtype=torch.uint8, device=_CUDA)
    homes = torch.tensor([own[layout.results :].data_ptr() for own in memory], device=_CUDA)
    number = torch.arange(members, device=_CUDA)[:, None]
    table = (number // 6, number % 6, torch.ones(members, dtype=torch.int64, device=_CUDA))
    sent = []
    for rank in range(2):
        buffers = Buffers(
            layout=layout, rank=rank, own=memory[rank], peers={1 - rank: memory[1 - rank]},
            homes=homes, rounds=torch.zeros(1, dtype=torch.int32, device=_CUDA),
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
