"""Sparse attention on a GPU against the references, at full size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deepinfer.bench.kernels.attention import random_case
from deepinfer.kernels.attention import sparse_attention
from deepinfer.kernels.attention.reference import sparse_attention_reference
from deepinfer.kernels.rope import rope_frequencies, rope_table
from deepinfer.kernels.rope.reference import apply_rope_reference

pytestmark = pytest.mark.gpu


def _assert_near(actual: Tensor, expected: Tensor) -> None:
    a, e = actual.double(), expected.double()
    cosine = float(1 - 2 * (a * e).sum() / ((a * a).sum() + (e * e).sum()))
    worst = float((a - e).abs().max())
    message = f"cosine distance {cosine:.1e}, largest error {worst:.1e}"
    assert cosine < 5e-6 and float(((a - e).abs() - e.abs() * 2.01 / 128).max()) < 1e-3, message


@pytest.mark.parametrize("absent", (0.0, 0.3))
@pytest.mark.parametrize("pieces", (None, 64, 320))
def test_lists(absent: float, pieces: int | None) -> None:
    case = random_case(37, absent=absent)
    _assert_near(sparse_attention(**case, piece_keys=pieces), sparse_attention_reference(**case))


def test_rotated() -> None:
    case = random_case(37, absent=0.1)
    positions = torch.randint(0, 1 << 20, (37,))
    rope = tuple(x.cuda() for x in rope_table(rope_frequencies(64, 1.6e5), positions))
    turned = case | {"q": apply_rope_reference(case["q"], *rope)}
    expected = apply_rope_reference(sparse_attention_reference(**turned), *rope, inverse=True)
    _assert_near(sparse_attention(**case, rope=rope), expected)


def test_bits() -> None:
    case = random_case(512, absent=0.2)
    per_query = ("q", "window_index", "main_index")
    for pieces in (None, 128):
        whole = sparse_attention(**case, piece_keys=pieces)
        for count in (1, 2, 7, 64, 256):
            part = case | {name: case[name][:count] for name in per_query}
            out = sparse_attention(**part, piece_keys=pieces)
            assert torch.equal(out, whole[:count]), f"{count} queries differ from those of 512"
        again = sparse_attention(**case, piece_keys=pieces)
        assert torch.equal(again, whole), "a second run differs"


def test_empty() -> None:
    case = random_case(4)
    case["window_index"].fill_(-1)
    case["main_index"].fill_(-1)
    for pieces in (None, 64):
        assert not sparse_attention(**case, piece_keys=pieces).any(), "not zero"
