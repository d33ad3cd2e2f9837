"""What a decode step is known by on its way: planned, launched, drawn, read."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from deepinfer.engine.scheduling.schedule import DecodeBatch
from deepinfer.engine.types import TokenLogprobs

from .decode_step import StepOutput
from .staging import Returned


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftBlock:
    """By request: the drafts to verify, and how likely each was thought to survive.

    logits [R, D, V] f32, where they are kept, is what drafts were drawn from; num_proposed counts
    all that were drafted.
    """

    token_ids: list[list[int]]
    survival: list[list[float]]
    logits: Tensor | None
    num_proposed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeResult:
    """Per request: the new tokens in order, their log-probabilities where asked for, how many
    drafts were verified, and how likely each of those was thought to survive.

    ``num_proposed`` counts the drafts of the step, verified or not; 0 for a step without drafting.
    """

    tokens: list[list[int]]
    logprobs: list[list[TokenLogprobs]]
    num_drafts: list[int]
    survival: list[list[float]]
    num_proposed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDecode:
    """A step before the model runs: how many rows of logits each request gets."""

    batch: DecodeBatch
    block: DraftBlock | None
    counts: list[int]
    started: float

    @property
    def drafts(self) -> list[list[int]] | None:
        return self.block.token_ids if self.block else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedDecode:
    """A step whose logits are on their way."""

    plan: PlannedDecode
    output: StepOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnDecode:
    """A step whose tokens are on their way.

    ``used`` are the logits that they were drawn from, after rules and constraints.
    """

    plan: PlannedDecode
    output: StepOutput
    used: Tensor
    drawn: Tensor
    returned: Returned
