"""GEMM and MoE kernels compiled for GPUs that are not here: instructions, registers, spills.

Run as a program (with a compute capability, and "all" for those of slow tests, too), it compiles
and prints what came out as JSON: tests compile in a process of its own because this one may have
set Triton to interpret.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

_INSTRUCTIONS = ("QGMMA", "HGMMA", "UTMALDG", "WARPGROUP.ARRIVE")
_MATRIX_STEP = r"(?:wgmma\.mma_async|tcgen05\.mma|mma\.sync)\S+"

# Each size of tile with one of its ends, and each end with one size: what is compiled by default.
# The others take minutes.
_PACKED = ["fp4 x 16", "fp4 x 128", "fp8 x 128"]
_MORE_PACKED = ["fp4 x 64", "fp8 x 16"]
_DECODED = ["plain x 128", "fp8 in groups x 128"]
_ROWS = [
    "quantise", "quantise pairs", "swiglu", "choice", "page tokens", "count", "place tokens",
    "place counted tokens", "place pairs", "sum",
]  # fmt: skip
_GLUON = [
    "narrow fp4 x 16", "narrow gated fp4 x 32", "narrow returning fp4 x 64", "narrow fp4 x 128",
    "narrow gated fp8 x 32", "narrow returning fp8 x 64", "wide gated fp8 128 x 256",
    "wide returning fp8 128 x 128", "wide fp4 256 x 128", "wide in groups fp8 192 x 128",
]  # fmt: skip
_MORE_GLUON = [
    "narrow gated fp4 x 16", "narrow returning fp4 x 16", "narrow fp4 x 32",
    "narrow returning fp4 x 32", "narrow fp4 x 64", "narrow gated fp4 x 64",
    "narrow gated fp4 x 128", "narrow returning fp4 x 128", "narrow fp8 x 32",
    "narrow returning fp8 x 32", "narrow fp8 x 64", "narrow gated fp8 x 64", "wide fp8 128 x 256",
    "wide returning fp8 128 x 256", "wide fp8 128 x 128", "wide in groups fp8 128 x 128",
    "wide returning fp4 256 x 128", "wide fp8 192 x 128",
]  # fmt: skip
_SLIM = "wide fp8 128 x 80"
_JOINT = "wide joint fp8 128 x 256"
_BF16 = ["wide bf16 to bf16", "wide bf16 to fp32, added", "wide bf16 to i16"]
_MORE_BF16 = ["wide bf16 to fp32"]
_PARTS = ["parts bf16 64 x 192", "parts bf16 128 x 64"]
_MORE_PARTS = ["parts bf16 64 x 64", "parts bf16 128 x 192"]
_FEW = {*_PACKED, *_DECODED, *_ROWS, *_GLUON, _SLIM, _JOINT, *_BF16, *_PARTS}


@cache
def _compiled(arch: int, every: bool = False) -> dict[str, dict[str, Any]]:
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    env["TRITON_DEFAULT_FP_FUSION"] = "1"
    command = [sys.executable, "-P", __file__, str(arch), *["all"] * every]
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    compiled: dict[str, dict[str, Any]] = json.loads(run.stdout)
    return compiled


def _kernel(arch: int, name: str) -> dict[str, Any]:
    """One that fits: registers, and shared memory."""
    kernel = _compiled(arch, every=name not in _FEW)[name]
    assert kernel["stack_bytes"] <= 32, (name, kernel)  # 8 registers
    assert kernel["shared_bytes"] <= 227 * 1024
    return kernel


def _steps(arch: int, name: str) -> str:
    return " ".join(_kernel(arch, name)["steps"])


def _cases(few: list[str], more: list[str]) -> list[Any]:
    return [*few, *(pytest.param(name, marks=pytest.mark.slow) for name in more)]


@pytest.mark.parametrize("name", _cases(_PACKED, _MORE_PACKED))
def test_packed_weights_meet_fp8_tensor_cores_on_hopper(name: str) -> None:
    tokens = int(name.split()[-1])
    assert _steps(90, name) == f"wgmma.mma_async.sync.aligned.m64n{tokens}k32.f32.e4m3.e4m3"


@pytest.mark.parametrize("name", _DECODED)
def test_bf16_tensor_cores_on_hopper(name: str) -> None:
    assert _steps(90, name) == "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16"


@pytest.mark.parametrize("name", _ROWS)
def test_the_other_kernels_do_not_spill(name: str) -> None:
    assert _steps(90, name) == ""


@pytest.mark.parametrize("name", _cases(_GLUON, _MORE_GLUON))
def test_gluon_forms_on_hopper(name: str) -> None:
    """FP8 tensor cores, tiles by TMA, and what the sizes were chosen for: the registers fit."""
    tokens = int(name.split()[-1]) if name.startswith("narrow") else 128
    assert _steps(90, name) == f"wgmma.mma_async.sync.aligned.m64n{tokens}k32.f32.e4m3.e4m3"
    kernel = _kernel(90, name)
    assert kernel["QGMMA"] > 0 and kernel["UTMALDG"] > 0
    # Products that wait for each other would each have an instruction of their own for it.
    assert kernel["WARPGROUP.ARRIVE"] <= kernel["QGMMA"] // 4


def test_slim_tiles_on_hopper() -> None:
    """80 columns are two products."""
    steps = [f"wgmma.mma_async.sync.aligned.m64n{n}k32.f32.e4m3.e4m3" for n in (16, 64)]
    assert _steps(90, _SLIM).split() == steps
    kernel = _kernel(90, _SLIM)
    assert kernel["UTMALDG"] > 0 and kernel["WARPGROUP.ARRIVE"] <= kernel["QGMMA"] // 4


def test_weights_that_are_read_once_are_the_first_to_leave() -> None:
    """Of a ring's copies those of the weight, where few programs share it."""
    hints = {name: kernel["hints"] for name, kernel in _compiled(90).items()}
    for name in hints:
        if name.startswith("narrow"):  # before the loop and in it
            assert hints[name] == (6 if "fp4" in name else 4)
    assert hints[_SLIM] == 2
    assert hints["wide returning fp8 128 x 128"] == 1
    assert hints["wide gated fp8 128 x 256"] == 0


