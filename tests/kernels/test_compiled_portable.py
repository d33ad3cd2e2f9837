"""GEMM and MoE kernels in Triton, compiled for GPUs that are not here: instructions and spills."""

from __future__ import annotations

import re

import pytest
from compiled_kernels import Add, Compiled, cases

_PACKED = ["fp4 x 16"]
_MORE_PACKED = ["fp4 x 64", "fp4 x 128", "fp8 x 16", "fp8 x 128"]
_DECODED = ["plain x 128"]
_MORE_DECODED = ["fp8 in groups x 128"]
_SCALED = ["fp4 x 16"]
_MORE_SCALED = ["fp4 x 128", "fp8 x 128"]
_ROWS = [
    "quantise", "quantise pairs", "swiglu", "choice", "page tokens", "count", "place tokens",
    "place counted tokens", "place pairs", "sum",
]  # fmt: skip
FEW = {*_PACKED, *_DECODED, *_ROWS}
COMPILED = Compiled(__file__, FEW)


@pytest.mark.parametrize("name", cases(_PACKED, _MORE_PACKED))
def test_packed_weights_meet_fp8_tensor_cores_on_hopper(name: str) -> None:
    tokens = int(name.split()[-1])
    assert COMPILED.steps(90, name) == f"wgmma.mma_async.sync.aligned.m64n{tokens}k32.f32.e4m3.e4m3"


@pytest.mark.parametrize("name", cases(_DECODED, _MORE_DECODED))
def test_bf16_tensor_cores_on_hopper(name: str) -> None:
    assert COMPILED.steps(90, name) == "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16"


@pytest.mark.parametrize("name", _ROWS)
def test_the_other_kernels_do_not_spill(name: str) -> None:
    assert COMPILED.steps(90, name) == ""


