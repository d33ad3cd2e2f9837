"""One thread per test process: with two on a machine of two cores, each waits for the other's core.
Tests about threads set the number themselves.

No example of Hypothesis fails because a machine is slow.  And the garbage collector looks for none
among modules and tests, which stay to the end: that took a tenth of the time.
"""

from __future__ import annotations

import gc
import os
from contextlib import suppress

with suppress(ImportError):  # tests/gpu runs without it
    from hypothesis import HealthCheck, settings

    checks = [HealthCheck.too_slow]
    settings.register_profile("slow machine", deadline=None, suppress_health_check=checks)
    settings.load_profile("slow machine")

os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()
