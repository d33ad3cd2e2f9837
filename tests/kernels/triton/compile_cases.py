"""Compiles the kernels at the released model's sizes for one target and prints JSON.

    python compile_cases.py 90 [name ...]

A script of its own because the kernels of the test process are interpreted.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any, NamedTuple

import triton.language as tl

from deepinfer.kernels.aot import compile_kernel
from deepinfer.kernels.attention.triton_kernel import attention_kernel, combine_kernel
from deepinfer.kernels.compressor.triton_kernel import pool_kernel
from deepinfer.kernels.dspark.triton_kernel import confidence_kernel
from deepinfer.kernels.dspark.triton_verify import kept_kernel, verify_kernel
from deepinfer.kernels.engram.triton_kernel import gate_kernel, hash_kernel, lookup_kernel
from deepinfer.kernels.exchange.triton_arrivals import gather_kernel
from deepinfer.kernels.exchange.triton_kernel import (
    copy_blocks_kernel,
    end_round_kernel,
    heads_kernel,
    receive_tokens_kernel,
    send_rows_kernel,
)
from deepinfer.kernels.hyper_connection.triton_finish import finish_kernel
from deepinfer.kernels.hyper_connection.triton_kernel import mix_kernel, stream_kernel
from deepinfer.kernels.indexer.triton_few import few_kernel
from deepinfer.kernels.indexer.triton_kernel import score_kernel
from deepinfer.kernels.indexer.triton_maxima import segment_best_kernel
from deepinfer.kernels.indexer.triton_rows import pool_rows_kernel
from deepinfer.kernels.indexer.triton_select import select_kernel
from deepinfer.kernels.rows.triton_kernel import row_kernel
from deepinfer.kernels.rows.triton_projection import projection_kernel
from deepinfer.kernels.sampling.triton_bitmask import mask_kernel
from deepinfer.kernels.sampling.triton_kernel import noise_kernel, sample_kernel
from deepinfer.kernels.sampling.triton_penalties import penalize_kernel

INSTRUCTIONS = ("wgmma.mma_async", "tcgen05.mma", "mma.sync", "kind::mxf4.block_scale")


class Case(NamedTuple):
    """Types of the arguments in order (constants left out), constants, warps; sizes that 16 divides
    at the released model's widths; stages."""

    kernel: Any
    types: str
    constants: dict[str, Any]
    num_warps: int = 4
    fp_fusion: bool = True
    multiples_of_16: tuple[str, ...] = ()
    num_stages: int = 2


def cases(arch: int) -> dict[str, Case]:
    return {
        **_attention(arch),
        **_rows(arch),
        **_indexer(arch),
        **_streams(arch),
        **_engram(),
        **_sampling(),
        **_exchange(),
    }


def _activations(arch: int) -> dict[str, Any]:
    """How the products of ``arch`` want their quantised operand."""
    is_hopper = arch == 90
    return {
        "BLOCK": 128 if is_hopper else 32,
        "PATH": 1 if is_hopper else 2,
        "ORDER": 0,
        "NATIVE": True,
    }


def _scales(arch: int) -> str:
    return "*fp32" if arch == 90 else "*u8"


def _attention(arch: int) -> dict[str, Case]:
    attention = {
        "H": 64,
        "HALF": 256,
        "ROTARY": 0,
        "TILE_PAIRS": 256,
        "TILE_H": 64,
        "TILE_K": 64,
        "DOT": tl.bfloat16,
    }
    has_tensor_memory = arch != 90
    attention |= {"HEAD_AXIS": int(has_tensor_memory), "ROTARY": 32 * has_tensor_memory}
    attention_types = (
        "*i32 *i16 *u8 *i64 *u8 *i64 *fp32 *fp32 *fp32 *i32 *fp32 *fp32 fp32 i32 i32 i32"
    )
    if not has_tensor_memory:  # 64 heads of 512 are in Gluon there
        attention |= {"HALF": 128, "TILE_PAIRS": 128}
    return {
        "attention": Case(
            attention_kernel,
            attention_types,
            attention | {"WHOLE": True, "lse_ptr": None, "q_norm_eps": None},
            8,
            num_stages=1 if has_tensor_memory else 2,
        ),
        "combine": Case(
            combine_kernel,
            "*fp32 *fp32 *fp32 *fp32 *fp32 *i32 i32",
            {"H": 64, "HALF": 256, "ROTARY": 32, "TILE_PAIRS": 256, "lse_ptr": None},
        ),
    }


