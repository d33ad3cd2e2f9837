"""Checks of processor, memory, GPUs, compilers and disk."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from deepinfer.engine.memory.host_memory import host_memory_limit
from deepinfer_cli.host import host
from deepinfer_cli.report.pages.words import milliseconds, size

from .checks import NOTE, OK, PROBLEM, WARNING, Check, line_of, shown_path

_TEST_BYTES = 16 * 2**20
_LITTLE_SPACE = 2**30
_SLOW_SYNC_S = 0.25
_RELEASE_GCC = 13


def machine_checks() -> Iterator[Check]:
    """Checks for runs on the CPU."""
    found = host()
    features = ", ".join(found.features) or "no AVX2: slow"
    text = f"{found.cpu}, {found.cores} cores ({features})"
    state = OK if "avx2" in found.features else WARNING
    yield Check(group="machine", name="processor", state=state, text=text)
    if found.memory_bytes is not None:
        free = "" if found.available_bytes is None else f", {size(found.available_bytes)} free"
        limit = host_memory_limit()
        bound = f", this process may use {size(limit)}" if limit else ""
        text = f"{size(found.memory_bytes)}{free}{bound}"
        yield Check(group="machine", name="memory", state=OK, text=text)
    yield Check(group="machine", name="system", state=OK, text=found.system)


def gpu_checks() -> Iterator[Check]:
    """GPUs that torch can use, and GPUs that exist but that torch cannot use."""
    import torch

    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(number)
            free, total = torch.cuda.mem_get_info(number)
            text = f"{properties.name}, SM {properties.major}.{properties.minor}, "
            text += f"{size(free)} of {size(total)} free"
            yield Check(group="GPU", name=f"cuda:{number}", state=OK, text=text)
        return
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    cards = line_of(query)
    if cards is None:
        yield Check(group="GPU", name="devices", state=NOTE, text=f"none (torch: {built})")
    else:
        yield Check(
            group="GPU",
            name="devices",
            state=WARNING,
            text=f"{cards} is there, but torch ({built}) cannot use it",
            advice="install the CUDA build of torch that fits the driver",
        )


def compiler_checks(needs_gpu: bool) -> Iterator[Check]:
    """``needs_gpu``: Triton needs a C compiler at the first launch of a kernel."""
    gcc = line_of(["gcc", "--version"]) or line_of(["cc", "--version"])
    if gcc is None:
        text = "none; Triton needs one to launch kernels on a GPU"
        state = PROBLEM if needs_gpu else NOTE
        advice = "install gcc" if needs_gpu else ""
        yield Check(group="compilers", name="gcc", state=state, text=text, advice=advice)
    else:
        yield _gcc_check(gcc)
    nvcc = line_of(["nvcc", "--version"], "release")
    text = nvcc or "none (not needed: Triton brings its own assembler)"
    yield Check(group="compilers", name="nvcc", state=NOTE, text=text)
    has_cann = bool(os.environ.get("ASCEND_HOME_PATH")) or Path("/usr/local/Ascend").is_dir()
    text = "found" if has_cann else "none (only for Ascend)"
    yield Check(group="compilers", name="CANN", state=NOTE, text=text)


def _gcc_check(version: str) -> Check:
    """Any GCC works for launching kernels; ``./build.sh --release`` needs a newer one."""
    found = re.search(r"(\d+)\.\d+(?:\.\d+)?\s*$", version)
    if found is None or int(found[1]) >= _RELEASE_GCC:
        return Check(group="compilers", name="gcc", state=OK, text=version)
    text = f"{version}: enough for runs; ./build.sh --release needs {_RELEASE_GCC} or newer"
    return Check(group="compilers", name="gcc", state=NOTE, text=text)


def disk_checks(folder: Path) -> Iterator[Check]:
    """Space, speed and sync latency of the disk where results would be written."""
    where = shown_path(folder.resolve())
    try:
        free = shutil.disk_usage(folder).free
        write_s, sync_s, read_s = _time_disk(folder)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        yield Check(
            group="disk",
            name="results",
            state=PROBLEM,
            text=f"{where} cannot be written: {reason}",
            advice="start elsewhere, or give another output (-o)",
        )
        return
    text = f"{where}: {size(free)} free, writes {size(_TEST_BYTES / write_s)}/s, "
    text += f"reads {size(_TEST_BYTES / read_s)}/s, sync {milliseconds(1_000 * sync_s)}"
    state, advice = OK, ""
    if free < _LITTLE_SPACE:
        state, advice = WARNING, "a run keeps its results twice while it finishes: free some space"
    elif sync_s > _SLOW_SYNC_S:
        state, advice = WARNING, "finished rows are synced every second: a local disk is faster"
    yield Check(group="disk", name="results", state=state, text=text, advice=advice)


def _time_disk(folder: Path) -> tuple[float, float, float]:
    """Seconds to write 16 MiB, to sync one more line, and to read everything (mostly from the page
    cache)."""
    block = os.urandom(1 << 20)
    with tempfile.TemporaryFile(dir=folder, prefix=".deepinfer-doctor-") as file:
        began = time.perf_counter()
        for _ in range(_TEST_BYTES // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        wrote = time.perf_counter()
        file.write(b"one line\n")
        file.flush()
        os.fsync(file.fileno())
        synced = time.perf_counter()
        file.seek(0)
        while file.read(len(block)):
            pass
        return wrote - began, synced - wrote, time.perf_counter() - synced
