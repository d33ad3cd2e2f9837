"""A compiler process for NVIDIA targets, see ``compile_serve``."""

from __future__ import annotations

import os
import time
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget

from .aot import kernel_resources
from .compile_key import compiler_settings, settle
from .compile_serve import serve
from .compile_task import Json, kernel_of, options_of, source_of

MATRIX_INSTRUCTIONS = ("wgmma.mma_async", "tcgen05.mma", "mma.sync")


def compile_task(task: Json) -> Json:
    """Paths of the machine code and its metadata, and the resources that it needs."""
    started = time.perf_counter()
    settle(kernel_of(task))
    compiled = triton.compile(
        source_of(task), target=GPUTarget(*task["target"]), options=options_of(task)
    )
    files = {Path(name).suffix: path for name, path in compiled.metadata_group.items()}
    resources = kernel_resources(compiled.asm["cubin"])
    ptx = compiled.asm["ptx"]
    return {
        "key": Path(files[".json"]).parent.name,
        "files": {suffix: files[suffix] for suffix in (".json", ".cubin")},
        "registers": resources.registers,
        "stack_bytes": resources.stack_bytes,
        "shared_bytes": compiled.metadata.shared,
        "instructions": {n: ptx.count(n) for n in MATRIX_INSTRUCTIONS if n in ptx},
        "seconds": round(time.perf_counter() - started, 2),
    }


def forget_settings() -> None:
    """Bundles are compiled with Triton's default settings, which runs look up."""
    for name in compiler_settings():
        del os.environ[name]


if __name__ == "__main__":
    forget_settings()
    serve(compile_task)