def _rows(arch: int) -> dict[str, Case]:
    rows_types = "*i32 *i32 *fp32 *fp32 *i64 {} *u8 i32 i32 i32 i32 i32 fp32"
    row = {
        "D": 512,
        "ROTARY": 32,
        "INVERSE": False,
        "HAS_NORM": True,
        "WEIGHT_BF16": True,
        "HAS_ROWS": True,
        "FP8_PAIRS": True,
        "TILE_ROWS": 8,
        "TILE_PAIRS": 256,
        "NATIVE": True,
    }
    norm = row | {
        "D": 5120,
        "ROTARY": 0,
        "HAS_ROWS": False,
        "FORM": 0,
        "TILE_ROWS": 1,
        "TILE_PAIRS": 4096,
    }
    block = _activations(arch)["BLOCK"]
    projection = {"WIDTH": 512, "ROTARY": 32, "FP8_PAIRS": True, "TILE_ROWS": 4}
    projection |= _activations(arch) | {"TILE_PAIRS": 256, "D": 1280, "BLOCKS": 2048 // block}
    projection |= {"NUM_BLOCKS": 1280 // block}
    return {
        "norm": Case(row_kernel, rows_types.format("*i32"), norm, fp_fusion=False),
        "window_row": Case(
            row_kernel, rows_types.format("*i16"), row | {"FORM": 1}, fp_fusion=False
        ),
        "index_row": Case(row_kernel, rows_types.format("*u8"), row | {"FORM": 2}, fp_fusion=False),
        "main_row": Case(row_kernel, rows_types.format("*u8"), row | {"FORM": 3}, fp_fusion=False),
        "projection": Case(
            projection_kernel,
            f"*i32 *i32 *i32 *i16 {_scales(arch)} i32 "
            "*i32 *i32 *fp32 *fp32 *i64 *i16 *u8 i32 i32 i32 i32 fp32",
            projection,
            fp_fusion=False,
            multiples_of_16=("scale_stride", "stride", "values_stride", "scales_stride"),
        ),
        "pool_tokens": Case(
            pool_kernel,
            "*fp32 *fp32 *i64 *i64 *i64 *i64 *i16",
            {"RING": 8, "WIDTH": 512, "TILE": 512},
            fp_fusion=False,
        ),
    }


def _indexer(arch: int) -> dict[str, Case]:
    score = {
        "H": 32,
        "HALF": 64,
        "TILE_PAIRS": 64,
        "TILE_Q": 4,
        "TILE_E": 128,
        "DOT": tl.bfloat16,
        "SCALED": arch != 90,
    }
    select = {"BITS": 16, "UPPER_TILE": 8192, "TILE": 8192, "SEGMENT": 16, "HAS_UPPER": True}
    select |= {"HAS_PARENTS": False, "HAS_VISIBLE": True}
    select |= {"RUN": 8, "UPPER_IS_WHOLE": True, "IS_WHOLE": True}
    best = {"BITS": 16, "SEGMENT": 16, "TILE": 512, "GROUP": 4}
    best |= {"KEEP_NEWEST": False, "HAS_VISIBLE": True}
    few = {"TOPS": 2048, "GROUP": 4, "SEGMENT": 16, "MOST": 1024, "PART": 1024, "RUNS": 512}
    return {
        "index_scores": Case(
            score_kernel, "*u8 *i16 *u8 *i64 *i64 *i64 *i16 i32 i32 i32 i32", score
        ),
        "select": Case(
            select_kernel,
            "*i16 *i16 *i64 *i64 *i64 *i64 i32 i32 i32 i32 i32",
            select,
            16,
            multiples_of_16=("stride", "upper_stride", "size", "upper_size", "k"),
        ),
        "segment_best": Case(segment_best_kernel, "*i16 *i64 *i16 *i16 i32 i32 i32 i32 i32", best),
        "few": Case(
            few_kernel,
            "*i16 *i16 *i16 *i64 *i32 *i64 i32 i32 i32 i32 i32 i32 i32",
            few,
            8,
            multiples_of_16=("num_tops", "width", "size", "tops_stride", "best_stride", "stride"),
        ),
        "pool_rows": Case(
            pool_rows_kernel,
            "*i64 *i64 *i64 *i64 *i64 i32 i32 i32 i32",
            {"SIZE": 8, "TILE": 512},
            multiples_of_16=("k",),
        ),
    }


def _streams(arch: int) -> dict[str, Case]:
    streams = {"S": 4, "EXPAND": True, "COLLAPSE": True, "TILE_T": 16, "TILE_D": 64}
    mix = {"S": 4, "ROWS": 24, "TILE_ROWS": 32, "SLICE": 64, "TILE_T": 64, "DOT": tl.bfloat16}
    block = _activations(arch)["BLOCK"]
    finish = {"S": 4, "ROUNDS": 20, "TILE_T": 8, "TILE_SLICES": 128, "D": 5120}
    finish |= _activations(arch) | {"BLOCKS": 8192 // block, "NUM_BLOCKS": 5120 // block}
    return {
        "streams": Case(
            stream_kernel,
            "*i16 *i16 *fp32 *fp32 *i16 *fp32 *i16 i32 i32 i32 i32",
            streams,
            multiples_of_16=("width", "token_stride", "stream_stride"),
        ),
        "mix": Case(
            mix_kernel,
            "*i16 *i16 *fp32 *fp32 i32 i32 i32 i32",
            mix,
            multiples_of_16=("width", "token_stride", "stream_stride"),
        ),
        "entry": Case(
            finish_kernel,
            f"*i32 *i32 *i32 *i16 {_scales(arch)} i32 fp32 "
            "*fp32 *fp32 *fp32 *fp32 *fp32 *fp32 *fp32 i32 i32 fp32 fp32",
            finish,
            4,
            multiples_of_16=("scale_stride", "num_pieces"),
        ),
    }


def _engram() -> dict[str, Case]:
    gate = {"D": 5120, "WEIGHT_BF16": True, "NORM_EPS": 1e-20, "MIN_DOT": 1e-6, "TILE_PAIRS": 1024}
    return {
        "engram_hash": Case(
            hash_kernel,
            "*i64 *i64 *i64 *i64 *i64 i32",
            {"REACH": 4, "HEADS": 8, "TILE_HEADS": 8, "TILE_T": 64},
        ),
        "engram_lookup": Case(
            lookup_kernel,
            "*i16 *u8 *i64 *i32 i32",
            {"BLOCKS": 8, "TILE": 128, "NATIVE": True},
        ),
        "engram_gate": Case(gate_kernel, "*i32 *i32 *i32 *i32 *i32 i32 i32 fp32", gate),
    }


def _sampling() -> dict[str, Case]:
    confidence = {"PAIRS": 2560, "RANK_PAIRS": 128, "WEIGHT_BF16": True}
    confidence |= {"TILE": 1024, "RANK_TILE": 128}
    return {
        "confidence": Case(confidence_kernel, "*i32 *i64 *i64 *i32 *i32 *fp32 i32 i32", confidence),
        "kept": Case(
            kept_kernel,
            "*fp32 *fp32 *fp32 *fp32 *i64 *fp32 *i64 *i64 *fp32 *fp32 i32 i32 i32 i32 i32",
            {"TILE": 2048},
            16,
            fp_fusion=False,
        ),
        "verify": Case(
            verify_kernel,
            "*fp32 *fp32 *fp32 *fp32 *i64 *i64 *i64 *i64 *i64 *i64 *fp32 *i32 i32 i32 i32 i32",
            {"TILE": 512},
            4,
            fp_fusion=False,
        ),
        "mask": Case(mask_kernel, "*fp32 *i32 *i64 i32 i32 i32", {"WORDS": 64}),
        "noise": Case(noise_kernel, "*i64 *i64 *fp32 i32", {"TILE": 1024}, 8, fp_fusion=False),
        "penalties": Case(
            penalize_kernel, "*fp32 *i64 *i64 *i64 *i32 *fp32 i32 i32 i32 i32", {"TILE": 1024}
        ),
        "sample": Case(
            sample_kernel,
            "*fp32 *fp32 *fp32 *i64 *fp32 *i64 *i64 *i64 i32 i32",
            {"TILE": 1024, "TILES": 128},
            8,
            fp_fusion=False,
        ),
    }


def _exchange() -> dict[str, Case]:
    sizes = {"TOP_K": 6, "TOP_K_PADDED": 8, "SCALES": 40, "HEAD_BYTES": 96}
    return {
        "heads": Case(
            heads_kernel,
            "*i64 *fp32 *fp32 *i64 *i64 *i64 *u8 *i32 *i32 *i32 i32 i32 i32 i32 i32",
            sizes | {"BLOCKS": 64, "PATH": 1, "TOKENS": 4},
        ),
        "receive_tokens": Case(
            receive_tokens_kernel,
            "*u8 *i32 *i32 *i64 *fp32 i32 i32 i32",
            sizes | {"RANKS": 8, "ROWS": 32, "FLAGS": 128},
        ),
        "gather": Case(
            gather_kernel,
            "*u8 *u8 *u8 *i32 *i32 *i32 *fp32 i32 i32 i32 i32",
            {
                "TOP_K": 6,
                "WIDTH": 5120,
                "BLOCK": 128,
                "HEAD_BYTES": 96,
                "WORDS": 2048,
                "BLOCKS": 64,
                "ROWS": 2,
                "PATH": 1,
                "ORDER": 2,
            },
        ),
        "send_rows": Case(
            send_rows_kernel,
            "*i16 *i32 *i32 *i64 i32",
            {"TOP_K": 6, "WIDTH": 5120, "COLUMNS": 8192, "ROWS": 4},
            8,
        ),
        "end_round": Case(end_round_kernel, "*i32 *i64 *i32 i32 i32", {"RANKS": 8, "FLAGS": 32}, 1),
        "copy_blocks": Case(
            copy_blocks_kernel, "*i32 *i64 i64 *i64 i32", {"IS_WIDE": True, "TILE": 2048}
        ),
    }


def compile_case(case: Case, arch: int) -> dict[str, Any]:
    names = [name for name in case.kernel.arg_names if name not in case.constants]
    compiled = compile_kernel(
        case.kernel,
        dict(zip(names, case.types.split(), strict=True)),
        case.constants,
        arch=arch,
        num_warps=case.num_warps,
        enable_fp_fusion=case.fp_fusion,
        multiples_of_16=case.multiples_of_16,
        num_stages=case.num_stages,
    )
    result = dataclasses.asdict(compiled)
    result["cubin"] = len(compiled.cubin)
    ptx = result.pop("ptx")
    result["target"] = ptx.partition(".target ")[2].split()[0].rstrip(",")
    return result | {name: ptx.count(name) for name in INSTRUCTIONS}


if __name__ == "__main__":
    target, wanted = int(sys.argv[1]), sys.argv[2:]
    known = cases(target)
    print(json.dumps({n: compile_case(known[n], target) for n in wanted or known}))