@pytest.mark.parametrize("arch", [100, pytest.param(103, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", cases(_SCALED, _MORE_SCALED))
def test_block_scaled_tensor_cores_on_blackwell(name: str, arch: int) -> None:
    steps = COMPILED.steps(arch, name)
    assert re.fullmatch(r"tcgen05\.mma\.cta_group::1\.kind::mxf8f6f4\.block_scale\.\S+", steps)


@pytest.mark.parametrize("arch", [100, pytest.param(103, marks=pytest.mark.slow)])
def test_bf16_tensor_cores_on_blackwell(arch: int) -> None:
    assert COMPILED.steps(arch, "plain x 128") == "tcgen05.mma.cta_group::1.kind::f16"


def add_cases(arch: int, add: Add) -> None:
    _add_portable(arch, add)
    if arch == 90:
        _add_rows(add)


def _add_portable(arch: int, add: Add) -> None:
    import torch
    import triton.language as tl

    from deepinfer.kernels.gemm import triton_kernel
    from deepinfer.kernels.gemm.matrix_path import MatrixPath, tile_for

    packed = MatrixPath.FP8 if arch == 90 else MatrixPath.SCALED

    def add_gemm(name: str, rows: int, weight: int, path: MatrixPath, grouped: bool) -> None:
        tile = tile_for(rows, 32768, 1, path, torch.device("cuda"))
        x = "*bf16 *bf16" if path is MatrixPath.DECODED else "*fp8e4nv *fp32"
        x = "*fp8e4nv *u8" if path is MatrixPath.SCALED else x
        w = "*u8 *i32" if weight else "*bf16 *bf16"
        sizes = "n n16 n16 n16 n16 n16 n16 n16 n16 n16 n16 n"
        constants = {
            "FORMAT": weight, "PATH": int(path), "GROUPED": grouped, "DTYPE": tl.bfloat16,
            "NATIVE": True, "ROUND": False, "EVEN_K": True, "WIDTH": tile.width,
            "TOKENS": tile.tokens,
        }  # fmt: skip
        add(
            f"{name} x {tile.tokens}", triton_kernel._gemm_kernel,
            f"{x} {w} *bf16 *i32 {sizes}", constants,
            num_warps=tile.num_warps, num_stages=tile.num_stages,
        )  # fmt: skip

    for rows in (16, 64, 1000):
        if arch == 90 or rows != 64:
            add_gemm("fp4", rows, 2, packed, True)
    for rows in (16, 1000) if arch == 90 else (1000,):
        add_gemm("fp8", rows, 1, packed, False)
    add_gemm("plain", 1000, 0, MatrixPath.DECODED, False)
    if arch == 90:
        add_gemm("fp8 in groups", 1000, 1, MatrixPath.DECODED, False)


def _add_rows(add: Add) -> None:
    """What quantises, activates, chooses and orders rows."""
    from deepinfer.kernels.gemm import activations
    from deepinfer.kernels.moe import (
        pair_order,
        triton_choice,
        triton_pages,
        triton_pairs,
        triton_swiglu,
    )
    from deepinfer.kernels.moe import triton_kernel as moe

    layout = {"NUM_BLOCKS": 40, "BLOCK": 128, "PATH": 1, "ORDER": 1, "NATIVE": True}
    types = "*i32 n {} *fp32 n16 n16"
    tiled = {"PAIRS": 2560, "TILE": 16}
    add("quantise", activations.quantize_kernel, types.format("*u8"), layout | tiled)
    layout["ORDER"] = 2
    add("quantise pairs", activations.quantize_kernel, types.format("*i16"), layout | tiled)
    add(
        "swiglu", triton_swiglu.swiglu_kernel, "*i32 *fp32 *i32 *i32 n *i16 *fp32 n16 fp32",
        {**layout, "NUM_BLOCKS": 18, "PAIRS": 1152, "TILE": 16, "WEIGHT": 2, "ALTERNATE": True},
    )  # fmt: skip
    choice = {"TOP_K": 6, "TOP_K_PADDED": 8, "FIRST": 256, "REST": 128, "NORMALIZE": True}
    choice |= {"PARTS": 4, "IS_FULL": True}
    add(
        "choice", triton_choice.choice_kernel, "*fp32 *fp32 *i64 *fp32 *i32 *i32 n16 n n16 fp32",
        choice | {"IS_GPU": True, "SLOTS": True}, num_warps=1,
    )  # fmt: skip
    add(
        "page tokens", triton_pages.page_tokens_kernel,
        "*fp32 *fp32 *i64 *fp32 *i32 *i32 *i32 *i32 *i32 *i32 *i32 "
        "*i32 *i16 *fp32 n16 n16 n16 n n16 n n16 fp32",
        {**choice, **layout, "EXPERTS": 512, "TILE_ROWS": 16, "WIDTH": 8}, num_warps=1,
    )  # fmt: skip
    add(
        "count", triton_pairs.count_kernel, "*i64 *i32 n n16 n",
        {"EXPERTS": 16, "PAIRS": 1024, "CHUNKS": 1}, num_warps=8,
    )  # fmt: skip
    place = {"TILE_ROWS": 256, "EXPERTS": 512, "BLOCK_PAIRS": 1024, "PAIRS": 256}
    ordered = "*i64 *i32 *i32 *i32 *i32 *i32"
    for name, slots in [("place tokens", True), ("place counted tokens", False)]:
        add(
            name, pair_order.place_tokens_kernel,
            f"*i64 {ordered} *i32 *i16 *fp32 n16 n16 n16 n n16 n n",
            {**place, **layout, "TOP_K": 6, "TOP_K_PADDED": 8, "SLOTS": slots, "WIDTH": 64},
            num_warps=8,
        )  # fmt: skip
    add(
        "place pairs", triton_pairs.place_pairs_kernel, f"{ordered} n n16 n n",
        {**place, "PLACED_EXPERTS": 4, "CHUNKS": 1}, num_warps=8,
    )  # fmt: skip
    add("sum", moe._sum_kernel, "*bf16 *i32 *fp32 n16 n", {"COLUMNS": 1024, "BF16": False})
