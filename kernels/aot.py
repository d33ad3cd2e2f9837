"""Ahead-of-time compilation of one kernel for one NVIDIA target; needs no GPU and no driver."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction

from .launch import is_interpreted


@dataclass(frozen=True)
class CompiledKernel:
    """PTX, machine code, and resources per thread and per thread block."""

    ptx: str
    cubin: bytes
    registers: int
    stack_bytes: int
    shared_bytes: int


def compile_kernel(
    kernel: Any,
    arguments: Mapping[str, str],
    constants: Mapping[str, Any],
    *,
    arch: int,
    multiples_of_16: Collection[str] = (),
    num_warps: int = 4,
    num_stages: int = 2,
    enable_fp_fusion: bool = True,
) -> CompiledKernel:
    """Compile ``kernel`` (Triton or Gluon) for compute capability ``arch`` (90, 100, 103).

    ``arguments``: Triton types by name ("*i32", "i32", "fp32", or a ``descriptor``).  Pointers are
    specialized as aligned to 16 bytes, and the integers in ``multiples_of_16`` as such.
    ``stack_bytes`` of the result includes register spills.
    Raises: triton's CompilationError; RuntimeError if the kernels of this process are interpreted.
    """
    if is_interpreted():
        raise RuntimeError("TRITON_INTERPRET is set: start a process without it to compile kernels")
    names = kernel.arg_names
    make_source = GluonASTSource if isinstance(kernel, GluonJITFunction) else ASTSource
    source = make_source(
        kernel,
        signature={name: arguments.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={
            (names.index(name),): [["tt.divisibility", 16]]
            for name, kind in arguments.items()
            if kind.startswith("*") or name in multiples_of_16
        },
    )
    options = {
        "num_warps": num_warps,
        "num_stages": num_stages,
        "enable_fp_fusion": enable_fp_fusion,
    }
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    resources = kernel_resources(compiled.asm["cubin"])
    return CompiledKernel(
        ptx=compiled.asm["ptx"],
        cubin=compiled.asm["cubin"],
        registers=resources.registers,
        stack_bytes=resources.stack_bytes,
        shared_bytes=compiled.metadata.shared,
    )


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources per thread; ``stack_bytes`` includes register spills."""

    registers: int
    stack_bytes: int


def descriptor(dtype: str, *box: int) -> str:
    """Triton type of a TMA descriptor with the layout that launchers use."""
    names = {
        "fp8e4nv": "float8e4nv",
        "bf16": "bfloat16",
        "fp32": "float32",
        "i16": "int16",
        "i32": "int32",
    }
    layout = gl.NVMMASharedLayout.get_default_for(list(box), getattr(gl, names[dtype]))
    return f"tensordesc<{dtype}{list(box)},{layout!r}>"


def disassemble(cubin: bytes) -> str:
    """SASS of a cubin, as text."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [_bundled("nvdisasm"), "-c", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def kernel_resources(cubin: bytes) -> Resources:
    """Resources of machine code, from the bundled cuobjdump.

    Raises: RuntimeError if it is not a complete cubin.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [_bundled("cuobjdump"), "--dump-resource-usage", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        report = done.stdout + done.stderr
    found = re.search(r"REG:(\d+) STACK:(\d+)", report)
    if found is None:
        raise RuntimeError(f"cuobjdump reported no registers: {report.strip()!r}")
    return Resources(registers=int(found[1]), stack_bytes=int(found[2]))


def _bundled(program: str) -> str:
    root = os.path.dirname(triton.__file__)
    return os.path.join(root, "backends", "nvidia", "bin", program)
