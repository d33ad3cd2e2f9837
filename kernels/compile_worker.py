"""A process that compiles what it is told: one task a line on stdin, one result a line on stdout.

Apart from the program, because a compiler may abort, wants a Triton that is not interpreted, and is
another Triton for other accelerators.  It ends with its stdin, so it outlives nobody.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

from .aot import kernel_resources
from .compile_task import Json, options_of, source_of

MATRIX_INSTRUCTIONS = ("wgmma.mma_async", "tcgen05.mma", "mma.sync")


def compile_task(task: Json) -> Json:
    """Where Triton put the machine code and its description, and what the code occupies."""
    started = time.perf_counter()
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


def serve(work: Any = compile_task) -> None:
    """Answer each line; an error is an answer too.  What the work prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = work(json.loads(line))
        except OSError as error:
            answer = {"error": str(error), "errno": error.errno}
        except Exception as error:  # whatever a compiler may find wrong
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve()
