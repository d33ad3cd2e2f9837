"""Kernels in Gluon of bf16 weights, compiled for SM90 without a GPU."""

from __future__ import annotations

import pytest
from compiled_kernels import Add, Compiled, cases

_BF16 = ["wide bf16 to fp32, added"]
_MORE_BF16 = ["wide bf16 to bf16", "wide bf16 to i16", "wide bf16 to fp32"]
_PARTS = ["parts bf16 128 x 64"]
_MORE_PARTS = ["parts bf16 64 x 192", "parts bf16 64 x 64", "parts bf16 128 x 192"]
FEW = {*_BF16, *_PARTS}
COMPILED = Compiled(__file__, FEW)


@pytest.mark.parametrize("name", cases(_BF16, _MORE_BF16))
def test_wide_bf16_on_hopper(name: str) -> None:
    assert COMPILED.steps(90, name) == "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16"
    assert COMPILED.kernel(90, name)["UTMALDG"] > 0


@pytest.mark.parametrize("name", cases(_PARTS, _MORE_PARTS))
def test_parts_of_bf16_on_hopper(name: str) -> None:
    """Added up in registers, too."""
    rows = name.split()[2]
    assert COMPILED.steps(90, name) == f"wgmma.mma_async.sync.aligned.m64n{rows}k16.f32.bf16.bf16"
    assert COMPILED.kernel(90, name)["stack_bytes"] == 0


def add_cases(arch: int, add: Add) -> None:
    from deepinfer.kernels.aot import descriptor
    from deepinfer.kernels.gemm import gluon_parts, gluon_plain, parts_tiles

    for dtype, width, adds in [("bf16", 128, 0), ("fp32", 64, 0), ("fp32", 64, 1), ("i16", 64, 0)]:
        tiles = [descriptor("bf16", 128, 64), descriptor("bf16", 256, 64)]
        sizes = ["*fp32", "*fp32", "n", "n", "n16", "n16", "n16", "n"]
        add(
            f"wide bf16 to {dtype}{', added' * adds}", gluon_plain.plain_kernel,
            [*tiles, descriptor(dtype, 64, width), *sizes],
            {"STAGES": 4, "GROUP_M": 8, "HAS_ADDEND": bool(adds)},
        )  # fmt: skip
    for tile in parts_tiles.TILES:
        tiles = [descriptor("bf16", tile.rows, 64), descriptor("bf16", 64, 64)]
        add(
            f"parts bf16 {tile.rows} x {64 * tile.subtiles}", gluon_parts.parts_kernel,
            [*tiles, descriptor("fp32", tile.out_rows, 64), "*i32", "n", "n", "n", "n16", "n16"],
            {"PARTS": 1, "ADDED": 4, "SUBTILES": tile.subtiles, "STAGES": tile.stages},
        )  # fmt: skip
