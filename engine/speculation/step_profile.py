"""``StepProfile``: how long decode steps take on this device, measured once and kept."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from deepinfer.errors import ConfigError

SCHEMA = "deepinfer.step_profile/2"


def step_clock(device: str) -> Callable[[], float]:
    """Seconds to compare steps by.  On a CPU those that this thread ran: steps there are short, and
    other programs come and go between them."""
    return time.thread_time if device == "cpu" else time.perf_counter


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfile:
    """Seconds by number of requests, interpolated between those measured.

    device         what was measured; times of another device say nothing here
    num_requests   rising
    draft_s        one drafted block for each request
    seed_s         letting the draft stages see one token of each request
    single_s       a step of one token of each request, which the draft stages do not see
    block_s        a step with ``block_size`` drafts of each request, which the draft stages see
    """

    device: str
    block_size: int
    num_requests: tuple[int, ...]
    draft_s: tuple[float, ...]
    seed_s: tuple[float, ...]
    single_s: tuple[float, ...]
    block_s: tuple[float, ...]

    def draft_step_s(self, num_requests: int) -> tuple[float, float]:
        """Seconds of a step with drafting that verifies nothing, and of each draft verified."""
        single = self._at(self.single_s, num_requests) + self._at(self.seed_s, num_requests)
        block = max(self._at(self.block_s, num_requests), single)
        per_draft = (block - single) / (num_requests * self.block_size)
        return self._at(self.draft_s, num_requests) + single, per_draft

    def plain_step_s(self, num_requests: int) -> float:
        """Seconds of a step without any drafting."""
        return self._at(self.single_s, num_requests)

    def catch_up_s(self, num_requests: int, num_steps: int) -> float:
        """Seconds until the draft stages have seen all of so many steps without drafting."""
        return num_steps * self._at(self.seed_s, num_requests)

    def save(self, path: Path) -> None:
        """Write the profile as JSON.  Raises: ConfigError if the place cannot be written."""
        try:
            text = json.dumps({"schema": SCHEMA} | asdict(self), indent=1)
            path.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write the step profile {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: Path) -> StepProfile:
        """Read a saved profile.  Raises: ConfigError if it is none."""
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            if stored.pop("schema") != SCHEMA:
                raise ValueError(f"not {SCHEMA}")
            curves = {
                name: tuple(stored[name])
                for name in ("num_requests", "draft_s", "seed_s", "single_s", "block_s")
            }
            profile = cls(**(stored | curves))
            profile._check()
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"{path} is not a step profile ({error}): delete it, and it is measured again"
            ) from error
        return profile

    def _check(self) -> None:
        curves = (self.draft_s, self.seed_s, self.single_s, self.block_s)
        counts = self.num_requests
        if not counts or any(len(curve) != len(counts) for curve in curves):
            raise ValueError("its curves have different lengths")
        if counts[0] < 1 or any(a >= b for a, b in zip(counts, counts[1:], strict=False)):
            raise ValueError("num_requests must rise")
        if not all(math.isfinite(s) and s > 0 for curve in curves for s in curve):
            raise ValueError("seconds must be positive")
        if self.block_size < 1:
            raise ValueError("block_size must be positive")

    def _at(self, seconds: Sequence[float], num_requests: int) -> float:
        """Interpolated; beyond the last measured number it grows in proportion."""
        last = self.num_requests[-1]
        scale = max(num_requests / last, 1.0)
        return scale * float(np.interp(num_requests, self.num_requests, seconds))
