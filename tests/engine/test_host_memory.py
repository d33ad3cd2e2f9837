"""What a process may fill of the host's memory, within the control groups around it."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from deepinfer.engine.memory import host_memory
from deepinfer.engine.memory.host_memory import (
    available_host_bytes,
    host_memory_limit,
    taking_host_memory,
    total_host_bytes,
)

MIB = 2**20
V2 = "0::{path}\n"
V1 = "9:name=systemd:/elsewhere\n4:cpu,memory:{path}\n0::/\n"
NO_LIMIT = 9223372036854771712


class Machine:
    """A made-up ``/proc`` and a hierarchy of groups: 9,000 MiB, 3,000 of them free."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.proc, self.mount = folder / "proc", folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.mount.mkdir()
        sizes = f"MemTotal:  {9000 * 1024} kB\nMemAvailable:    {3000 * 1024} kB\n"
        (self.proc / "meminfo").write_text(sizes)
        patch.setattr(host_memory, "_PROC", self.proc)

    def runs_in(self, group: str, *, kind: str = "cgroup2", root: str = "/") -> None:
        """``root``: the group that is mounted."""
        of_process = V2 if kind == "cgroup2" else V1
        (self.proc / "self" / "cgroup").write_text(of_process.format(path=group))
        options = "rw,nsdelegate" if kind == "cgroup2" else "rw,cpu,memory"
        lines = "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
        lines += f"35 31 0:32 {root} {self.mount} rw shared:9 - {kind} {kind} {options}\n"
        lines += f"36 31 0:33 / {self.mount}/pids rw - cgroup cgroup rw,pids\n"
        (self.proc / "self" / "mountinfo").write_text(lines)

    def limit(self, group: str, limit: int | str, *, anon: int = 0, shmem: int = 0) -> None:
        folder = self.mount / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.stat").write_text(f"anon {anon}\nfile 77\nshmem {shmem}\n")

    def limit_v1(self, group: str, limit: int, *, rss: int = 0, shmem: int = 0) -> None:
        folder = self.mount / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
        stat = f"rss 5\nshmem 6\ntotal_cache 7\ntotal_rss {rss}\ntotal_shmem {shmem}\n"
        (folder / "memory.stat").write_text(stat)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def found() -> tuple[int | None, int | None]:
    """The limit and what is available, in MiB."""
    limit, available = host_memory_limit(), available_host_bytes()
    return limit and limit // MIB, None if available is None else available // MIB


def test_without_groups_it_is_what_the_system_can_give(machine: Machine) -> None:
    assert total_host_bytes() == 9000 * MIB and found() == (None, 3000)
    machine.runs_in("/")
    assert found() == (None, 3000)
    (machine.proc / "meminfo").unlink()
    assert total_host_bytes() is None and found() == (None, None)


@pytest.mark.parametrize(
    "limit, held, expected",
    [
        ("max", 500, (None, 3000)),
        (2000 * MIB, 500, (2000, 1500)),
        (2000 * MIB, 2500, (2000, 0)),
        (8000 * MIB, 500, (8000, 3000)),
        (64_000 * MIB, 500, (None, 3000)),  # more than the machine has
    ],
)
def test_a_group_of_its_own_bounds_it(
    limit: int | str, held: int, expected: tuple[int | None, int], machine: Machine
) -> None:
    """A container sees its own group as the root of the hierarchy."""
    machine.runs_in("/")
    machine.limit("", limit, anon=(held - 100) * MIB, shmem=100 * MIB)
    assert found() == expected


def test_the_least_of_all_groups_around_it_counts(machine: Machine) -> None:
    """A job's own group may be unlimited within one that is not; groups beside it do not count."""
    machine.runs_in("/slurm/job_7/step_0")
    machine.limit("slurm/job_7/step_0", "max")
    machine.limit("slurm/job_7", 2500 * MIB, anon=100 * MIB)
    machine.limit("slurm", 4000 * MIB, anon=3900 * MIB)
    machine.limit("slurm/job_8", 10 * MIB)
    assert found() == (2500, 100)
    machine.limit("slurm/job_7/step_0", 50 * MIB)
    assert found() == (50, 50)


def test_groups_of_the_first_version(machine: Machine) -> None:
    """Where nothing is limited, its files hold a number beyond every memory."""
    machine.runs_in("/docker/abc", kind="cgroup")
    machine.limit_v1("", NO_LIMIT, rss=9000 * MIB)
    machine.limit_v1("docker/abc", NO_LIMIT)
    assert found() == (None, 3000)
    machine.limit_v1("docker/abc", 2000 * MIB, rss=300 * MIB, shmem=200 * MIB)
    assert found() == (2000, 1500)


@pytest.mark.parametrize("root", ["/docker/abc", "/docker/other"])
def test_a_part_of_the_hierarchy_may_be_mounted(root: str, machine: Machine) -> None:
    """A container without a namespace of groups is told its path on the host, and sees less."""
    machine.runs_in("/docker/abc/inner", kind="cgroup", root=root)
    machine.limit_v1("", 2000 * MIB)
    machine.limit_v1("inner", 1000 * MIB)
    assert found() == ((1000, 1000) if root == "/docker/abc" else (2000, 2000))


def test_one_process_at_a_time_takes_memory(machine: Machine) -> None:
    meminfo = machine.proc / "meminfo"
    with taking_host_memory(), meminfo.open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with meminfo.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
