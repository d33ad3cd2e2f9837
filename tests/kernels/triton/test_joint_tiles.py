"""For which rows the router's product runs beside the shared expert's gates and ups: as measured on
an H200."""

from __future__ import annotations

import pytest

from deepinfer.kernels.gemm.joint_tiles import is_joint_faster

_PROGRAMS = 132


@pytest.mark.parametrize("rows", [400, 512, 640, 768, 1536, 3072, 4096, 4864])
def test_empty_places_in_the_last_round_are_enough(rows: int) -> None:
    assert is_joint_faster(rows, 4608, 384, 5120, 4, _PROGRAMS)


@pytest.mark.parametrize(
    "rows", [1, 16, 48, 256, 384, 1024, 1280, 2048, 2560, 3456, 8192, 12288, 16384]
)
def test_both_apart_are_faster(rows: int) -> None:
    """Other tiles take less, or the last round leaves too few programs for the router."""
    assert not is_joint_faster(rows, 4608, 384, 5120, 4, _PROGRAMS)
