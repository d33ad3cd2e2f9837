"""Runs a kernel's Linalg on this CPU: MLIR and LLVM make a library of it, ctypes calls it.

Needs Debian's mlir-19-tools and llvm-19, or the same programs elsewhere on PATH.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

_PROGRAMS = ("mlir-opt", "mlir-translate", "opt", "llc")
_PASSES = (
    "--inline", "--convert-elementwise-to-linalg",
    "--one-shot-bufferize=allow-return-allocs-from-loops=true",
    "--convert-linalg-to-loops", "--lower-affine", "--convert-scf-to-cf",
    "--expand-strided-metadata", "--lower-affine", "--memref-expand",
    "--arith-expand=include-bf16=true", "--convert-math-to-llvm", "--convert-math-to-libm",
    "--convert-index-to-llvm", "--finalize-memref-to-llvm", "--convert-arith-to-llvm",
    "--convert-cf-to-llvm", "--convert-func-to-llvm", "--reconcile-unrealized-casts",
)  # fmt: skip
# What MLIR calls to copy between memory of any two layouts.
_COPY = r"""
#include <stdint.h>
#include <string.h>
typedef struct { char *base, *data; int64_t offset, sizes_and_strides[]; } Memory;
typedef struct { int64_t rank; Memory *memory; } Unranked;
static void copy(int64_t size, int64_t rank, int64_t at, Memory *from, Memory *to,
                 char *source, char *target) {
  if (at == rank) { memcpy(target, source, size); return; }
  for (int64_t i = 0; i < from->sizes_and_strides[at]; i++)
    copy(size, rank, at + 1, from, to, source + i * size * from->sizes_and_strides[rank + at],
         target + i * size * to->sizes_and_strides[rank + at]);
}
void memrefCopy(int64_t size, Unranked *from, Unranked *to) {
  Memory *a = from->memory, *b = to->memory;
  copy(size, from->rank, 0, a, b, a->data + a->offset * size, b->data + b->offset * size);
}
"""


def missing_programs() -> list[str]:
    """Those that are needed and not found."""
    return [name for name in _PROGRAMS if _find(name) is None] + (
        [] if shutil.which("gcc") else ["gcc"]
    )


class LinalgKernel:
    """One kernel; called once for each program of a grid."""

    def __init__(self, linalg: Path, folder: Path) -> None:
        text = linalg.read_text(encoding="utf-8")
        found = re.search(r"func\.func @(\w+)\(", text)
        assert found is not None
        library = ctypes.CDLL(str(_library(text, folder)))
        self._function = getattr(library, found[1])
        self._function.restype = None

    def __call__(self, arguments: Sequence[Any], kinds: Sequence[str], grid: Sequence[int]) -> None:
        """``kinds`` are Triton's types of the arguments: pointers, whole numbers, floats."""
        nothing = (ctypes.c_char * 64)()
        # Two buffers that the device's runtime would give: locks and work space.
        passed = [*_memory(ctypes.addressof(nothing)), *_memory(ctypes.addressof(nothing))]
        for value, kind in zip(arguments, kinds, strict=True):
            passed += _passed(value, kind)
        sizes = [*grid, 1, 1][:3]
        for z in range(sizes[2]):
            for y in range(sizes[1]):
                for x in range(sizes[0]):
                    place = [ctypes.c_int32(number) for number in (*sizes, x, y, z)]
                    self._function(*passed, *place)


def _passed(value: Any, kind: str) -> list[Any]:
    if isinstance(value, Tensor):
        return _memory(value.data_ptr())
    if kind.startswith("fp"):
        return [ctypes.c_float(value)]
    return [(ctypes.c_int64 if kind == "i64" else ctypes.c_int32)(value)]


def _memory(address: int) -> list[Any]:
    """A memref of one dimension: base, data, offset, size, stride."""
    numbers = [ctypes.c_int64(number) for number in (0, 1 << 40, 1)]
    return [ctypes.c_void_p(address), ctypes.c_void_p(address), *numbers]


def _library(text: str, folder: Path) -> Path:
    folder.mkdir(parents=True)
    # Hints to the vendor's compiler, and its library functions; a program is one thread here.
    left_out = ("annotation.mark", "gpu.barrier")
    lines = [line for line in text.splitlines() if not any(word in line for word in left_out)]
    plain = re.sub(
        r"func\.func private (@triton_cumsum_\d+)"
        r"\(tensor<(\d+)x(?:(\d+)x)?(i\d+)>, i32, i1\) -> \S+",
        _cumsum, "\n".join(lines),
    )  # fmt: skip
    (folder / "kernel.mlir").write_text(plain)
    (folder / "copy.c").write_text(_COPY)
    for command in (
        ["mlir-opt", "kernel.mlir", *_PASSES, "-o", "llvm.mlir"],
        ["mlir-translate", "llvm.mlir", "--mlir-to-llvmir", "-o", "kernel.ll"],
        ["opt", "-O2", "kernel.ll", "-o", "kernel.bc"],
        ["llc", "-O2", "-mcpu=native", "-relocation-model=pic", "-filetype=obj", "kernel.bc", "-o",
         "kernel.o"],
        ["gcc", "-shared", "-fPIC", "-O2", "copy.c", "kernel.o", "-lm", "-o", "kernel.so"],
    ):  # fmt: skip
        program = _find(command[0])
        assert program is not None
        done = subprocess.run(
            [program, *command[1:]], cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command[0]}: {done.stderr[:2000]}"
    return folder / "kernel.so"


def _cumsum(found: re.Match[str]) -> str:
    """Sums along one of one or two axes."""
    name, size, columns, kind = found.groups()
    tensor = f"tensor<{size}x{columns}x{kind}>" if columns else f"tensor<{size}x{kind}>"
    place = "%row, %column" if columns else "%row"
    return f"""func.func private {name}(%x: {tensor}, %axis: i32, %reverse: i1) -> {tensor} {{
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %first = arith.constant 0 : i32
    %rows = arith.constant {size} : index
    %columns = arith.constant {columns or 1} : index
    %zero = arith.constant 0 : {kind}
    %empty = tensor.empty() : {tensor}
    %down = arith.cmpi eq, %axis, %first : i32
    %length = arith.select %down, %rows, %columns : index
    %lines = arith.select %down, %columns, %rows : index
    %result = scf.for %j = %c0 to %lines step %c1 iter_args(%all = %empty) -> ({tensor}) {{
      %line:2 = scf.for %i = %c0 to %length step %c1 iter_args(%sums = %all, %sum = %zero)
          -> ({tensor}, {kind}) {{
        %row = arith.select %down, %i, %j : index
        %column = arith.select %down, %j, %i : index
        %value = tensor.extract %x[{place}] : {tensor}
        %next = arith.addi %sum, %value : {kind}
        %more = tensor.insert %next into %sums[{place}] : {tensor}
        scf.yield %more, %next : {tensor}, {kind}
      }}
      scf.yield %line#0 : {tensor}
    }}
    return %result : {tensor}
  }}"""


def _find(name: str) -> str | None:
    places = os.pathsep.join(["/usr/lib/llvm-19/bin", os.environ.get("PATH", "")])
    return shutil.which(f"{name}-19") or shutil.which(name, path=places)
