"""``StepTimes``: times of prefill and decode steps, fitted to measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_GROUP_RATIO = 1.25  # decode steps with similar numbers of requests are averaged


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds per step, and tokens that a decode step adds to each request.

    A prefill step takes ``prefill_base_s`` plus ``prefill_token_s`` per token.  Decode steps are
    known for some ascending ``num_requests`` and interpolated between them.
    """

    prefill_base_s: float
    prefill_token_s: float
    num_requests: tuple[float, ...]
    decode_step_s: tuple[float, ...]
    decode_tokens: tuple[float, ...]

    def prefill_s(self, num_tokens: int) -> float:
        return self.prefill_base_s + self.prefill_token_s * num_tokens

    def decode_s(self, num_requests: int) -> float:
        """Beyond the largest number that was timed it is extrapolated linearly, but neither below
        the time for that number nor above proportional growth."""
        last, last_s = self.num_requests[-1], self.decode_step_s[-1]
        if num_requests <= last:
            return float(np.interp(num_requests, self.num_requests, self.decode_step_s))
        slope = last_s / last
        if len(self.num_requests) > 1:
            rise = (last_s - self.decode_step_s[-2]) / (last - self.num_requests[-2])
            slope = min(max(rise, 0.0), slope)
        return last_s + slope * (num_requests - last)

    def tokens_per_step(self, num_requests: int) -> float:
        return float(np.interp(num_requests, self.num_requests, self.decode_tokens))


def fit_step_times(
    prefills: Sequence[tuple[int, float]], decodes: Sequence[tuple[int, int, float]]
) -> StepTimes:
    """Fit measured steps: ``(tokens, seconds)`` of prefill steps and ``(requests, new tokens,
    seconds)`` of decode steps.  There must be a prefill step; without decode steps, one is assumed
    to take as long as a prefill of one token.
    """
    base_s, token_s = _fit_line(prefills)
    groups = _groups(decodes) or [(1.0, base_s + token_s, 1.0)]
    return StepTimes(
        prefill_base_s=base_s,
        prefill_token_s=token_s,
        num_requests=tuple(number for number, _, _ in groups),
        decode_step_s=tuple(seconds for _, seconds, _ in groups),
        decode_tokens=tuple(tokens for _, _, tokens in groups),
    )


def _fit_line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """``seconds = base + slope * tokens``, neither negative, that reproduces the total seconds."""
    tokens, seconds = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    mean_tokens, mean_s = tokens.mean(), seconds.mean()
    spread = ((tokens - mean_tokens) ** 2).sum()
    slope = mean_s / mean_tokens
    if spread > 0:
        covariance = ((tokens - mean_tokens) * (seconds - mean_s)).sum()
        slope = min(max(covariance / spread, 0.0), slope)
    return float(mean_s - slope * mean_tokens), float(slope)


def _groups(decodes: Sequence[tuple[int, int, float]]) -> list[tuple[float, float, float]]:
    """(mean requests, mean seconds, tokens per request) of groups of similar batch sizes."""
    groups: list[list[tuple[int, int, float]]] = []
    for step in sorted(decodes):
        if not groups or step[0] > groups[-1][0][0] * _GROUP_RATIO:
            groups.append([])
        groups[-1].append(step)
    means = []
    for group in groups:
        requests, tokens, seconds = (sum(column) for column in zip(*group, strict=True))
        means.append((requests / len(group), seconds / len(group), tokens / requests))
    return means
