"""Times steps on a device, and measures their energy."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from deepinfer.engine.execution.staging import wait_for
from deepinfer.nvml import GpuEnergy

_WARM_STEPS = 3
# The driver's energy counter is updated about ten times per second.
_LEAST_ENERGY_S = 0.5


@dataclass(frozen=True, slots=True)
class TimedSteps:
    """Wall times, and joules per step if the GPU counts them and the steps took long enough."""

    step_s: tuple[float, ...]
    energy_j: float | None


def timed_steps(
    call: Callable[[], object],
    count: int,
    device: torch.device,
    num_warm: int = _WARM_STEPS,
    *,
    in_a_row: bool = False,
) -> TimedSteps:
    """``repeat_s`` with energy."""
    repeat_s(call, 0, device, num_warm)
    if device.type != "cuda":
        return TimedSteps(repeat_s(call, count, device, 0), None)
    energy = GpuEnergy(numbers=[device.index or 0])
    step_s = repeat_s(call, count, device, 0, in_a_row=in_a_row)
    joules = energy.joules() if sum(step_s) >= _LEAST_ENERGY_S else None
    return TimedSteps(step_s, None if joules is None else joules / count)


def repeat_s(
    call: Callable[[], object],
    count: int,
    device: torch.device,
    num_warm: int = _WARM_STEPS,
    *,
    in_a_row: bool = False,
) -> tuple[float, ...]:
    """Wall times of ``count`` calls, each from idle device to idle device; with ``in_a_row``, from
    the end of one call to the end of the next, without synchronization.

    On a GPU the first call compiles and the second captures a graph, so three calls warm up.
    """
    times = []
    with torch.inference_mode():
        for number in range(num_warm + count):
            if not in_a_row or not number:
                wait_for(device)
                started = time.perf_counter()
            call()
            if not in_a_row:
                wait_for(device)
            ended = time.perf_counter()
            if number >= num_warm:
                times.append(ended - started)
            started = ended
    return tuple(times)
