"""A compiler process for Ascend 950, which goes as far as the tools on this machine allow.

Stages: ``linalg`` (triton-ascend), ``middle-end`` (the vendor's open-source compiler, which
allocates on-chip memory and enforces its limits), ``binary`` (CANN's code generator).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from deepinfer.kernels.compile_serve import serve
from deepinfer.kernels.compile_task import Json, kernel_of
from deepinfer.kernels.targets import NO_CODE_GENERATOR

from .environment import PINS, code_generator
from .front_end import CHIP, linalg_of

# Stub in place of the code generator that saves its input.  It generates nothing but reports
# success:
# on failure the compiler would retry four times.
_CAPTURE = """#!/bin/sh
for name in "$@"; do case "$name" in *.mlir) cp "$name" "$CAPTURED";; esac; done
"""
_FLAGS = ("--enable-hfusion-compile=true", "--enable-triton-kernel-compile=true")
_SECONDS = 300
_TIMED_OUT = f"not done in {_SECONDS} s"


def lower(task: Json) -> Json:
    """The stage that a kernel reached, its output files, and why it went no further."""
    started = time.perf_counter()
    folder = Path(task["objects"]) / _key(task)
    known = folder / "result.json"
    if known.exists():
        found: Json = json.loads(known.read_text(encoding="utf-8"))
        return found
    folder.mkdir(parents=True, exist_ok=True)
    result = _lower(task, folder) | {"key": folder.name}
    result["seconds"] = round(time.perf_counter() - started, 2)
    if result["reason"] == _TIMED_OUT:
        return result  # not cached: with less load it may finish in time
    partial = folder / f"result-{os.getpid()}"
    partial.write_text(json.dumps(result), encoding="utf-8")
    partial.rename(known)
    return result


def _key(task: Json) -> str:
    """Digest of everything that the result depends on, including whether CANN is installed."""
    known = [task, kernel_of(task).cache_key, dict(PINS), code_generator()]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:32]


def _lower(task: Json, folder: Path) -> Json:
    try:
        text = linalg_of(task)
    except OSError:  # of the disk, not of the kernel
        raise
    except Exception as error:  # the front end raises all kinds
        return {"stage": "none", "reason": _words(error), "files": {}}
    linalg = folder / "kernel.linalg.mlir"
    linalg.write_text(text, encoding="utf-8")
    files = {".linalg.mlir": str(linalg)}
    if task["stage"] == "linalg":
        return {"stage": "linalg", "reason": "", "files": files}
    return _compile(text, folder, files)


def _compile(text: str, folder: Path, files: dict[str, str]) -> Json:
    captured, binary = folder / "kernel.hivm.mlir", folder / "kernel.o"
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "kernel.mlir").write_text(re.sub(r', mix_mode\s*=\s*"[^"]*"', "", text))
        path = os.environ.get("PATH", "")
        if code_generator() is None:
            stand_in = work / "hivmc-a5"
            stand_in.write_text(_CAPTURE)
            stand_in.chmod(0o755)
            path = os.pathsep.join([name, path])
        try:
            done = subprocess.run(
                [_compiler(), str(work / "kernel.mlir"), f"--target={CHIP}", *_FLAGS,
                 "-o", str(work / "kernel")],
                env=os.environ | {"PATH": path, "CAPTURED": str(captured)},
                capture_output=True, text=True, check=False, timeout=_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"stage": "linalg", "reason": _TIMED_OUT, "files": files}
        made = next(iter(sorted(work.glob("*.o"))), None)
        if done.returncode == 0 and made is not None:
            binary.write_bytes(made.read_bytes())
            return {"stage": "binary", "reason": "", "files": files | {".o": str(binary)}}
        if captured.exists():
            files = files | {".hivm.mlir": str(captured)}
            return {"stage": "middle-end", "reason": NO_CODE_GENERATOR, "files": files}
        return {"stage": "linalg", "reason": _last_error(done.stderr + done.stdout), "files": files}


def _compiler() -> str:
    """The compiler build that supports the 950, in the folder of this Triton."""
    import triton

    return str(Path(triton.__file__).parents[1] / "ascendnpuir" / "bin" / "bishengir-compile-a5")


def _last_error(text: str) -> str:
    for pattern in (r"error: (.*(?:overflow|exceed).*)", r"(Assertion .*)", r"error: (.*)"):
        if found := re.search(pattern, text):
            return found[1].strip()[:300]
    return text.strip()[-300:]


def _words(error: Any) -> str:
    text = getattr(error, "stderr", None)
    said = text.decode(errors="replace") if isinstance(text, bytes) else str(error)
    lines = [line for line in said.strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300]


if __name__ == "__main__":
    serve(lower)
