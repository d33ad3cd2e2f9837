"""Processes of ranks: messages, failures with the right name, nobody left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
import rank_mains

from deepinfer.engine.parallel.launch import RankProcesses
from deepinfer.engine.parallel.mailbox import Lost
from deepinfer.errors import ConfigError, DeepInferError, EngineError


def is_alive(process_id: int) -> bool:
    with suppress(FileNotFoundError), open(f"/proc/{process_id}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def wait_until_gone(process_ids: list[int]) -> None:
    deadline = time.monotonic() + 120
    while any(map(is_alive, process_ids)):
        assert time.monotonic() < deadline, "a process outlives its driver"
        time.sleep(0.02)


@pytest.fixture
def started() -> Iterator[list[RankProcesses]]:
    ranks: list[RankProcesses] = []
    yield ranks
    for processes in ranks:
        processes.close()


def collect(ranks: RankProcesses, count: int) -> list[tuple[int, object]]:
    messages: list[tuple[int, object]] = []
    while len(messages) < count:
        messages += ranks.receive(20)
    return messages


def test_messages_go_both_ways_whatever_their_size() -> None:
    with closing(RankProcesses(rank_mains.echo, ["a", "b"])) as ranks:
        started = dict(collect(ranks, 2))
        assert {rank: message[1] for rank, message in started.items()} == {0: "a", 1: "b"}  # type: ignore[index]
        assert [started[r][2] for r in range(2)] == ranks.process_ids  # type: ignore[index]
        large = b"x" * 4_000_000  # far more than a pipe holds, in both directions at once
        for _ in range(3):
            ranks.send(1, large)
        assert collect(ranks, 3) == [(1, large)] * 3
        assert ranks.receive(0.0) == []
        process_ids = ranks.process_ids
    wait_until_gone(process_ids)


@pytest.mark.parametrize(
    ("ends", "kind", "message"),
    [
        (["config", "peer"], ConfigError, r"^rank 0 of 2 \(process \d+\): max_num_seqs=0"),
        (["peer", "slow peer"], ConfigError, r"^rank 1 of 2 \(process \d+\): max_num_seqs=0"),
        (["peer", "kill"], EngineError, r"^rank 1 of 2 \(process \d+\) was killed by SIGKILL$"),
        (["exit", "stay"], EngineError, r"^rank 0 .* unexpectedly with exit code 7$"),
        (["stay", "bug"], EngineError, r"^rank 1 .*: ZeroDivisionError: division by zero \(.*py:"),
        (["peer", "stay"], EngineError, r"^rank 0 .*: the exchange with the others broke$"),
    ],
)
def test_the_first_failure_ends_all(
    ends: list[str], kind: type[DeepInferError], message: str, started: list[RankProcesses]
) -> None:
    ranks = RankProcesses(rank_mains.fail, ends)
    started.append(ranks)
    for rank in range(2):
        ranks.send(rank, "go")
    with pytest.raises(kind, match=message):
        collect(ranks, 1)
    wait_until_gone(ranks.process_ids)


def test_an_expendable_rank_is_missed_not_mourned(started: list[RankProcesses]) -> None:
    ranks = RankProcesses(rank_mains.echo, [0, 1], expendable=frozenset({1}))
    started.append(ranks)
    collect(ranks, 2)
    os.kill(ranks.process_ids[1], signal.SIGKILL)
    ((rank, lost),) = collect(ranks, 1)
    assert rank == 1 and isinstance(lost, Lost) and "killed by SIGKILL" in lost.reason
    ranks.send(1, "to nobody")
    ranks.send(0, "still here")
    assert collect(ranks, 1) == [(0, "still here")]


def test_ranks_die_with_a_driver_that_is_killed() -> None:
    command = [sys.executable, "-c", "import rank_mains; rank_mains.drive()"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        process_ids = [int(word) for word in driver.stdout.readline().split()]
        assert len(process_ids) == 2 and all(map(is_alive, process_ids))
        driver.kill()
        wait_until_gone(process_ids)
