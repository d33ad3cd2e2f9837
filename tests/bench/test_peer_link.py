"""The link of a machine with two GPUs, whose copies are made up here."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from deepinfer.bench.peer_link import measured_link
from deepinfer.engine.limits.links import NVLINK

_LATENCY_S, _BYTES_PER_S = 7e-6, 2e11


@dataclass
class _Clock:
    """Copies queue up on a device; whoever waits for it wakes up when they are done."""

    now: float = 0.0
    waiting: float = 0.0

    def synchronize(self, device: str) -> None:
        self.now, self.waiting = self.now + self.waiting, 0.0


@dataclass
class _Remote:
    size: int
    device: str
    clock: _Clock

    def copy_(self, source: _Remote) -> _Remote:
        assert self.size == source.size and self.device != source.device
        self.clock.waiting += _LATENCY_S + self.size / _BYTES_PER_S
        return self


def test_bandwidth_and_latency_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock()

    def perf_counter() -> float:
        clock.now += 1e-9  # as long as it takes to ask
        return clock.now

    def empty(size: int, *, device: str, **_: Any) -> _Remote:
        return _Remote(size, device, clock)

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "synchronize", clock.synchronize)
    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(time, "perf_counter", perf_counter)
    link = measured_link()
    assert link is not None and link.ranks_per_node == NVLINK.ranks_per_node
    assert link.latency_s == pytest.approx(_LATENCY_S, rel=0.01)
    assert link.bytes_per_s == pytest.approx(_BYTES_PER_S, rel=0.01)
    assert "measured in this run" in link.source


def test_one_gpu_has_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert measured_link() is None
