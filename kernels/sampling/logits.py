"""Penalties on logits before sampling, and log-probabilities after it."""

from __future__ import annotations

import torch
from torch import Tensor

_MOST_NUMBERS = 1 << 22  # logits at a time, which limits the memory of temporaries


def apply_penalties(
    logits: Tensor,
    output_counts: Tensor,
    prompt_mask: Tensor,
    presence: Tensor,
    frequency: Tensor,
    repetition: Tensor,
) -> Tensor:
    """Apply repetition (prompt and output), then frequency and presence (output) penalties.

    Shapes: logits [N, V] f32, output_counts [N, V] i32, prompt_mask [N, V] bool;
    presence, frequency, repetition [N] f32; returns [N, V] f32, the input is unchanged.
    Source: Keskar et al. 2019 (repetition: positive logits are divided, negative ones multiplied);
    OpenAI API reference (frequency times the count, presence once).
    """
    is_output = output_counts > 0
    factor = torch.where(is_output | prompt_mask, repetition[:, None], 1.0)
    scaled = torch.where(logits > 0, logits / factor, logits * factor)
    return scaled - frequency[:, None] * output_counts - presence[:, None] * is_output


def penalize_logits(
    logits: Tensor, rows: Tensor, slots: Tensor, drafts: Tensor, marks: Tensor, penalties: Tensor
) -> None:
    """``apply_penalties`` in place, with token counts that are kept by slot.

    Shapes: logits [N, V] f32; rows [M] i64 without duplicates; slots [M] i64; drafts [D, M] i64:
    tokens to count in addition, -1 for none; marks [S, V] i32: twice the count of a token in the
    answer, plus 1 if it is in the prompt; penalties [S, 3] f32: presence, frequency, repetition.
    """
    at_once = max(1, _MOST_NUMBERS // logits.shape[1])
    for start in range(0, len(rows), at_once):
        part = slice(start, start + at_once)
        row, slot, ids = rows[part], slots[part], drafts[:, part].t()
        counts = (marks[slot] >> 1).scatter_add_(1, ids.clamp(min=0), (ids >= 0).int())
        is_prompt = (marks[slot] & 1).bool()
        logits[row] = apply_penalties(logits[row], counts, is_prompt, *penalties[slot].t())


def token_logprobs(
    logits: Tensor, token_ids: Tensor, num_top: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-softmax of the sampled tokens and of the ``num_top`` most likely ones.

    Shapes: logits [N, V] f32, token_ids [N] i64; returns chosen [N] f32, top ids [N, num_top] i64,
    top values [N, num_top] f32, by descending probability, lower id first among equals.
    Batch-invariant: yes.
    """
    logprobs = torch.log_softmax(logits.float(), -1)
    chosen = logprobs.gather(1, token_ids[:, None])[:, 0]
    num_top = min(num_top, logits.shape[1])
    # Distinct keys: by descending probability, then by ascending id.
    size = logprobs.view(torch.int32).long() & 0x7FFFFFFF
    ids = torch.arange(logits.shape[1], device=logits.device)
    order = ((0x7FFFFFFF - size) << 32) | (logits.shape[1] - 1 - ids)
    top_ids = order.topk(num_top, dim=-1).indices
    return chosen, top_ids, logprobs.gather(1, top_ids)
