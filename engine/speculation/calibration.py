"""Calibration: predicted acceptance of drafts, fitted offline and stored beside the weights."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepinfer.engine.execution.staging import send
from deepinfer.errors import CheckpointError

CALIBRATION_FILE = "dspark_calibration.json"
SCHEMA = "deepinfer.dspark_calibration/1"
_LEAST = 1e-6  # probabilities are clamped away from 0 and 1, where logits are infinite

Scales = tuple[tuple[float, float], ...]
"""Per draft position, a factor (inverse temperature) and an offset applied to the logit."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Scales for randomly sampled and for greedy requests; both empty: not calibrated.

    ``typical_survival``: by position, the fraction of drafts accepted together with all before them
    in the data of the fit; empty if unknown.

    The confidence head estimates the overlap of the draft's and the model's distributions, which is
    the acceptance probability of a random sample.  For greedy requests the question is whether both
    have the same argmax, which the draft's own maximum probability predicts better.
    """

    sampled: Scales = ()
    greedy: Scales = ()
    typical_survival: tuple[float, ...] = ()

    @classmethod
    def from_folder(cls, folder: Path, block_size: int) -> Calibration:
        """Read the file beside the weights; without it, there is no calibration.

        Raises: CheckpointError if the file does not fit the model or has unusable numbers.
        """
        path = folder / CALIBRATION_FILE
        if not path.is_file():
            return cls()
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            if stored["schema"] != SCHEMA:
                raise ValueError(f"schema {stored['schema']!r}, expected {SCHEMA!r}")
            return cls(
                _scales(stored["sampled"], block_size),
                _scales(stored["greedy"], block_size),
                _survival(stored.get("typical_survival", ()), block_size),
            )
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(
                f"{path}: {type(error).__name__}: {error}; create it again with "
                "training/calibrate.py, or delete it to draft without calibration"
            ) from error

    @property
    def reads_logits(self) -> bool:
        """Whether ``survival`` needs the logits of greedy requests."""
        return bool(self.greedy)

    def survival(
        self, confidence: Tensor, logits: Tensor | None, greedy_rows: Sequence[bool]
    ) -> Tensor:
        """Probability that each draft is accepted together with all drafts before it.

        Shapes: confidence [R, D] f32 (of the first D drafts of each block, given those before),
        logits [R, D, V] f32 that they were sampled from, greedy_rows R flags; returns [R, D] f32,
        descending along the block.
        NaN counts as 0.  Does not wait for the device.
        Source: sequential scaling after arXiv 2607.05147, with an offset besides the temperature.
        """
        chances = confidence
        if self.sampled:
            chances = _scaled(confidence, self.sampled)
        if self.greedy and any(greedy_rows):
            assert logits is not None
            is_greedy = send(greedy_rows, confidence.device, np.bool_)[:, None]
            peak = torch.exp(logits.amax(-1) - logits.logsumexp(-1))
            chances = torch.where(is_greedy, _scaled(peak, self.greedy), chances)
        return torch.nan_to_num(chances, nan=0.0).cumprod(-1)


def _scaled(evidence: Tensor, scales: Scales) -> Tensor:
    factor, offset = send(scales[: evidence.shape[1]], evidence.device, np.float32).T
    return torch.sigmoid(torch.logit(evidence, eps=_LEAST) * factor + offset)


def _scales(stored: Any, block_size: int) -> Scales:
    scales = tuple((float(factor), float(offset)) for factor, offset in stored)
    if len(scales) != block_size or not all(map(math.isfinite, sum(scales, ()))):
        raise ValueError(f"expected {block_size} pairs of numbers, one per draft position")
    return scales


def _survival(stored: Any, block_size: int) -> tuple[float, ...]:
    chances = tuple(map(float, stored))
    if chances and (len(chances) != block_size or not all(0 <= c <= 1 for c in chances)):
        raise ValueError(f"expected {block_size} probabilities, one per draft position")
    return chances
