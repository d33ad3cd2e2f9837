"""One thread per test process: with two on a machine of two cores, each waits for the other's core.

Tests about threads set the number themselves.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
