"""Sparse attention: Triton against the reference, and against itself in other batches."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.attention.reference import sparse_attention_reference
from deepinfer.kernels.attention.triton_kernel import sparse_attention_triton
from deepinfer.kernels.quant import pack_main_rows, pack_window_rows
from deepinfer.kernels.rope import rope_frequencies, rope_table
from deepinfer.kernels.rope.reference import apply_rope_reference
from deepinfer.kernels.testing import assert_bitwise_equal, assert_close

Case = dict[str, Tensor | float | None]


def _case(
    device: torch.device, num_queries: int, heads: int, width: int, window: int, picks: int
) -> Case:
    """Random rows and lists; a third of the listed keys are absent.

    Values are small enough for the rounding of P to bf16, relative to different maxima in kernel
    and reference, to stay within the tolerances.
    """

    def index(rows: int, count: int) -> Tensor:
        listed = torch.randint(0, rows, (num_queries, count))
        return listed.masked_fill(torch.rand(num_queries, count) < 0.3, -1).to(device)

    return {
        "q": torch.randn(num_queries, heads, width).bfloat16().to(device),
        "window_rows": pack_window_rows(torch.randn(200, width) / 4).to(device),
        "window_index": index(200, window),
        "main_rows": pack_main_rows(torch.randn(300, width) / 4).to(device) if picks else None,
        "main_index": index(300, picks) if picks else None,
        "sink": torch.randn(heads, device=device),
        "scale": width**-0.5,
    }


def _check(actual: Tensor, expected: Tensor, cosine: float = 5e-6) -> None:
    """Within an absolute, a relative and a cosine distance of the whole."""
    assert_close(actual, expected, atol=1e-3, rtol=2.01 / 128)
    a, e = actual.double().flatten(), expected.double().flatten()
    norm = a.square().sum() + e.square().sum()
    assert not norm or float(1 - 2 * (a @ e) / norm) < cosine


@pytest.mark.parametrize("head_axis", [0, 1])
@pytest.mark.parametrize(
    "num_queries, heads, width, window, picks",
    [
        (2, 64, 512, 128, 512),  # the released model
        (1, 64, 512, 128, 0),  # a layer without compressed keys
        (2, 8, 96, 20, 30),  # rows of an odd number of bytes
        (5, 3, 64, 7, 65),  # nothing is a multiple of anything
        (2, 20, 128, 64, 1),
        (1, 96, 64, 133, 100),  # two blocks of heads
        (0, 4, 64, 8, 8),
    ],
)
def test_matches_reference(
    num_queries: int,
    heads: int,
    width: int,
    window: int,
    picks: int,
    head_axis: int,
    device: torch.device,
) -> None:
    case = _case(device, num_queries, heads, width, window, picks)
    _check(sparse_attention_triton(**case, head_axis=head_axis), sparse_attention_reference(**case))


@pytest.mark.parametrize("piece_keys, head_axis", [(None, 0), (64, 1), (128, 0)])
def test_pieces_and_rotation(piece_keys: int | None, head_axis: int, device: torch.device) -> None:
    case = _case(device, 3, 5, 128, 100, 150)
    positions = torch.tensor([0, 77, 123_456])
    rope = tuple(table.to(device) for table in rope_table(rope_frequencies(64, 1e4), positions))
    actual = sparse_attention_triton(**case, rope=rope, piece_keys=piece_keys, head_axis=head_axis)
    turned = case | {"q": apply_rope_reference(case["q"], *rope)}
    expected = apply_rope_reference(sparse_attention_reference(**turned), *rope, inverse=True)
    _check(actual, expected)


@pytest.mark.parametrize("piece_keys", [None, 64])
def test_queries_do_not_see_each_other(piece_keys: int | None, device: torch.device) -> None:
    case = _case(device, 3, 4, 64, 70, 10)
    together = sparse_attention_triton(**case, piece_keys=piece_keys)
    for query in range(3):
        own = {name: case[name][query : query + 1] for name in ("q", "window_index", "main_index")}
        alone = sparse_attention_triton(**case | own, piece_keys=piece_keys)
        assert_bitwise_equal(alone[0], together[query], f"query {query}")


@pytest.mark.parametrize("piece_keys", [None, 64])
def test_a_query_without_keys_gives_zero(piece_keys: int | None, device: torch.device) -> None:
    case = _case(device, 2, 4, 64, 70, 70)
    case["window_index"][0] = -1
    case["main_index"][0] = -1
    case["sink"][1] = -math.inf
    out = sparse_attention_triton(**case, piece_keys=piece_keys)
    assert_bitwise_equal(out[0], torch.zeros_like(out[0]))
    _check(out[1], sparse_attention_reference(**case)[1])


def test_rows_that_are_not_listed_are_not_read(device: torch.device) -> None:
    case = _case(device, 2, 4, 64, 20, 20)
    expected = sparse_attention_triton(**case)
    for rows, index in (("window_rows", "window_index"), ("main_rows", "main_index")):
        unlisted = torch.ones(len(case[rows]), dtype=torch.bool)
        unlisted[case[index][case[index] >= 0].cpu()] = False
        case[rows][unlisted.to(device)] = 0x7F  # NaN as value and as scale
    assert_bitwise_equal(sparse_attention_triton(**case), expected)


def test_sinks(device: torch.device) -> None:
    case = _case(device, 1, 3, 64, 20, 20)
    case["sink"] = torch.tensor([math.inf, -math.inf, 80.0], device=device)
    out = sparse_attention_triton(**case)
    assert_bitwise_equal(out[0, 0], torch.zeros_like(out[0, 0]), "infinite sink")
    _check(out, sparse_attention_reference(**case))


@pytest.mark.parametrize("piece_keys, head_axis", [(None, 0), (None, 1), (64, 0), (128, 1)])
@pytest.mark.parametrize("heads, window, picks", [(5, 100, 150), (3, 7, 0), (20, 64, 1)])
def test_lse(
    heads: int,
    window: int,
    picks: int,
    piece_keys: int | None,
    head_axis: int,
    device: torch.device,
) -> None:
    """That of the reference, inf without keys, whatever the sinks are; the results keep their
    bits."""
    case = _case(device, 3, heads, 64, window, picks)
    case["window_index"][1] = -1
    if picks:
        case["main_index"][1] = -1
    case["sink"][:2] = torch.tensor([math.inf, -math.inf])
    options = {"piece_keys": piece_keys, "head_axis": head_axis}
    lse, expected = torch.full((2, 3, heads), math.nan, device=device)
    out = sparse_attention_triton(**case, **options, lse=lse)
    assert_bitwise_equal(out, sparse_attention_triton(**case, **options))
    sparse_attention_reference(**case, lse=expected)
    assert_close(lse, expected, atol=1e-6, rtol=8.01 / 65536)
    assert bool((lse[1] == math.inf).all())


@pytest.mark.parametrize("piece_keys", [None, 64])
def test_halves_of_the_keys_merge_by_their_lse(
    piece_keys: int | None, device: torch.device
) -> None:
    """Window rows and compressed rows apart; of one query the latter are absent."""
    case = _case(device, 3, 5, 64, 70, 90)
    case["main_index"][1] = -1
    whole_lse, *sums = torch.full((3, 3, 5), math.nan, device=device)
    whole = sparse_attention_triton(**case, lse=whole_lse)
    alone = case | {"sink": torch.full_like(case["sink"], -math.inf)}
    parts = []
    for name, lse in zip(("window_index", "main_index"), sums, strict=True):
        absent = {name: torch.full_like(case[name], -1)}
        parts.append(sparse_attention_triton(**alone | absent, piece_keys=piece_keys, lse=lse))
    listed = torch.stack(sums).masked_fill(torch.stack(sums) == math.inf, -math.inf)
    assert_close(listed.logsumexp(0), whole_lse, atol=1e-6, rtol=8.01 / 65536)
    shares = torch.softmax(torch.cat([listed, case["sink"].expand(1, 3, 5)]), 0)[:2]
    merged = (shares[..., None] * torch.stack(parts).float()).sum(0).bfloat16()
    # Five roundings to bf16 add about 1.3e-6 each: weights of keys, twice; halves; both results.
    _check(merged, whole, cosine=1e-5)


@pytest.mark.parametrize("piece_keys, head_axis", [(None, 0), (None, 1), (64, 1), (128, 0)])
@pytest.mark.parametrize("heads, width, eps", [(5, 128, 1e-20), (3, 96, 0.5), (20, 64, 1e-6)])
def test_norm_of_queries(
    heads: int,
    width: int,
    eps: float,
    piece_keys: int | None,
    head_axis: int,
    device: torch.device,
) -> None:
    """Of queries before their rotation, which does not change it."""
    case = _case(device, 3, heads, width, 100, 50)
    case["q"] *= torch.rand(3, heads, 1, device=device) * 30
    case["q"][1, 0] = 0
    positions = torch.tensor([0, 77, 123_456])
    rope = tuple(table.to(device) for table in rope_table(rope_frequencies(64, 1e4), positions))
    turned = case | {"q": apply_rope_reference(case["q"], *rope)}
    lse, expected_lse = torch.full((2, 3, heads), math.nan, device=device)
    out = sparse_attention_triton(
        **case, rope=rope, piece_keys=piece_keys, head_axis=head_axis, lse=lse, q_norm_eps=eps
    )
    expected = sparse_attention_reference(**turned, lse=expected_lse, q_norm_eps=eps)
    _check(out, apply_rope_reference(expected, *rope, inverse=True))
    # Rotated queries are rounded: their mean square is a little another.
    assert_close(lse, expected_lse, atol=1e-3, rtol=1e-3)


def test_extreme_values(device: torch.device) -> None:
    case = _case(device, 2, 4, 64, 20, 20)
    case["window_rows"] = pack_window_rows(torch.randn(200, 64) * 1e3).to(device)
    case["main_rows"] = pack_main_rows(torch.randn(300, 64) * 2688).to(device)  # scale 448, code 6
    case["main_rows"][7] = 0
    case["main_rows"][8, :32] = 0x88  # minus zero
    _check(sparse_attention_triton(**case), sparse_attention_reference(**case))


@pytest.mark.parametrize("pool, num_rows", [("window", 10_000_000), ("main", 18_000_000)])
def test_addresses_beyond_4_gib(pool: str, num_rows: int, device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("allocates 5 GiB")
    case = _case(device, 2, 16, 512, 64, 64)
    near, index = case[f"{pool}_rows"], case[f"{pool}_index"]
    rows = torch.empty((num_rows, near.shape[1]), dtype=torch.uint8, device=device)
    shift = len(rows) - len(near)
    rows[shift:] = near
    moved = torch.where(index < 0, -1, index + shift)
    far = sparse_attention_triton(**case | {f"{pool}_rows": rows, f"{pool}_index": moved})
    assert_bitwise_equal(far, sparse_attention_triton(**case))


@pytest.mark.parametrize("piece_keys", [None, 64])
def test_more_queries_than_an_axis_of_a_grid_takes(
    piece_keys: int | None, device: torch.device
) -> None:
    if device.type != "cuda":
        pytest.skip("the interpreter runs one program after the other")
    case = _case(device, 100, 4, 64, 70, 10)
    few = sparse_attention_triton(**case, piece_keys=piece_keys)
    many = {
        name: case[name].repeat(700, *[1] * (case[name].dim() - 1))
        for name in ("q", "window_index", "main_index")
    }
    out = sparse_attention_triton(**case | many, piece_keys=piece_keys)
    assert_bitwise_equal(out.view(700, *few.shape), few.expand(700, *few.shape))


def test_wrong_tensors_are_named(device: torch.device) -> None:
    case = _case(device, 2, 4, 64, 8, 8)
    with pytest.raises(
        TensorError, match=r"window_index: expected contiguous torch.int64 \[2, any\]"
    ):
        sparse_attention_triton(**case | {"window_index": case["window_index"].int()})
    with pytest.raises(TensorError, match="main_rows"):
        sparse_attention_triton(**case | {"main_rows": case["main_rows"][:, :-1]})
    with pytest.raises(TensorError, match="q: expected bf16"):
        sparse_attention_triton(**case | {"q": case["q"].float()})
    with pytest.raises(TensorError, match=r"lse: expected contiguous torch.float32 \[2, 4\]"):
        sparse_attention_triton(**case, lse=torch.zeros(2, 3, device=device))
