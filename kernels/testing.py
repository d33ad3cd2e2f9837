"""Comparisons for tests that report where two tensors differ and by how much."""

from __future__ import annotations

import torch
from torch import Tensor


def assert_bitwise_equal(actual: Tensor, expected: Tensor, what: str = "tensor") -> None:
    """Same shape, dtype and values (NaN equals NaN).

    Raises: AssertionError with the number of differences and the first one.
    """
    _assert_same_form(actual, expected, what)
    differs = actual != expected
    if actual.is_floating_point():
        differs &= ~(actual.isnan() & expected.isnan())
    if bool(differs.any()):
        first = tuple(int(i) for i in differs.nonzero()[0])
        raise AssertionError(
            f"{what}: {int(differs.sum())} of {differs.numel()} values differ; first at {first}: "
            f"{actual[first].item()!r}, expected {expected[first].item()!r}"
        )


def assert_close(
    actual: Tensor, expected: Tensor, *, atol: float, rtol: float, what: str = "tensor"
) -> None:
    """``|actual - expected| <= atol + rtol * |expected|`` everywhere, non-finite in the same
    places.

    Raises: AssertionError with the position of the largest excess, and the RMS error.
    """
    _assert_same_form(actual, expected, what)
    a, e = actual.double(), expected.double()
    if not torch.equal(a.isfinite(), e.isfinite()):
        raise AssertionError(f"{what}: non-finite values at different places")
    error = torch.where(e.isfinite(), (a - e).abs(), 0.0)
    excess = error - (atol + rtol * e.abs().nan_to_num())
    if error.numel() and float(excess.max()) > 0:
        worst = tuple(int(i) for i in torch.unravel_index(excess.argmax(), excess.shape))
        raise AssertionError(
            f"{what}: {int((excess > 0).sum())} of {excess.numel()} values out of tolerance; worst "
            f"at {worst}: {actual[worst].item()!r}, expected {expected[worst].item()!r}; "
            f"RMS error {float(error.square().mean().sqrt()):.3e}, {atol=}, {rtol=}"
        )


def relative_error(actual: Tensor, expected: Tensor) -> Tensor:
    """L2 error of each row over the L2 norm of the expected row: [..., D] -> [...] f64."""
    a, e = actual.double(), expected.double()
    error: Tensor = torch.linalg.vector_norm(a - e, dim=-1)
    norm: Tensor = torch.linalg.vector_norm(e, dim=-1)
    return error / norm.clamp(min=1e-300)


def calc_diff(x: Tensor, y: Tensor) -> float:
    """``1 - 2 <x, y> / (<x, x> + <y, y>)``; infinite if that is NaN.

    Source: the similarity measure of DeepGEMM's tests.
    """
    a, b = x.double(), y.double()
    diff = float(1 - 2 * (a * b).sum() / ((a * a).sum() + (b * b).sum()))
    return diff if diff == diff else float("inf")


def _assert_same_form(actual: Tensor, expected: Tensor, what: str) -> None:
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        raise AssertionError(
            f"{what}: {actual.dtype} {tuple(actual.shape)}, "
            f"expected {expected.dtype} {tuple(expected.shape)}"
        )
