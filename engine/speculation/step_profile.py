"""``StepProfile``: times of decode steps on a device, measured once and kept."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from deepinfer.engine.execution.padded_sizes import padded_size, padded_sizes
from deepinfer.errors import ConfigError

SCHEMA = "deepinfer.step_profile/3"
_BY_REQUESTS = ("num_requests", "draft_s", "first_s", "seed_s", "single_s", "block_s")
_BY_SIZE = ("sizes", "size_s")


def step_clock(device: str) -> Callable[[], float]:
    """The clock for timing steps: on a CPU this thread's processor time, since steps are short and
    other programs interfere."""
    return time.thread_time if device == "cpu" else time.perf_counter


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfile:
    """Seconds by number of requests, interpolated between those measured.

    device         the device that was measured
    num_requests   batch sizes, ascending
    draft_s        drafting one block for each request
    first_s        drafting only the first token of each block
    seed_s         feeding one token of each request to the draft stages
    single_s       a step with one token per request, not fed to the draft stages
    block_s        a step with ``block_size`` drafts per request, fed to the draft stages
    sizes          with padded steps: the padded sizes in tokens, ascending
    size_s         a step of each of these sizes, fed to the draft stages
    """

    device: str
    block_size: int
    num_requests: tuple[int, ...]
    draft_s: tuple[float, ...]
    first_s: tuple[float, ...]
    seed_s: tuple[float, ...]
    single_s: tuple[float, ...]
    block_s: tuple[float, ...]
    sizes: tuple[int, ...] = ()
    size_s: tuple[float, ...] = ()

    def drafting_s(self, num_requests: int, depth: int) -> float:
        """Seconds to draft ``depth`` tokens for each request."""
        first, block = self._at(self.first_s, num_requests), self._at(self.draft_s, num_requests)
        return first + (block - first) * (depth - 1) / max(self.block_size - 1, 1)

    def verify_s(self, num_requests: int, num_drafts: ArrayLike) -> NDArray[np.float64]:
        """Seconds of a step that verifies ``num_drafts`` in all, after drafting; any shape."""
        drafts = np.asarray(num_drafts)
        if self.sizes:
            steps = np.array(padded_sizes(num_requests + int(drafts.max(initial=0))))
            padded = steps[np.searchsorted(steps, num_requests + drafts)]
            beyond = np.maximum(padded / self.sizes[-1], 1.0)
            return np.asarray(beyond * np.interp(padded, self.sizes, self.size_s))
        single = self._at(self.single_s, num_requests) + self._at(self.seed_s, num_requests)
        block = max(self._at(self.block_s, num_requests), single)
        return np.asarray(single + (block - single) / (num_requests * self.block_size) * drafts)

    def plain_step_s(self, num_requests: int) -> float:
        """Seconds of a step without any drafting."""
        return self._at(self.single_s, num_requests)

    def catch_up_s(self, num_requests: int, num_steps: int) -> float:
        """Seconds to feed the tokens of ``num_steps`` steps to the draft stages."""
        return num_steps * self._at(self.seed_s, num_requests)

    def save(self, path: Path) -> None:
        """Write the profile as JSON.  Raises: ConfigError if ``path`` cannot be written."""
        try:
            text = json.dumps({"schema": SCHEMA} | asdict(self), indent=1)
            path.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write the step profile {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: Path) -> StepProfile:
        """Read a saved profile.  Raises: ConfigError if the file is not a profile."""
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            if stored.pop("schema") != SCHEMA:
                raise ValueError(f"not {SCHEMA}")
            curves = {name: tuple(stored[name]) for name in (*_BY_REQUESTS, *_BY_SIZE)}
            profile = cls(**(stored | curves))
            profile._check()
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"{path} is not a step profile ({error}): delete it to have it measured again"
            ) from error
        return profile

    def _check(self) -> None:
        for names in (_BY_REQUESTS, _BY_SIZE):
            counts, *curves = (getattr(self, name) for name in names)
            if any(len(curve) != len(counts) for curve in curves):
                raise ValueError("its curves have different lengths")
            if any(a >= b for a, b in zip((0, *counts), counts, strict=False)):
                raise ValueError(f"{names[0]} must rise from 1 or more")
            if not all(math.isfinite(s) and s > 0 for curve in curves for s in curve):
                raise ValueError("seconds must be positive")
        if not self.num_requests or self.block_size < 1:
            raise ValueError("num_requests is empty or block_size is not positive")

    def _at(self, seconds: Sequence[float], num_requests: int) -> float:
        """Interpolated; proportional beyond the last measured number."""
        num_requests = padded_size(num_requests) if self.sizes else num_requests
        last = self.num_requests[-1]
        scale = max(num_requests / last, 1.0)
        return scale * float(np.interp(num_requests, self.num_requests, seconds))
