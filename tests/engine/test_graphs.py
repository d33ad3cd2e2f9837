"""When a step runs plainly, is captured and is replayed; graphs here only count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from deepinfer.engine.execution.graphs import GraphCache, _Graph
from deepinfer.engine.execution.turns import Turn


class Counted:
    """In place of a CUDA graph."""

    def __init__(self) -> None:
        self.num_replays = 0

    def replay(self) -> None:
        self.num_replays += 1


@pytest.fixture
def cache() -> GraphCache:
    cache = GraphCache("cpu")
    cache.is_enabled = True
    return cache


def capture_with(cache: GraphCache, monkeypatch: pytest.MonkeyPatch, graph: Counted | None) -> None:
    def capture(function: Callable[[], Any]) -> _Graph:
        if graph is None:
            raise torch.OutOfMemoryError("no room")
        return _Graph(graph, function())  # type: ignore[arg-type]

    monkeypatch.setattr(cache, "_capture", capture)


def test_plain_then_captured_then_replayed(
    cache: GraphCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, calls = Counted(), []
    capture_with(cache, monkeypatch, graph)
    results = [cache.run("key", lambda: calls.append(1) or len(calls)) for _ in range(5)]
    assert results == [1, 2, 2, 2, 2]
    assert graph.num_replays == 4  # capturing computes nothing: the second call replays, too
    assert cache.run("other", lambda: "plain") == "plain" and cache.num_captured == 1


def test_without_room_for_a_graph_steps_run_plainly(
    cache: GraphCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture_with(cache, monkeypatch, None)
    calls: list[int] = []
    results = [cache.run("key", lambda: calls.append(1) or len(calls)) for _ in range(4)]
    assert results == [1, 2, 3, 4] and cache.num_captured == 0


def test_nothing_is_captured_on_a_cpu_or_where_it_is_not_wanted() -> None:
    assert not GraphCache("cpu").is_enabled
    assert not GraphCache("cuda", captures=False).is_enabled
    assert GraphCache("cuda:1").is_enabled


def test_a_turn_adds_to_the_key_and_ends_graphs_that_are_out_of_date(
    cache: GraphCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture_with(cache, monkeypatch, Counted())
    calls: list[object] = []

    def run(turn: Turn) -> int:
        cache.run("key", lambda: calls.append(turn), turn)
        return cache.num_captured

    assert [run(Turn(None)) for _ in range(3)] == [0, 0, 0] and len(calls) == 3
    assert [run(Turn(8)), run(Turn(8)), run(Turn(16)), run(Turn(16))] == [0, 1, 1, 2]
    assert [run(Turn(8, epoch=1)), run(Turn(8, epoch=1))] == [0, 1]
