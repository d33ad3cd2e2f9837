"""Every kernel on one GPU: first the checks against the references, then the times.

    PYTHONPATH=. python benchmarks/gpu_smoke.py [--checks-only] [attention rows indexer gemm moe]

Needs torch, triton and numpy only.  A failed check or timing is one line and does not end the run;
the exit code is 1 if there was any.  The first run also compiles.
"""

from __future__ import annotations

import importlib
import sys
import time
import traceback
from collections.abc import Callable

import torch
import triton
from kernel_timing import Ceilings, print_row

FAMILIES = ["attention", "rows", "indexer", "gemm", "moe"]


def main() -> int:
    arguments = sys.argv[1:]
    with_times = "--checks-only" not in arguments
    wanted = [name for name in arguments if not name.startswith("-")] or FAMILIES
    properties = torch.cuda.get_device_properties(0)
    print(f"{properties.name}, torch {torch.__version__}, triton {triton.__version__}", flush=True)
    torch.manual_seed(0)
    modules = {name: importlib.import_module(f"kernel_{name}") for name in wanted}
    failures = 0
    for name, module in modules.items():
        for title, check in module.checks():
            failures += not _attempt(f"{name}: {title}", check)
    if with_times:
        ceilings = Ceilings.measure()
        print(
            f"ceilings: copy {ceilings.copy_bytes_per_s / 1e12:.2f} TB/s, "
            f"FP8 {ceilings.fp8_flop_per_s / 1e12:.0f} TFLOP/s",
            flush=True,
        )
        for name, module in modules.items():
            failures += not _attempt(f"{name}: times", lambda m=module: _print_times(m, ceilings))
    print(f"{failures} failures", flush=True)
    return min(failures, 1)


def _attempt(title: str, call: Callable[[], str]) -> bool:
    """Run one step and print its result or its error on one line."""
    start = time.perf_counter()
    try:
        result = call()
        torch.cuda.synchronize()
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        message = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        print(f"FAIL {title}: {message} ({place.filename}:{place.lineno})", flush=True)
        return False
    print(f"ok   {title}: {result} ({time.perf_counter() - start:.1f} s)", flush=True)
    return True


def _print_times(module: object, ceilings: Ceilings) -> str:
    count = 0
    for row in module.timings(ceilings):  # type: ignore[attr-defined]
        print_row(row)
        count += 1
    return f"{count} rows"


if __name__ == "__main__":
    sys.exit(main())
