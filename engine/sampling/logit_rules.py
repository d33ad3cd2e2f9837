"""Logit processing that requests ask for: penalties, bias, no end before ``min_tokens``.

The rows of each request in the logits [N, V] f32 are consecutive, and are changed in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepinfer.engine.execution.staging import send
from deepinfer.engine.types import SamplingParams

if TYPE_CHECKING:
    from deepinfer.engine.scheduling.request_state import RequestState


@dataclass(frozen=True, slots=True, eq=False)
class LogitRules:
    """The logit rules of one request; most requests have none (``LogitRules.of``).

    penalties: presence, frequency, repetition, or None.  bias_ids [B] i64 with bias [B] f32.
    """

    penalties: tuple[float, float, float] | None
    bias_ids: NDArray[np.int64]
    bias: NDArray[np.float32]
    end_token_ids: NDArray[np.int64]
    min_tokens: int

    @classmethod
    def of(cls, sampling: SamplingParams, end_token_ids: Sequence[int]) -> LogitRules | None:
        """The rules of a request; None if it has none."""
        penalties = (
            sampling.presence_penalty,
            sampling.frequency_penalty,
            sampling.repetition_penalty,
        )
        is_penalized = penalties != (0.0, 0.0, 1.0)
        if not (is_penalized or sampling.logit_bias or sampling.min_tokens):
            return None
        bias = sorted(sampling.logit_bias.items())
        return cls(
            penalties=penalties if is_penalized else None,
            bias_ids=np.array([i for i, _ in bias], dtype=np.int64),
            bias=np.array([b for _, b in bias], dtype=np.float32),
            end_token_ids=np.array(sorted(end_token_ids), dtype=np.int64),
            min_tokens=sampling.min_tokens,
        )


@dataclass(frozen=True, slots=True, eq=False)
class RuledRows:
    """The rows of a request with rules: ``count`` rows from ``first`` on, where row j follows the
    first j of ``drafts``."""

    state: RequestState
    rules: LogitRules
    first: int
    count: int
    drafts: Sequence[int]


def ruled_rows(
    states: Sequence[RequestState],
    row_counts: Sequence[int],
    drafts: Sequence[Sequence[int]] | None,
) -> list[RuledRows]:
    """The rows of requests that have rules."""
    firsts = accumulate(row_counts, initial=0)
    return [
        RuledRows(state, state.rules, first, count, drafts[i] if drafts else ())
        for i, (state, first, count) in enumerate(zip(states, firsts, row_counts, strict=False))
        if state.rules is not None
    ]


def add_bias(logits: Tensor, ruled: Iterable[RuledRows]) -> None:
    """Add each request's bias to all of its rows."""
    found = [r for r in ruled if len(r.rules.bias_ids)]
    if found:
        places = _places([(r.first, r.count, r.rules.bias_ids) for r in found], logits.device)
        values = np.concatenate([np.tile(r.rules.bias, r.count) for r in found])
        bias = send(values, logits.device, np.float32)
        logits.index_put_(places, logits[places] + bias)


def bar_ends(logits: Tensor, ruled: Iterable[RuledRows]) -> None:
    """Mask tokens that would end an answer before it has ``min_tokens``."""
    missing = [(r, r.rules.min_tokens - r.state.num_output_tokens) for r in ruled]
    found = [(r, min(count, r.count)) for r, count in missing if count > 0]
    if found:
        ends = [(r.first, count, r.rules.end_token_ids) for r, count in found]
        never = torch.full((), -torch.inf, device=logits.device)
        logits.index_put_(_places(ends, logits.device), never)


def _places(
    parts: Sequence[tuple[int, int, NDArray[np.int64]]], device: torch.device
) -> tuple[Tensor, ...]:
    """Row and column indices of given columns in ``count`` rows from ``first`` on, for all
    parts."""
    rows = [np.repeat(np.arange(first, first + n), len(ids)) for first, n, ids in parts]
    columns = [np.tile(ids, n) for _, n, ids in parts]
    return tuple(send([np.concatenate(rows), np.concatenate(columns)], device))