def test_both_products_of_the_same_rows_on_hopper() -> None:
    bf16, fp8 = _steps(90, _JOINT).split()
    assert bf16 == "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16"
    assert fp8 == "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3"
    kernel = _kernel(90, _JOINT)
    assert kernel["WARPGROUP.ARRIVE"] <= (kernel["QGMMA"] + kernel["HGMMA"]) // 4


@pytest.mark.parametrize("name", _cases(_BF16, _MORE_BF16))
def test_wide_bf16_on_hopper(name: str) -> None:
    assert _steps(90, name) == "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16"
    assert _kernel(90, name)["UTMALDG"] > 0


@pytest.mark.parametrize("name", _cases(_PARTS, _MORE_PARTS))
def test_parts_of_bf16_on_hopper(name: str) -> None:
    """Added up in registers, too."""
    rows = name.split()[2]
    assert _steps(90, name) == f"wgmma.mma_async.sync.aligned.m64n{rows}k16.f32.bf16.bf16"
    assert _kernel(90, name)["stack_bytes"] == 0


@pytest.mark.parametrize("arch", [100, pytest.param(103, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["fp4 x 16", "fp4 x 128", "fp8 x 128"])
def test_block_scaled_tensor_cores_on_blackwell(name: str, arch: int) -> None:
    steps = _steps(arch, name)
    assert re.fullmatch(r"tcgen05\.mma\.cta_group::1\.kind::mxf8f6f4\.block_scale\.\S+", steps)


@pytest.mark.parametrize("arch", [100, pytest.param(103, marks=pytest.mark.slow)])
def test_bf16_tensor_cores_on_blackwell(arch: int) -> None:
    assert _steps(arch, "plain x 128") == "tcgen05.mma.cta_group::1.kind::f16"


Add = Callable[..., None]  # (name, kernel, types, constants, **options)


def _compile(arch: int, every: bool) -> dict[str, dict[str, Any]]:
    from deepinfer.kernels.aot import compile_kernel, disassemble

    compiled: dict[str, dict[str, Any]] = {}

    def add(
        name: str, kernel: Any, types: str | list[str], constants: dict[str, Any], **options: Any
    ) -> None:
        """``types``: one word an argument; "n" an i32, "n16" one that is a multiple of 16."""
        if not every and name not in _FEW:
            return
        names = [arg for arg in kernel.arg_names if arg not in constants]
        listed = types.split() if isinstance(types, str) else types
        words = dict(zip(names, listed, strict=True))
        result = compile_kernel(
            kernel,
            {arg: "i32" if word in ("n", "n16") else word for arg, word in words.items()},
            constants,
            arch=arch,
            multiples_of_16=[arg for arg, word in words.items() if word == "n16"],
            **options,
        )
        steps = sorted(set(re.findall(_MATRIX_STEP, result.ptx)))
        compiled[name] = {
            "steps": steps,
            "stack_bytes": result.stack_bytes,
            "shared_bytes": result.shared_bytes,
            "hints": result.ptx.count("L2::cache_hint"),
        }
        if name.startswith(("narrow", "wide")):
            sass = disassemble(result.cubin)
            compiled[name] |= {word: sass.count(word) for word in _INSTRUCTIONS}

    _add_portable(arch, add)
    if arch == 90:
        _add_rows(add)
        _add_narrow(add)
        _add_wide(add)
        _add_joint(add)
        _add_triple(add)
        _add_slim(add)
        _add_wide_bf16(add)
    return compiled


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
    choice = {"CHOSEN": 6, "CHOSEN_PADDED": 8, "FIRST": 256, "REST": 128, "NORMALIZE": True}
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
            {**place, **layout, "PER_TOKEN": 6, "CHOICES": 8, "SLOTS": slots, "WIDTH": 64},
            num_warps=8,
        )  # fmt: skip
    add(
        "place pairs", triton_pairs.place_pairs_kernel, f"{ordered} n n16 n n",
        {**place, "PLACED_EXPERTS": 4, "CHUNKS": 1}, num_warps=8,
    )  # fmt: skip
    add("sum", moe._sum_kernel, "*bf16 *i32 *fp32 n16 n", {"COLUMNS": 1024, "BF16": False})


def _add_narrow(add: Add) -> None:
    from deepinfer.kernels.aot import descriptor
    from deepinfer.kernels.gemm import gluon_narrow

    alike = {"GROUPED": True, "GROUP_COLUMNS": 0, "ONCE": True}
    for form, tokens, stages in [
        (2, 16, 2),
        (2, 32, 2),
        (2, 64, 2),
        (2, 128, 2),
        (1, 32, 3),
        (1, 64, 3),
    ]:
        rows = [descriptor("fp8e4nv", tokens, 256), descriptor("fp32", 2, tokens)]
        w = descriptor("fp8e4nv", 64, 256) if form == 1 else descriptor("i32", 64, 32)
        ends = ["*bf16", "*fp32", "*i32", "*i32", "*i16", "*fp32", "*fp32", "*i32", "*i64"]
        ends += ["n", "n16", "n16", "n", "fp32", "n"]
        constants = {"FORMAT": form, "TOKENS": tokens, "STAGES": stages}
        for kind, gate, choices in (("", -1, 0), ("gated ", 2, 0), ("returning ", -1, 6)):
            add(
                f"narrow {kind}fp{8 // form} x {tokens}",
                gluon_narrow.narrow_kernel, [*rows, w, descriptor("i32", 128), *ends],
                {**constants, "PAGED": not choices, "GATE": gate, "CHOICES": choices, **alike},
            )  # fmt: skip


def _add_wide(add: Add) -> None:
    from deepinfer.kernels.aot import descriptor
    from deepinfer.kernels.gemm import gluon_wide, hopper_tile

    for tile in hopper_tile.WIDE:
        form, count, columns = tile.form, tile.rows, tile.columns
        rows = [descriptor("fp8e4nv", count, 128), descriptor("fp32", count)]
        w = descriptor("fp8e4nv", columns, 128) if form == 1 else descriptor("i32", columns, 32)
        steps = descriptor("i32", columns // 64, 128)
        ends = ["*fp32", "*i32", "*i32", "*i32", "*fp32", "*fp32", "*i64"]
        ends += ["n", "n16", "n16", "n", "n", "fp32", "n"]
        constants = {"FORMAT": form, "GROUPED": True, **tile.constants}
        constants["ONCE"] = tile is hopper_tile.SQUARE_FP8
        out, gated = descriptor("bf16", 64, 128), descriptor("i16", 64, 64)
        kinds = [("", -1, out, 0), ("returning ", -1, out, 6), ("gated ", 2, gated, 0)]
        for kind, gate, out, choices in kinds if tile is hopper_tile.WIDE_FP8 else kinds[:2]:
            add(
                f"wide {kind}fp{8 // form} {count} x {columns}",
                gluon_wide.wide_kernel, [*rows, w, steps, out, *ends],
                {**constants, "GATE": gate, "CHOICES": choices, "GROUP_COLUMNS": 0},
            )  # fmt: skip
        if tile is hopper_tile.SQUARE_FP8:
            constants |= {"GROUPED": False, "GATE": -1, "CHOICES": 0, "GROUP_COLUMNS": 1024}
            add(
                "wide in groups fp8 128 x 128",
                gluon_wide.wide_kernel, [*rows, w, steps, gated, *ends], constants,
            )  # fmt: skip


def _add_joint(add: Add) -> None:
    from deepinfer.kernels.aot import descriptor
    from deepinfer.kernels.gemm import gluon_joint, hopper_tile

    tile = hopper_tile.WIDE_FP8
    boxes = [("fp8e4nv", 128, 128), ("fp32", 128), ("fp8e4nv", 256, 128), ("i16", 64, 64)]
    plain = [("bf16", 128, 64), ("bf16", 64, 64), ("fp32", 32, 64)]
    types = [*(descriptor(*box) for box in boxes), "*fp32", "*fp32"]
    types += [*(descriptor(*box) for box in plain), "*i32", "n", "n"]
    types += ["n", "n16", "n16", "n", "n", "fp32", "n", "n16", "n16"]
    constants = {"STAGES": tile.stages, "BAND": 8, "REGISTERS": tile.registers, "GATE": 0}
    constants["PARTS"] = 4
    add(_JOINT, gluon_joint.joint_kernel, types, constants)


def _add_triple(add: Add) -> None:
    from deepinfer.kernels.aot import descriptor
    from deepinfer.kernels.gemm import gluon_triple, hopper_tile

    tile = hopper_tile.TRIPLE
    tiles = [descriptor("fp8e4nv", 64, 128), descriptor("fp32", 64)]
    tiles += [descriptor("fp8e4nv", 128, 128)]
    ends = ["*fp32", "*i32", "*i32", "*i32", "*fp32", "n", "n", "n16", "n16", "n", "n"]
    constants = {"STAGES": tile.stages, "BAND": 8, "REGISTERS": tile.registers}
    for kind, out, experts, columns in (
        ("", descriptor("bf16", 64, 128), True, 0),
        ("in groups ", descriptor("i16", 64, 64), False, 1024),
    ):
        add(
            f"wide {kind}fp8 192 x 128", gluon_triple.triple_kernel, [*tiles, out, *ends],
            {**constants, "GROUPED": experts, "GROUP_COLUMNS": columns},
        )  # fmt: skip


def _add_slim(add: Add) -> None:
    from deepinfer.kernels.aot import descriptor
    from deepinfer.kernels.gemm import gluon_slim, hopper_tile

    tile = hopper_tile.SLIM
    boxes = [("fp8e4nv", 128, 128), ("fp32", 128), ("fp8e4nv", 64, 128), ("fp8e4nv", 16, 128)]
    boxes += [("bf16", 64, 64), ("bf16", 64, 16)]
    types = [*(descriptor(*box) for box in boxes), "*fp32", "n", "n16", "n16", "n"]
    constants = {"STAGES": tile.stages, "BAND": 8, "RUN": 4, "REGISTERS": tile.registers}
    constants["ONCE"] = True
    add("wide fp8 128 x 80", gluon_slim.slim_kernel, types, constants)


def _add_wide_bf16(add: Add) -> None:
    from deepinfer.kernels.aot import descriptor
    from deepinfer.kernels.gemm import gluon_parts, gluon_plain, parts_tiles

    for dtype, width, adds in [("bf16", 128, 0), ("fp32", 64, 0), ("fp32", 64, 1), ("i16", 64, 0)]:
        tiles = [descriptor("bf16", 128, 64), descriptor("bf16", 256, 64)]
        sizes = ["*fp32", "*fp32", "n", "n", "n16", "n16", "n16", "n"]
        add(
            f"wide bf16 to {dtype}{', added' * adds}", gluon_plain.plain_kernel,
            [*tiles, descriptor(dtype, 64, width), *sizes],
            {"STAGES": 4, "BAND": 8, "ADDS": bool(adds)},
        )  # fmt: skip
    for tile in parts_tiles.TILES:
        tiles = [descriptor("bf16", tile.rows, 64), descriptor("bf16", 64, 64)]
        add(
            f"parts bf16 {tile.rows} x {64 * tile.pieces}", gluon_parts.parts_kernel,
            [*tiles, descriptor("fp32", tile.out_rows, 64), "*i32", "n", "n", "n", "n16", "n16"],
            {"PARTS": 1, "ADDED": 4, "PIECES": tile.pieces, "STAGES": tile.stages},
        )  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(_compile(int(sys.argv[1]), every="all" in sys.argv)))
