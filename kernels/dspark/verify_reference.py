"""Verification by rejection sampling in plain torch: the specification.

Samples from the target's distribution given drafts from another, with fresh noise.  More drafts are
accepted than if both are drawn with the same noise, but an answer then depends on where blocks of
drafts started.
R requests, at most n drafts each, N rows of target logits, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from deepinfer.errors import TensorError
from deepinfer.kernels.sampling import exponential_noise

# Noise streams that are independent of the one that tokens are drawn with.
ACCEPT_STREAM = 0x5851F42D4C957F2D
RESIDUAL_STREAM = 0x14057B7EF767814F
LEAST_MASS = 1e-8


def verify_drafts_reference(
    target: Tensor,
    draft: Tensor,
    token_ids: Tensor,
    first: Tensor,
    lens: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """How many drafts each request keeps, and the token that follows them: [R, 2] i64.

    Shapes: target [N, V] f32; draft [R, n, V] f32 (logits that each draft was drawn from);
    token_ids [R, n] i64, of which ``lens`` [R] i64 are verified; first [R] i64: the first of the
    request's lens + 1 rows of ``target``; as in ``sample``, but per request: temperature (above 0),
    top_p, min_p [R] f32, top_k, seeds [R] i64; positions [N] i64.
    Draft x is kept with probability min(1, P(x) / Q(x)), where P and Q are the distributions of
    target and draft after all filters.  After the first rejected draft a token is drawn from
    max(P - Q, 0), normalized; if all are kept, from P.  Source: Leviathan et al. 2023.
    Raises: TensorError.
    """
    if token_ids.shape != draft.shape[:2] or not len(token_ids) == len(first) == len(lens):
        raise TensorError(
            f"token_ids, first, lens: expected {list(draft.shape[:2])} and [{len(draft)}], found "
            f"{list(token_ids.shape)}, {list(first.shape)} and {list(lens.shape)}"
        )
    results = []
    for request, (start, count) in enumerate(zip(first.tolist(), lens.tolist(), strict=True)):
        rows = slice(start, start + count + 1)
        filters = [x[request].expand(count + 1) for x in (temperature, top_p, top_k, min_p)]
        results.append(
            _verify(
                drawn_probs(target[rows], *filters),
                drawn_probs(draft[request, :count], *(x[:count] for x in filters)),
                token_ids[request, :count],
                seeds[request].repeat(count + 1),
                positions[rows],
            )
        )
    return torch.tensor(results, dtype=torch.int64, device=target.device).view(-1, 2)


def _verify(
    target: Tensor, draft: Tensor, drafts: Tensor, seeds: Tensor, positions: Tensor
) -> tuple[int, int]:
    """One request: target [n + 1, V], draft [n, V], drafts [n], seeds and positions [n + 1]."""
    rows = torch.arange(len(drafts), device=drafts.device)
    waiting = exponential_noise(seeds[:-1] ^ ACCEPT_STREAM, positions[:-1], 1)[:, 0]
    is_kept = torch.exp(-waiting) * draft[rows, drafts] < target[rows, drafts]
    is_kept &= drafts >= 0  # -1: drafted from a row without usable logits
    num_kept = int(is_kept.long().cumprod(0).sum())
    last = target[num_kept]
    if num_kept < len(drafts):
        residual = (last - draft[num_kept]).clamp(min=0)
        last = residual if float(residual.sum()) > LEAST_MASS else last
    at = slice(num_kept, num_kept + 1)
    noise = exponential_noise(seeds[at] ^ RESIDUAL_STREAM, positions[at], len(last))[0]
    return num_kept, int((last / noise).argmax())


def drawn_probs(
    logits: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor, min_p: Tensor
) -> Tensor:
    """The distribution that ``sample`` draws from: [N, V] f32, rows that sum to 1.

    Shapes: logits [N, V] f32.  As in ``sample``, equally probable tokens are kept or dropped
    together, and several +inf logits share the whole probability.  A row with NaN or without any
    logit above -inf is all zeros.
    """
    best = logits.amax(-1, keepdim=True)
    at_top = torch.where(logits == torch.inf, 0.0, -torch.inf)
    logits = torch.where(best == torch.inf, at_top, logits)
    best = torch.where(best == torch.inf, 0.0, best)
    probs = ((logits - best) / temperature.clamp(min=1e-30)[:, None]).softmax(-1)
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    mass = pad(ordered.cumsum(-1)[:, :-1], (1, 0))
    # Among equals the first decides for all: only more probable tokens come before it.
    is_new = pad(ordered[:, 1:] != ordered[:, :-1], (1, 0), value=True)
    places = torch.arange(probs.shape[1], device=probs.device).expand_as(probs)
    first = torch.where(is_new, places, 0).cummax(-1).values
    max_count = torch.where(top_k > 0, top_k, probs.shape[1])
    max_mass = torch.where(top_p < 1, top_p, torch.inf)  # sums of many may round to 1
    is_kept = (mass.gather(1, first) < max_mass[:, None]) & (first < max_count[:, None])
    is_kept &= ordered >= min_p[:, None] * ordered[:, :1]
    kept = torch.zeros_like(probs).scatter_(1, order, torch.where(is_kept, ordered, 0.0))
    probs = kept / kept.sum(-1, keepdim=True)
    return torch.where(torch.isfinite(best), probs, 0.0).nan_to_num(nan=0.0)
