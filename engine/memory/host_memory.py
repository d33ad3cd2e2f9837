"""How much of the host's memory a process may still fill: what the system can give, and what the
control groups around the process let it take.
"""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_PROC = Path("/proc")
# By version of control groups: the file of the limit, and the lines of memory.stat that count what
# a group and those within it hold.
_LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}
_HELD = {1: ("total_rss", "total_shmem"), 2: ("anon", "shmem")}


def total_host_bytes() -> int | None:
    """The memory of the machine; None where nobody knows."""
    return _kibibytes("MemTotal")


def host_memory_limit() -> int | None:
    """The least limit of the control groups around this process; None if none is below the memory
    of the machine."""
    limit = min((group.limit_bytes for group in _groups()), default=None)
    total = total_host_bytes()
    return None if limit is None or (total is not None and limit >= total) else limit


def available_host_bytes() -> int | None:
    """What the system can give without swapping, within the limits of all groups around this
    process; None where nobody knows.  Cached pages of files count as available."""
    available = _kibibytes("MemAvailable")
    if available is None:
        return None
    return max(0, min([available, *(group.available_bytes for group in _groups())]))


@contextmanager
def taking_host_memory() -> Iterator[None]:
    """One process of a machine at a time is in here: else several would count the same free memory
    as theirs before any of them has filled it."""
    with (_PROC / "meminfo").open() as file:
        with suppress(OSError):  # no locks there: no worse than without
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True, slots=True)
class _Group:
    """A control group with a limit, and what its processes hold that is no cache of a file."""

    limit_bytes: int
    held_bytes: int

    @property
    def available_bytes(self) -> int:
        return self.limit_bytes - self.held_bytes


def _groups() -> Iterator[_Group]:
    """The limited group of this process, if there is one, and the limited ones that it lies in."""
    for version, mount, folder in _memory_hierarchies():
        for place in (folder, *folder.parents):
            if not place.is_relative_to(mount):
                break
            if limit := _number(place / _LIMIT[version], r"(\d+)$"):
                stat = place / "memory.stat"
                held = (_number(stat, rf"{name} (\d+)$") or 0 for name in _HELD[version])
                yield _Group(limit, sum(held))


def _memory_hierarchies() -> Iterator[tuple[int, Path, Path]]:
    """(version, mount point, folder of this process's group) of what limits memory here."""
    paths = {}
    for line in _lines("self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            paths[2] = path
        elif "memory" in controllers.split(","):
            paths[1] = path
    for line in _lines("self/mountinfo"):
        mount, _, source = line.partition(" - ")
        kind, _, options = source.split(" ", 2)
        version = {"cgroup": 1, "cgroup2": 2}.get(kind, 0)
        if version not in paths or (version == 1 and "memory" not in options.split(",")):
            continue
        root, point = (PurePosixPath(name) for name in mount.split(" ")[3:5])
        group = PurePosixPath(paths[version])
        # A container may see a part of the hierarchy only; what is mounted is then its own group.
        inside = group.relative_to(root) if group.is_relative_to(root) else PurePosixPath()
        yield version, Path(point), Path(point / inside)


def _lines(name: str) -> list[str]:
    try:
        return (_PROC / name).read_text().splitlines()
    except OSError:
        return []


def _kibibytes(name: str) -> int | None:
    found = _number(_PROC / "meminfo", rf"{name}:\s+(\d+) kB")
    return None if found is None else found * 1024


def _number(path: Path, pattern: str) -> int | None:
    """The number in the first line that begins so; None if there is none."""
    try:
        found = re.search(rf"^{pattern}", path.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None
