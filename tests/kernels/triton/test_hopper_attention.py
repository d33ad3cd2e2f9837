"""The Hopper form of sparse attention against the reference, and against itself in other batches.

The 300 queries list their 1,800 rows so often that these are decoded before the kernel; the few
queries leave that to the kernel.

Runs on an H100 or H200 (``pytest -m gpu``); ``test_hopper_compile.py`` compiles it anywhere.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from deepinfer.kernels.attention.reference import sparse_attention_reference
from deepinfer.kernels.gemm.activations import Activations, quantize_activations
from deepinfer.kernels.gemm.k_order import KOrder
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.launch import is_hopper
from deepinfer.kernels.quant import pack_main_rows, pack_window_rows
from deepinfer.kernels.rope import rope_frequencies, rope_table
from deepinfer.kernels.rope.reference import apply_rope_reference
from deepinfer.kernels.testing import assert_bitwise_equal, assert_close

pytestmark = pytest.mark.gpu
Case = dict[str, Tensor | float | None]
CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def _needs_hopper() -> None:
    if not (torch.cuda.is_available() and is_hopper(CUDA)):
        pytest.skip("no Hopper GPU")


def _attend(case: Case, **options: object) -> Tensor:
    from deepinfer.kernels.attention.gluon_launch import sparse_attention_gluon

    return sparse_attention_gluon(**case, **options)


def _case(queries: int, window: int = 128, picks: int = 512, absent: float = 0.3) -> Case:
    def index(count: int) -> Tensor:
        listed = torch.randint(0, 900, (queries, count), device=CUDA)
        return listed.masked_fill_(torch.rand(queries, count, device=CUDA) < absent, -1)

    return {
        "q": torch.randn(queries, 64, 512, device=CUDA).bfloat16(),
        "window_rows": pack_window_rows(torch.randn(900, 512, device=CUDA) / 4),
        "window_index": index(window),
        "main_rows": pack_main_rows(torch.randn(900, 512, device=CUDA) / 4) if picks else None,
        "main_index": index(picks) if picks else None,
        "sink": torch.randn(64, device=CUDA),
        "scale": 512**-0.5,
    }


def _rope(width: int, queries: int) -> tuple[Tensor, ...]:
    positions = torch.randint(0, 1 << 20, (queries,))
    return tuple(x.to(CUDA) for x in rope_table(rope_frequencies(width, 1e4), positions))


def _check(actual: Tensor, expected: Tensor, atol: float = 1e-3) -> None:
    assert_close(actual, expected, atol=atol, rtol=2.01 / 128)
    a, e = actual.double().flatten(), expected.double().flatten()
    norm = a.square().sum() + e.square().sum()
    assert not norm or float(1 - 2 * (a @ e) / norm) < 5e-6


@pytest.mark.parametrize("pieces", [None, 128, 384])
@pytest.mark.parametrize(
    "queries, window, picks",
    [
        (2, 128, 512),
        (300, 128, 512),
        (300, 128, 0),
        (300, 133, 100),
        (5, 128, 0),
        (5, 133, 100),
        (3, 7, 1),
        (0, 128, 512),
    ],
)
def test_matches_reference(queries: int, window: int, picks: int, pieces: int | None) -> None:
    case = _case(queries, window, picks)
    _check(_attend(case, piece_keys=pieces), sparse_attention_reference(**case))


@pytest.mark.parametrize("pieces", [None, 128])
@pytest.mark.parametrize("width", [64, 32])
def test_rotation(width: int, pieces: int | None) -> None:
    case, rope = _case(7), _rope(width, 7)
    turned = case | {"q": apply_rope_reference(case["q"], *rope)}
    expected = apply_rope_reference(sparse_attention_reference(**turned), *rope, inverse=True)
    _check(_attend(case, rope=rope, piece_keys=pieces), expected)


@pytest.mark.parametrize("pieces", [None, 128])
def test_same_bits_in_any_batch_and_every_run(pieces: int | None) -> None:
    case = _case(300)
    whole = _attend(case, piece_keys=pieces)
    for count in (1, 2, 7, 64, 256, 300):
        part = {name: case[name][:count] for name in ("q", "window_index", "main_index")}
        assert_bitwise_equal(_attend(case | part, piece_keys=pieces), whole[:count], f"{count=}")


@pytest.mark.parametrize("pieces", [None, 64, 128])
@pytest.mark.parametrize("width", [64, 32, 0])
@pytest.mark.parametrize("queries", [0, 1, 5, 300])
def test_leaves_quantised_with_the_same_bits(queries: int, width: int, pieces: int | None) -> None:
    """As quantised afterwards; also of NaN, of no key, and of one query by itself."""
    case = _case(queries)
    options = {"rope": _rope(width, queries) if width else None, "piece_keys": pieces}
    if queries > 2:
        case["q"][1, 2, 3] = math.nan
        case["window_index"][2], case["main_index"][2] = -1, -1
    plain = _attend(case, **options)
    expected = quantize_activations(plain.flatten(1), MatrixPath.FP8, KOrder.PLAIN)
    actual = _attend(case, **options, quantized=True)
    assert isinstance(actual, Activations)
    assert (actual.path, actual.order) == (expected.path, expected.order)
    _same_codes(actual, expected, queries)
    if queries:
        part = {name: case[name][:1] for name in ("q", "window_index", "main_index")}
        rope = options["rope"] and tuple(x[:1] for x in options["rope"])
        one = _attend(case | part, rope=rope, piece_keys=pieces, quantized=True)
        _same_codes(one, actual, 1)


def _same_codes(actual: Activations, expected: Activations, rows: int) -> None:
    assert actual.scales is not None and expected.scales is not None
    codes = [acts.values[:rows].view(torch.uint8) for acts in (actual, expected)]
    assert_bitwise_equal(codes[0], codes[1], "codes")
    assert_bitwise_equal(actual.scales[:, :rows], expected.scales[:, :rows], "scales")


@pytest.mark.parametrize("pieces", [None, 128])
def test_queries_without_keys_and_sinks(pieces: int | None) -> None:
    case = _case(3)
    case["window_index"][0], case["main_index"][0] = -1, -1
    case["sink"][:2] = torch.tensor([math.inf, -math.inf])
    out = _attend(case, piece_keys=pieces)
    assert not out[0].any()
    assert not out[:, 0].any()
    _check(out, sparse_attention_reference(**case))


@pytest.mark.parametrize("pieces", [None, 64, 128])
@pytest.mark.parametrize("queries, picks", [(3, 512), (300, 512), (300, 0), (5, 100)])
@pytest.mark.parametrize("quantized", [False, True])
def test_lse(queries: int, picks: int, pieces: int | None, quantized: bool) -> None:
    """That of the reference, inf without keys, whatever the sinks are; the results keep their
    bits."""
    case, options = _case(queries, 128, picks), {"piece_keys": pieces, "quantized": quantized}
    case["window_index"][1] = -1
    if picks:
        case["main_index"][1] = -1
    case["sink"][:2] = torch.tensor([math.inf, -math.inf])
    lse, expected = torch.full((2, queries, 64), math.nan, device=CUDA)
    out, plain = _attend(case, **options, lse=lse), _attend(case, **options)
    if isinstance(out, Activations):
        _same_codes(out, plain, queries)
    else:
        assert_bitwise_equal(out, plain)
    sparse_attention_reference(**case, lse=expected)
    assert_close(lse, expected, atol=1e-6, rtol=8.01 / 65536)
    assert bool((lse[1] == math.inf).all())


@pytest.mark.parametrize("pieces", [None, 64, 128])
@pytest.mark.parametrize("queries", [3, 300])
@pytest.mark.parametrize("width", [64, 32, 0])
def test_norm_of_queries(width: int, queries: int, pieces: int | None) -> None:
    case, rope = _case(queries), _rope(width, queries) if width else None
    case["q"] *= torch.rand(queries, 64, 1, device=CUDA) * 30
    case["q"][1, 0] = 0
    turned = case if rope is None else case | {"q": apply_rope_reference(case["q"], *rope)}
    expected = sparse_attention_reference(**turned, q_norm_eps=1e-6)
    if rope is not None:
        expected = apply_rope_reference(expected, *rope, inverse=True)
    out = _attend(case, rope=rope, piece_keys=pieces, q_norm_eps=1e-6)
    _check(out, expected)
    one = {name: case[name][:1] for name in ("q", "window_index", "main_index")}
    rope = rope and tuple(x[:1] for x in rope)
    alone = _attend(case | one, rope=rope, piece_keys=pieces, q_norm_eps=1e-6)
    assert_bitwise_equal(alone, out[:1])


def test_rows_that_are_not_listed_are_not_read() -> None:
    case = _case(4)
    expected = _attend(case)
    for rows, index in (("window_rows", "window_index"), ("main_rows", "main_index")):
        unlisted = torch.ones(900, dtype=torch.bool, device=CUDA)
        unlisted[case[index][case[index] >= 0]] = False
        case[rows][unlisted] = 0x7F  # NaN as value and as scale
    assert_bitwise_equal(_attend(case), expected)


@pytest.mark.parametrize("pieces", [None, 128])
@pytest.mark.parametrize("pool, num_rows", [("window", 10_000_000), ("main", 18_000_000)])
def test_addresses_beyond_4_gib(pool: str, num_rows: int, pieces: int | None) -> None:
    case = _case(2)
    near, index = case[f"{pool}_rows"], case[f"{pool}_index"]
    rows = torch.empty((num_rows, near.shape[1]), dtype=torch.uint8, device=CUDA)
    shift = len(rows) - len(near)
    rows[shift:] = near
    moved = torch.where(index < 0, -1, index + shift)
    far = _attend(case | {f"{pool}_rows": rows, f"{pool}_index": moved}, piece_keys=pieces)
    assert_bitwise_equal(far, _attend(case, piece_keys=pieces))


@pytest.mark.parametrize("queries", [17_000, 70_000])
def test_more_queries_than_an_axis_of_a_grid_takes(queries: int) -> None:
    """Of 70,000, the values are more than 2**31."""
    case = _case(250)
    few = _attend(case)
    _check(few, sparse_attention_reference(**case))
    times = queries // len(few)
    many = {
        name: case[name].repeat(times, *[1] * (case[name].dim() - 1))
        for name in ("q", "window_index", "main_index")
    }
    out = _attend(case | many)
    for number, part in enumerate(out.split(len(few))):
        assert torch.equal(part, few), f"queries from {number * len(few)} differ"


@pytest.mark.parametrize("queries", [4, 300])
@pytest.mark.parametrize("pieces", [None, 128])
def test_extreme_values(queries: int, pieces: int | None) -> None:
    """The largest codes and scales, rows of zeros and of minus zeros.  Scores are thousands: their
    last places, which depend on the order of sums, move what a key counts by a hundredth."""
    case = _case(queries)
    case["window_rows"] = pack_window_rows(torch.randn(900, 512, device=CUDA) * 1e3)
    case["main_rows"] = pack_main_rows(torch.randn(900, 512, device=CUDA) * 2688)
    case["main_rows"][7] = 0
    case["main_rows"][8, :256] = 0x88
    expected = sparse_attention_reference(**case)
    largest = float(expected.abs().max())
    _check(_attend(case, piece_keys=pieces), expected, atol=2e-3 * largest)


def test_a_captured_decode_shares_no_scratch_with_a_prefill() -> None:
    """Both hold sums or decoded rows beside their results; one is replayed after the other ran."""
    decode, prefill = _case(6), _case(300)
    expected, whole = _attend(decode, piece_keys=128), _attend(prefill)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = _attend(decode, piece_keys=128)
    for _ in range(2):
        assert_bitwise_equal(_attend(prefill), whole, "prefill")
        poison = torch.full((1 << 26,), float("nan"), device=CUDA)
        out.zero_()
        graph.replay()
        assert_bitwise_equal(out, expected, "decode")
        del poison
