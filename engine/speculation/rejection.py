"""Verification by rejection: the target's distribution from drafts of another, with fresh noise.

More drafts survive than when both draw with the same noise, but an answer then depends on where
blocks began, so it cannot be repeated with other drafts or none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from deepinfer.engine.sampling.sampler import RowParams
from deepinfer.kernels.sampling import exponential_noise

# Streams of noise apart from the one that tokens are drawn with.
ACCEPT_STREAM = 0x5851F42D4C957F2D
RESIDUAL_STREAM = 0x14057B7EF767814F
_LEAST_MASS = 1e-8


def rejection_tokens(
    draft_token_ids: Sequence[int],
    draft_probs: Tensor,
    target_probs: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> list[int]:
    """The tokens that a verified block of n drafts yields, 1 to n + 1 of them.

    Shapes: draft_probs [n, V] f32 (what each draft was drawn from), target_probs [n + 1, V] f32,
    seeds, positions [n + 1] i64 (of the tokens drawn).  Draft x counts with probability
    min(1, P(x) / Q(x)); at the first that does not, the block ends with a token of
    max(P - Q, 0).  If all count, the target adds one.  Source: Leviathan et al. 2023.
    """
    drafts = torch.tensor(draft_token_ids, dtype=torch.int64, device=target_probs.device)
    rows = torch.arange(len(drafts), device=drafts.device)
    target, draft = target_probs[rows, drafts], draft_probs[rows, drafts]
    waiting = exponential_noise(seeds[:-1] ^ ACCEPT_STREAM, positions[:-1], 1)[:, 0]
    is_kept = torch.exp(-waiting) * draft < target
    num_kept = int(is_kept.long().cumprod(0).sum())
    last = target_probs[num_kept]
    if num_kept < len(drafts):
        residual = (last - draft_probs[num_kept]).clamp(min=0)
        last = residual if float(residual.sum()) > _LEAST_MASS else last
    at = slice(num_kept, num_kept + 1)
    noise = exponential_noise(seeds[at] ^ RESIDUAL_STREAM, positions[at], len(last))[0]
    return [*draft_token_ids[:num_kept], int((last / noise).argmax())]


def sampling_probs(logits: Tensor, params: RowParams) -> Tensor:
    """What ``draw`` samples from: [N, V] f32, rows that add up to 1.

    Shapes: logits [N, V] f32.  Equally probable tokens are kept or dropped together, as there;
    temperature 0 is one token.  A row without usable logits is all zeros.
    """
    best, token = logits.max(-1, keepdim=True)
    scaled = (logits - best) / params.temperature.clamp(min=1e-30)[:, None]
    probs = scaled.softmax(-1)
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    mass = torch.nn.functional.pad(ordered.cumsum(-1)[:, :-1], (1, 0))
    # Of equals, the first stands for all: nothing but more probable tokens comes before it.
    is_new = torch.nn.functional.pad(ordered[:, 1:] != ordered[:, :-1], (1, 0), value=True)
    places = torch.arange(probs.shape[1], device=probs.device).expand_as(probs)
    first = torch.where(is_new, places, 0).cummax(-1).values
    max_count = torch.where(params.top_k > 0, params.top_k, probs.shape[1])
    is_kept = (mass.gather(1, first) < params.top_p[:, None]) & (first < max_count[:, None])
    is_kept &= ordered >= params.min_p[:, None] * ordered[:, :1]
    kept = torch.zeros_like(probs).scatter_(1, order, torch.where(is_kept, ordered, 0.0))
    one_hot = torch.zeros_like(probs).scatter_(1, token, 1.0)
    is_greedy = params.temperature[:, None] == 0
    probs = torch.where(is_greedy, one_hot, kept / kept.sum(-1, keepdim=True))
    return torch.where(torch.isfinite(best), probs, 0.0).nan_to_num(nan=0.0)
