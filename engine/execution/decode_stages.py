"""The stages of a decode step: planned, launched, drawn, finished."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from deepinfer.engine.scheduling.schedule import DecodeBatch
from deepinfer.engine.types import TokenLogprobs

from .decode_step import StepOutput
from .staging import HostCopy


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftBlock:
    """Per request: the drafts to verify, and the predicted probability that each survives.

    logits [R, D, V] f32: what the drafts were sampled from, if kept.  num_proposed counts all
    drafts, verified or not.
    """

    token_ids: list[list[int]]
    survival: list[list[float]]
    logits: Tensor | None
    num_proposed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeResult:
    """Per request: the new tokens in order, their log-probabilities if requested, the number of
    verified drafts, and the predicted probability that each of these survives.

    ``num_proposed`` counts all drafts of the step, verified or not; 0 for a step without drafting.
    """

    tokens: list[list[int]]
    logprobs: list[list[TokenLogprobs]]
    num_drafts: list[int]
    survival: list[list[float]]
    num_proposed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDecode:
    """A step before the model runs; ``counts``: rows of logits per request."""

    batch: DecodeBatch
    block: DraftBlock | None
    counts: list[int]
    started: float

    @property
    def drafts(self) -> list[list[int]] | None:
        return self.block.token_ids if self.block else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedDecode:
    """A step whose logits are being computed."""

    plan: PlannedDecode
    output: StepOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnDecode:
    """A step whose tokens are being sampled and copied to the host.

    ``used`` are the logits that they are sampled from, after penalties and constraints.
    """

    plan: PlannedDecode
    output: StepOutput
    used: Tensor
    drawn: Tensor
    returned: HostCopy
