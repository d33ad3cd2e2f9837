"""How much of the host's memory a process may still fill."""

from __future__ import annotations

import re
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_host_bytes() -> int:
    """What the system can give without swapping, within the limit of this process's group; 0 where
    nobody knows.  Cached pages of files count as available."""
    available = _field(_MEMINFO, r"MemAvailable:\s+(\d+) kB") * 1024
    limit = _field(_CGROUP / "memory.max", r"(\d+)")
    if not limit:
        return available
    return max(0, min(available, limit - _field(_CGROUP / "memory.stat", r"anon (\d+)")))


def _field(path: Path, pattern: str) -> int:
    """The number that stands there; 0 if there is none."""
    try:
        found = re.search(rf"^{pattern}", path.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
