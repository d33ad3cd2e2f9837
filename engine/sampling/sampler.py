"""``Sampler``: sampling parameters by slot; logits to tokens and log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from deepinfer.engine.execution.staging import send
from deepinfer.engine.scheduling.request_state import RequestState
from deepinfer.engine.types import TokenLogprobs
from deepinfer.kernels.sampling import sample, token_logprobs

from .logit_rules import add_bias, bar_ends, ruled_rows
from .seen_tokens import SeenTokens
from .step_masks import StepMasks

# Smaller values would become 0 in f32, which has another meaning.  At a temperature of 1e-20 only
# the most likely token is ever drawn, and a top-p of 1e-20 keeps a single token.
_LEAST = 1e-20


@dataclass(frozen=True, slots=True, kw_only=True)
class RowParams:
    """Sampling parameters by row: temperature, top_p, min_p [N] f32, top_k, seeds [N] i64."""

    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    top_k: Tensor
    seeds: Tensor


class Sampler:
    """Keeps each slot's parameters in tensors, so that a step only has to index them."""

    def __init__(self, num_slots: int, device: str) -> None:
        self.device = device
        self._floats = torch.zeros((3, num_slots), dtype=torch.float32, device=device)
        self._top_k = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self._seeds = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self._seen = SeenTokens(num_slots, device)

    def assign(self, states: Sequence[RequestState]) -> None:
        """Set the parameters of requests that have just been assigned their slots."""
        asked = [state.request.sampling for state in states]
        values = [
            (max(s.temperature, _LEAST) if s.temperature else 0, max(s.top_p, _LEAST), s.min_p)
            for s in asked
        ]
        seeds = [state.request.seed & (2**64 - 1) for state in states]
        slots, top_k, signed = send(
            [
                [state.slot for state in states],
                [s.top_k for s in asked],
                [seed - 2**64 if seed >= 2**63 else seed for seed in seeds],
            ],
            self.device,
        )
        self._floats[:, slots] = send(np.transpose(values), self.device, np.float32)
        self._top_k[slots] = top_k
        self._seeds[slots] = signed

    def adjust(
        self,
        logits: Tensor,
        states: Sequence[RequestState],
        row_counts: Sequence[int],
        drafts: Sequence[Sequence[int]] | None,
        masks: StepMasks,
    ) -> Tensor:
        """Logits [N, V] f32 with every request's rules and constraint applied to its ``row_counts``
        consecutive rows; ``drafts`` lead from one row to the next.

        Without rules and constraints the input is returned.  Otherwise it is changed in place,
        unless a request asks for log-probabilities, which are those of the unchanged logits.
        """
        ruled = ruled_rows(states, row_counts, drafts)
        if (ruled or masks) and any(state.request.sampling.logprobs for state in states):
            logits = logits.clone()
        if ruled:
            self._seen.penalize(logits, ruled)
            add_bias(logits, ruled)
            bar_ends(logits, ruled)
        if masks:
            masks.apply(logits)
        return logits

    def draw(self, logits: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        """Sample one token id per row, -1 for a row without usable logits.

        Shapes: logits [N, V] f32; slots [N] i64, for parameters and seed; positions [N] i64 of the
        tokens to draw; returns [N] i64.
        """
        row = self.params(slots)
        return sample(
            logits, row.temperature, row.top_p, row.top_k, row.min_p, row.seeds, positions
        )

    def params(self, slots: Tensor) -> RowParams:
        """The parameters of ``slots`` [N] i64."""
        temperature, top_p, min_p = self._floats[:, slots]
        return RowParams(
            temperature=temperature,
            top_p=top_p,
            min_p=min_p,
            top_k=self._top_k[slots],
            seeds=self._seeds[slots],
        )


def new_logprobs(
    states: Sequence[RequestState],
    logits: Tensor,
    drawn: Tensor,
    row_counts: Sequence[int],
    tokens: Sequence[Sequence[int]],
) -> list[list[TokenLogprobs]]:
    """Log-probabilities of each request's new tokens; empty if not requested.

    Request i has ``row_counts[i]`` consecutive rows of raw logits [N, V] and drawn ids [N]; its new
    tokens belong to the first of these rows.
    """
    if not any(state.request.sampling.logprobs for state in states):
        return [[] for _ in states]
    rows: list[int] = []
    counts: list[int] = []
    first = 0
    for state, count, new in zip(states, row_counts, tokens, strict=True):
        is_asked = state.request.sampling.logprobs
        counts.append(sum(token >= 0 for token in new) if is_asked else 0)
        rows += range(first, first + counts[-1])
        first += count
    if not rows:
        return [[] for _ in states]
    num_top = max(s.request.sampling.top_logprobs for s in states if s.request.sampling.logprobs)
    index = send(rows, logits.device)
    found = iter(_logprobs(logits[index], drawn[index], num_top))
    return [
        [_cut(next(found), state.request.sampling.top_logprobs) for _ in range(count)]
        for state, count in zip(states, counts, strict=True)
    ]


def _cut(logprobs: TokenLogprobs, num_top: int) -> TokenLogprobs:
    return replace(logprobs, top=logprobs.top[:num_top])


def _logprobs(logits: Tensor, token_ids: Tensor, num_top: int) -> list[TokenLogprobs]:
    chosen, top_ids, top_values = token_logprobs(logits, token_ids, num_top)
    rows = zip(
        token_ids.tolist(), chosen.tolist(), top_ids.tolist(), top_values.tolist(), strict=True
    )
    return [
        TokenLogprobs(token_id=t, logprob=c, top=tuple(zip(ids, values, strict=True)))
        for t, c, ids, values in rows
    ]
