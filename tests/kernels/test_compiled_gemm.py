"""GEMM and MoE kernels compiled for GPUs that are not here: instructions, registers, spills.

Run as a program (with a compute capability), it compiles and prints what came out as JSON: tests
compile in a process of its own because this one may have set Triton to interpret.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

_MATRIX_STEP = r"(?:wgmma\.mma_async|tcgen05\.mma|mma\.sync)\S+"


@cache
def _compiled(arch: int) -> dict[str, dict[str, Any]]:
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    env["TRITON_DEFAULT_FP_FUSION"] = "1"
    command = [sys.executable, "-P", __file__, str(arch)]
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    compiled: dict[str, dict[str, Any]] = json.loads(run.stdout)
    return compiled


def _steps(arch: int, name: str) -> str:
    kernel = _compiled(arch)[name]
    assert kernel["stack_bytes"] <= 32, (name, kernel)  # 8 registers
    return " ".join(kernel["steps"])


@pytest.mark.parametrize("name", ["fp4 x 16", "fp4 x 64", "fp4 x 128", "fp8 x 16", "fp8 x 128"])
def test_packed_weights_meet_fp8_tensor_cores_on_hopper(name: str) -> None:
    tokens = int(name.split()[-1])
    assert _steps(90, name) == f"wgmma.mma_async.sync.aligned.m64n{tokens}k32.f32.e4m3.e4m3"


@pytest.mark.parametrize("name", ["plain x 128", "fp8 in groups x 128"])
def test_bf16_tensor_cores_on_hopper(name: str) -> None:
    assert _steps(90, name) == "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16"


@pytest.mark.parametrize("name", ["quantise", "swiglu", "route", "order", "tiles", "sum"])
def test_the_other_kernels_do_not_spill(name: str) -> None:
    assert _steps(90, name) == ""


@pytest.mark.parametrize("arch", [100, pytest.param(103, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["fp4 x 16", "fp4 x 128", "fp8 x 128"])
def test_block_scaled_tensor_cores_on_blackwell(name: str, arch: int) -> None:
    steps = _steps(arch, name)
    assert re.fullmatch(r"tcgen05\.mma\.cta_group::1\.kind::mxf8f6f4\.block_scale\.\S+", steps)


@pytest.mark.parametrize("arch", [100, pytest.param(103, marks=pytest.mark.slow)])
def test_bf16_tensor_cores_on_blackwell(arch: int) -> None:
    assert _steps(arch, "plain x 128") == "tcgen05.mma.cta_group::1.kind::f16"


def _compile_all(arch: int) -> dict[str, dict[str, Any]]:
    import triton.language as tl

    from deepinfer.kernels.aot import compile_kernel
    from deepinfer.kernels.gemm import activations, triton_kernel
    from deepinfer.kernels.gemm.matrix_path import MatrixPath, tile_for
    from deepinfer.kernels.moe import pair_order
    from deepinfer.kernels.moe import triton_kernel as moe

    compiled: dict[str, dict[str, Any]] = {}

    def add(name: str, kernel: Any, types: str, constants: dict[str, Any], **options: Any) -> None:
        """``types``: one word an argument; "n" an i32, "n16" one that is a multiple of 16."""
        names = [arg for arg in kernel.arg_names if arg not in constants]
        words = dict(zip(names, types.split(), strict=True))
        result = compile_kernel(
            kernel,
            {arg: "i32" if word in ("n", "n16") else word for arg, word in words.items()},
            constants,
            arch=arch,
            multiples_of_16=[arg for arg, word in words.items() if word == "n16"],
            **options,
        )
        steps = sorted(set(re.findall(_MATRIX_STEP, result.ptx)))
        compiled[name] = {"steps": steps, "stack_bytes": result.stack_bytes}

    packed = MatrixPath.FP8 if arch == 90 else MatrixPath.SCALED

    def add_gemm(name: str, rows: int, weight: int, path: MatrixPath, source: int) -> None:
        tile = tile_for(rows, 32768, 1, path)
        x = "*bf16 *bf16" if path is MatrixPath.DECODED else "*fp8e4nv *fp32"
        x = "*fp8e4nv *u8" if path is MatrixPath.SCALED else x
        w = "*u8 *i32" if weight else "*bf16 *bf16"
        sizes = "n n16 n16 n16 n16 n16 n16 n16 n16 n16 n"
        constants = {
            "FORMAT": weight, "PATH": int(path), "SOURCE": source, "DTYPE": tl.bfloat16,
            "NATIVE": True, "ROUND": False, "EVEN_K": True, "WIDTH": tile.width,
            "TOKENS": tile.tokens,
        }  # fmt: skip
        add(
            f"{name} x {tile.tokens}", triton_kernel._gemm_kernel,
            f"{x} {w} *bf16 *i32 *i32 *i32 *i32 {sizes}", constants,
            num_warps=tile.num_warps, num_stages=tile.num_stages,
        )  # fmt: skip

    for rows in (16, 64, 1000):
        if arch == 90 or rows != 64:
            add_gemm("fp4", rows, 2, packed, 6)
    for rows in (16, 1000) if arch == 90 else (1000,):
        add_gemm("fp8", rows, 1, packed, -1)
    add_gemm("plain", 1000, 0, MatrixPath.DECODED, -1)
    if arch == 90:
        add_gemm("fp8 in groups", 1000, 1, MatrixPath.DECODED, -1)
        layout = {"BLOCK": 128, "PATH": 1, "SPLIT": True, "NATIVE": True}
        add("quantise", activations._quantize_kernel, "*i32 *u8 *fp32 n16 n16 n16 n16", layout)
        add(
            "swiglu", moe._swiglu_kernel, "*i32 *fp32 *i32 *i32 *u8 *fp32 n16 n16 n16 fp32",
            {**layout, "WEIGHT": 2},
        )  # fmt: skip
        route = {
            "CHOSEN": 6,
            "CHOSEN_PADDED": 8,
            "EXPERTS": 512,
            "PARTS": 4,
            "NORMALIZE": True,
            "ROWS": 4,
        }
        add("route", moe._route_kernel, "*fp32 *fp32 *i64 *fp32 n n n16 fp32", route)
        add("order", pair_order._order_kernel, "*i64 *i32 *i32 n", {"BLOCK": 1024})
        tiles = {"TOKENS": 64, "EXPERTS": 512, "TILES": pair_order._TILES}
        add("tiles", pair_order._tiles_kernel, "*i32 *i32 *i32 n16 n", tiles)
        add("sum", moe._sum_kernel, "*bf16 *i64 *fp32 n16 n16 n", {"COLUMNS": 1024})
    return compiled


if __name__ == "__main__":
    print(json.dumps(_compile_all(int(sys.argv[1]))))
