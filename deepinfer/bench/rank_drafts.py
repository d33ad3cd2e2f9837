"""``--drafts auto`` on one rank's share: the engine's planner with assumed acceptance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

import torch
from torch import Tensor

from deepinfer.engine.execution.decode import DecodeWorker
from deepinfer.engine.execution.decode_stages import DecodeResult
from deepinfer.engine.execution.decode_step import DecodeStep
from deepinfer.engine.execution.step_sizes import time_sizes
from deepinfer.engine.scheduling.schedule import DecodeBatch
from deepinfer.engine.speculation.calibration import Calibration
from deepinfer.engine.speculation.draft_planner import make_planner
from deepinfer.engine.speculation.graph_profile import graph_profile

from .timed import TimedSteps, timed_steps

_REPEATS = 3


@dataclass(frozen=True, slots=True)
class AssumedChances(Calibration):
    """Random acceptance probabilities with mean ``acceptance``, since random weights have none.

    u ** (1 / acceptance - 1) with uniform u has that mean, and many values close to 1.
    """

    acceptance: float = 0.75

    def survival(
        self, confidence: Tensor, logits: Tensor | None, greedy_rows: Sequence[bool]
    ) -> Tensor:
        if not self.acceptance:
            return torch.zeros_like(confidence)
        return (torch.rand_like(confidence) ** (1 / self.acceptance - 1)).cumprod(-1)


@dataclass(frozen=True, slots=True)
class AutoSteps:
    """Times of steps; per request and step, the drafts verified and the tokens expected; and a
    function that runs another step."""

    once: Callable[[], object]
    timed: TimedSteps
    mean_drafts: float
    mean_tokens: float


def auto_steps(
    step: DecodeStep, batch: DecodeBatch, acceptance: float, num_steps: int
) -> AutoSteps:
    """Steps in which the engine's planner chooses the drafts, given the times of all sizes that a
    step of these requests can have."""
    device, count = torch.device(step.table.device), len(batch.states)
    depths = range(1, max(batch.num_drafts) + 1)
    times = time_sizes(step, batch.states, depths, least=count, repeats=_REPEATS)
    profile = graph_profile(times, str(device), max(depths))
    window = step.model.model.config.sliding_window
    calibration = AssumedChances(acceptance=acceptance)
    planner = make_planner(profile, max(depths), step.table.device, window, calibration)
    worker = DecodeWorker(step, planner=planner, calibration=calibration)
    results: list[DecodeResult] = []
    once = lambda: results.append(worker.run(batch))  # noqa: E731
    timed = timed_steps(once, num_steps, device, in_a_row=True)
    results = results[-num_steps:]
    return AutoSteps(
        once=once,
        timed=timed,
        mean_drafts=mean(sum(result.num_drafts) / count for result in results),
        mean_tokens=mean(1 + sum(map(sum, result.survival)) / count for result in results),
    )
