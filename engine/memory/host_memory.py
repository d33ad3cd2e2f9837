"""Host memory that a process may still use: free memory of the system, and cgroup limits."""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_PROC = Path("/proc")
# By cgroup version: the file with the limit, and the lines of memory.stat that count what a group
# and its children use.
_LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}
_HELD = {1: ("total_rss", "total_shmem"), 2: ("anon", "shmem")}


def total_host_bytes() -> int | None:
    """The memory of the machine; None if unknown."""
    return _kibibytes("MemTotal")


def host_memory_limit() -> int | None:
    """The lowest limit of this process's cgroups; None if none is below the machine's memory."""
    limit = min((group.limit_bytes for group in _groups()), default=None)
    total = total_host_bytes()
    return None if limit is None or (total is not None and limit >= total) else limit


def available_host_bytes() -> int | None:
    """Memory available without swapping, within the limits of all cgroups of this process; None if
    unknown.  Cached pages of files count as available."""
    available = _kibibytes("MemAvailable")
    if available is None:
        return None
    return max(0, min([available, *(group.available_bytes for group in _groups())]))


@contextmanager
def taking_host_memory() -> Iterator[None]:
    """A lock between processes of a machine, so that no two of them claim the same free memory
    before either has filled it."""
    with (_PROC / "meminfo").open() as file:
        with suppress(OSError):  # no file locks here: continue without
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True, slots=True)
class _Group:
    """A cgroup with a limit, and the memory of its processes without cached files."""

    limit_bytes: int
    held_bytes: int

    @property
    def available_bytes(self) -> int:
        return self.limit_bytes - self.held_bytes


def _groups() -> Iterator[_Group]:
    """This process's cgroup and its parents, those that have a limit."""
    for version, mount, folder in _memory_hierarchies():
        for place in (folder, *folder.parents):
            if not place.is_relative_to(mount):
                break
            if limit := _number(place / _LIMIT[version], r"(\d+)$"):
                stat = place / "memory.stat"
                held = (_number(stat, rf"{name} (\d+)$") or 0 for name in _HELD[version])
                yield _Group(limit, sum(held))


def _memory_hierarchies() -> Iterator[tuple[int, Path, Path]]:
    """(version, mount point, folder of this process's group) of each memory hierarchy."""
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
        # A container may see only a part of the hierarchy; its root is then the container's group.
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
    """The number in the first line that matches; None if there is none."""
    try:
        found = re.search(rf"^{pattern}", path.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None
