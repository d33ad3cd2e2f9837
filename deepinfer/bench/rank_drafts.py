"""``auto`` drafts on one rank's share: the engine's planner, with chances that are assumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

import torch
from torch import Tensor

from deepinfer.engine.execution.decode import DecodeResult, DecodeWorker
from deepinfer.engine.execution.decode_step import DecodeStep
from deepinfer.engine.scheduling.schedule import DecodeBatch
from deepinfer.engine.speculation.calibration import Calibration
from deepinfer.engine.speculation.draft_planner import make_planner
from deepinfer.engine.speculation.step_profile import StepProfile

from .timed import TimedSteps, repeat_s, timed_steps, wait

_PROFILE_STEPS = 3
_MOST_WARM_STEPS = 60
_WARM_IN_A_ROW = 8


@dataclass(frozen=True, slots=True)
class AssumedChances(Calibration):
    """Each draft's chance is drawn anew, with mean ``acceptance``: random weights know none.

    u ** (1 / acceptance - 1) of a uniform u has that mean, and many drafts that are nearly sure.
    """

    acceptance: float = 0.75

    def survival(self, confidence: Tensor, logits: Tensor, greedy_rows: Sequence[bool]) -> Tensor:
        if not self.acceptance:
            return torch.zeros(confidence.shape)
        return (torch.rand(confidence.shape) ** (1 / self.acceptance - 1)).cumprod(-1)


@dataclass(frozen=True, slots=True)
class AutoSteps:
    """Times of steps, and per request and step the drafts verified and the tokens expected."""

    timed: TimedSteps
    mean_drafts: float
    mean_tokens: float


def auto_steps(
    step: DecodeStep, batch: DecodeBatch, acceptance: float, num_steps: int
) -> AutoSteps:
    """Steps with as many drafts as the engine's planner finds worth it.

    Sizes are the planner's, so graphs of new sizes come up: steps count once there were none of
    them several times in a row.
    """
    device = torch.device(step.table.device)
    profile = step_profile(step, batch)
    window = step.model.model.config.sliding_window
    calibration = AssumedChances(acceptance=acceptance)
    planner = make_planner(profile, step.table.device, window, calibration)
    worker = DecodeWorker(step, planner=planner, calibration=calibration)
    results: list[DecodeResult] = []
    with torch.inference_mode():
        known, quiet = -1, 0
        for _ in range(_MOST_WARM_STEPS):
            worker.run(batch)
            quiet = quiet + 1 if step.graphs.num_captured == known else 0
            known = step.graphs.num_captured
            if quiet == _WARM_IN_A_ROW:
                break
    wait(device)
    timed = timed_steps(lambda: results.append(worker.run(batch)), num_steps, device, 0)
    count = len(batch.states)
    return AutoSteps(
        timed=timed,
        mean_drafts=mean(sum(result.num_drafts) / count for result in results),
        mean_tokens=mean(1 + sum(map(sum, result.survival)) / count for result in results),
    )


def step_profile(step: DecodeStep, batch: DecodeBatch) -> StepProfile:
    """What the planner has to know of steps of this one size."""
    states, block_size = batch.states, max(batch.num_drafts)
    device, first = torch.device(step.table.device), [s.next_position for s in batch.states]

    def seconds(drafts: list[list[int]] | None) -> float:
        return median(repeat_s(lambda: step.run(states, first, drafts), _PROFILE_STEPS, device))

    draft_s = median(repeat_s(lambda: step.draft(states), _PROFILE_STEPS, device))
    single_s, seen_s = seconds(None), seconds([[] for _ in states])
    return StepProfile(
        device=str(device),
        block_size=block_size,
        num_requests=(len(states),),
        draft_s=(draft_s,),
        seed_s=(max(seen_s - single_s, 1e-6),),
        single_s=(single_s,),
        block_s=(seconds([[0] * block_size for _ in states]),),
    )
