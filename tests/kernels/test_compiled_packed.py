"""Kernels in Gluon of weights packed as FP4 and FP8, compiled for SM90 without a GPU."""

from __future__ import annotations

import pytest
from compiled_kernels import Add, Compiled, cases

# One of each kind of tile; the others take minutes.
_GLUON = ["narrow fp4 x 16", "wide gated fp8 128 x 256", "wide returning fp8 128 x 128"]
_MORE_GLUON = [
    "narrow gated fp4 x 32", "narrow returning fp4 x 64", "narrow fp4 x 128",
    "narrow gated fp8 x 32", "narrow returning fp8 x 64", "wide fp4 256 x 128",
    "wide in groups fp8 192 x 128", "narrow gated fp4 x 16", "narrow returning fp4 x 16",
    "narrow fp4 x 32", "narrow returning fp4 x 32", "narrow fp4 x 64", "narrow gated fp4 x 64",
    "narrow gated fp4 x 128", "narrow returning fp4 x 128", "narrow fp8 x 32",
    "narrow returning fp8 x 32", "narrow fp8 x 64", "narrow gated fp8 x 64", "wide fp8 128 x 256",
    "wide returning fp8 128 x 256", "wide fp8 128 x 128", "wide in groups fp8 128 x 128",
    "wide returning fp4 256 x 128", "wide fp8 192 x 128",
]  # fmt: skip
_SLIM = "wide fp8 128 x 80"
_JOINT = "wide joint fp8 128 x 256"
FEW = set(_GLUON)
COMPILED = Compiled(__file__, FEW)


@pytest.mark.parametrize("name", cases(_GLUON, _MORE_GLUON))
def test_gluon_forms_on_hopper(name: str) -> None:
    """FP8 tensor cores, tiles by TMA, and what the sizes were chosen for: the registers fit."""
    tokens = int(name.split()[-1]) if name.startswith("narrow") else 128
    assert COMPILED.steps(90, name) == f"wgmma.mma_async.sync.aligned.m64n{tokens}k32.f32.e4m3.e4m3"
    kernel = COMPILED.kernel(90, name)
    assert kernel["QGMMA"] > 0 and kernel["UTMALDG"] > 0
    # Products that wait for each other would each have an instruction of their own for it.
    assert kernel["WARPGROUP.ARRIVE"] <= kernel["QGMMA"] // 4


@pytest.mark.slow
def test_slim_tiles_on_hopper() -> None:
    """80 columns are two products."""
    steps = [f"wgmma.mma_async.sync.aligned.m64n{n}k32.f32.e4m3.e4m3" for n in (16, 64)]
    assert COMPILED.steps(90, _SLIM).split() == steps
    kernel = COMPILED.kernel(90, _SLIM)
    assert kernel["UTMALDG"] > 0 and kernel["WARPGROUP.ARRIVE"] <= kernel["QGMMA"] // 4


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_weights_that_are_read_once_are_the_first_to_leave(every: bool) -> None:
    """Of a ring's copies those of the weight, where few programs share it."""
    hints = {name: kernel["hints"] for name, kernel in COMPILED.kernels(90, every).items()}
    for name in hints:
        if name.startswith("narrow"):  # before the loop and in it
            assert hints[name] == (6 if "fp4" in name else 4)
    assert hints.get(_SLIM, 2) == 2
    assert hints["wide returning fp8 128 x 128"] == 1
    assert hints["wide gated fp8 128 x 256"] == 0


@pytest.mark.slow
def test_both_products_of_the_same_rows_on_hopper() -> None:
    bf16, fp8 = COMPILED.steps(90, _JOINT).split()
    assert bf16 == "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16"
    assert fp8 == "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3"
    kernel = COMPILED.kernel(90, _JOINT)
    assert kernel["WARPGROUP.ARRIVE"] <= (kernel["QGMMA"] + kernel["HGMMA"]) // 4


def add_cases(arch: int, add: Add) -> None:
    _add_narrow(add)
    _add_wide(add)
    _add_joint(add)
    _add_triple(add)
    _add_slim(add)


def _add_narrow(add: Add) -> None:
    from deepinfer.kernels.aot import descriptor
    from deepinfer.kernels.gemm import gluon_narrow

    alike = {"GROUPED": True, "GROUP_COLUMNS": 0, "EVICT_FIRST": True}
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
                {**constants, "PAGED": not choices, "GATE": gate, "TOP_K": choices, **alike},
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
        constants["EVICT_FIRST"] = tile is hopper_tile.SQUARE_FP8
        out, gated = descriptor("bf16", 64, 128), descriptor("i16", 64, 64)
        kinds = [("", -1, out, 0), ("returning ", -1, out, 6), ("gated ", 2, gated, 0)]
        for kind, gate, out, choices in kinds if tile is hopper_tile.WIDE_FP8 else kinds[:2]:
            add(
                f"wide {kind}fp{8 // form} {count} x {columns}",
                gluon_wide.wide_kernel, [*rows, w, steps, out, *ends],
                {**constants, "GATE": gate, "TOP_K": choices, "GROUP_COLUMNS": 0},
            )  # fmt: skip
        if tile is hopper_tile.SQUARE_FP8:
            constants |= {"GROUPED": False, "GATE": -1, "TOP_K": 0, "GROUP_COLUMNS": 1024}
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
    constants = {"STAGES": tile.stages, "GROUP_M": 8, "REGISTERS": tile.registers, "GATE": 0}
    constants["PARTS"] = 4
    add(_JOINT, gluon_joint.joint_kernel, types, constants)


def _add_triple(add: Add) -> None:
    from deepinfer.kernels.aot import descriptor
    from deepinfer.kernels.gemm import gluon_triple, hopper_tile

    tile = hopper_tile.TRIPLE
    tiles = [descriptor("fp8e4nv", 64, 128), descriptor("fp32", 64)]
    tiles += [descriptor("fp8e4nv", 128, 128)]
    ends = ["*fp32", "*i32", "*i32", "*i32", "*fp32", "n", "n", "n16", "n16", "n", "n"]
    constants = {"STAGES": tile.stages, "GROUP_M": 8, "REGISTERS": tile.registers}
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
    constants = {"STAGES": tile.stages, "GROUP_M": 8, "UNROLL": 4, "REGISTERS": tile.registers}
    constants["EVICT_FIRST"] = True
    add("wide fp8 128 x 80", gluon_slim.slim_kernel, types, constants)
