"""Calibration of the confidence head: one temperature per draft position, beside the weights."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from deepinfer.errors import CheckpointError

CALIBRATION_FILE = "dspark_calibration.json"
SCHEMA = "deepinfer.dspark_calibration/1"


@dataclass(frozen=True, slots=True)
class Calibration:
    """``temperatures[k]`` divides the logit of the confidence in draft k; none change nothing."""

    temperatures: tuple[float, ...] = ()

    @classmethod
    def from_folder(cls, folder: Path, block_size: int) -> Calibration:
        """What lies beside the weights; a folder without the file is not calibrated.

        Raises: CheckpointError if the file does not fit the model or holds no usable numbers.
        """
        path = folder / CALIBRATION_FILE
        if not path.is_file():
            return cls()
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            if stored["schema"] != SCHEMA:
                raise ValueError(f"schema {stored['schema']!r}, expected {SCHEMA!r}")
            temperatures = tuple(float(t) for t in stored["temperatures"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(
                f"{path} cannot be read ({error}): make it again with training/calibrate.py, "
                "or delete it to draft without calibration"
            ) from error
        usable = all(math.isfinite(t) and t > 0 for t in temperatures)
        if len(temperatures) != block_size or not usable:
            raise CheckpointError(
                f"{path}: expected {block_size} positive temperatures, one per draft position, "
                f"found {list(temperatures)}; make it again with training/calibrate.py"
            )
        return cls(temperatures)

    def survival(self, confidence: Tensor) -> Tensor:
        """How likely each draft is accepted together with all drafts before it.

        Shapes: confidence [R, B] f32 (of each draft, given those before); returns [R, B] f32,
        falling along the block.  A confidence that is not a number counts as 0.
        Source: sequential temperature scaling, arXiv 2607.05147.
        """
        if self.temperatures:
            scale = torch.tensor(self.temperatures, device=confidence.device)
            confidence = torch.sigmoid(torch.logit(confidence) / scale)
        return torch.nan_to_num(confidence, nan=0.0).cumprod(-1)
