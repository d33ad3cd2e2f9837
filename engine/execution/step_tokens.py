"""The tokens of a decode step: each request's newest one and the drafts to verify after it.

Laid out by the host if it knows the drafts, else by the device.  The rows of a [4, T] array are the
tokens' ids, positions, request rows, and indices among the T.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .staging import send

NEWEST = -1  # instead of a token id: the slot's newest token, which only the device may know


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChosenDrafts:
    """T tokens of R requests, selected by the device: tokens [4, T] i64; lens [R] i64, including
    the newest token of each; most_lens [R]: upper bounds of these, on the host."""

    tokens: Tensor
    lens: Tensor
    most_lens: NDArray[np.int64]


def choose_drafts(
    token_ids: Tensor,
    survival: Tensor,
    first: Sequence[int],
    most: Sequence[int],
    budget: int,
) -> ChosenDrafts:
    """Select the ``budget`` drafts most likely to survive, at most ``most`` of each request; ties
    are broken arbitrarily.  Does not wait for the device.

    Shapes: token_ids [R, D] i64, survival [R, D] f32 without NaN, each row descending; ``first``:
    positions of the newest tokens.  ``budget`` must not exceed what the limits allow.
    """
    device, (count, depth) = survival.device, token_ids.shape
    begins, limits = send([first, most], device)
    within = torch.arange(depth, device=device) < limits[:, None]
    likeliest = torch.where(within, survival, -1.0).flatten().topk(budget, sorted=False).indices
    lens = torch.ones(count, dtype=torch.int64, device=device)
    lens.scatter_add_(0, likeliest // depth, torch.ones_like(likeliest))
    num_tokens = count + budget
    rows = torch.repeat_interleave(lens, output_size=num_tokens)
    places = torch.arange(num_tokens, device=device)
    inside = places - (lens.cumsum(0) - lens)[rows]
    ids = torch.where(inside > 0, token_ids[rows, (inside - 1).clamp_(min=0)], NEWEST)
    return ChosenDrafts(
        tokens=torch.stack([ids, begins[rows] + inside, rows, places]),
        lens=lens,
        most_lens=1 + np.minimum(most, depth),
    )


def known_drafts(
    first: Sequence[int], drafts: Sequence[Sequence[int]] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[4, T] with all ``drafts``, if any, of R requests, and the tokens per request [R]."""
    begins = np.asarray(first, dtype=np.int64)
    lens = np.ones(len(begins), dtype=np.int64)
    token_ids = np.full(len(begins), NEWEST)
    if drafts is not None:
        lens += [len(ids) for ids in drafts]
        token_ids = np.array([t for ids in drafts for t in (NEWEST, *ids)], dtype=np.int64)
    rows = np.repeat(np.arange(len(begins)), lens)
    places = np.arange(len(rows))
    positions = begins[rows] + places - (np.cumsum(lens) - lens)[rows]
    return np.stack([token_ids, positions, rows, places]), lens


@overload
def padded(columns: NDArray[np.int64], size: int) -> NDArray[np.int64]: ...
@overload
def padded(columns: Tensor, size: int) -> Tensor: ...
def padded(columns: NDArray[np.int64] | Tensor, size: int) -> NDArray[np.int64] | Tensor:
    """``columns`` [n, count] padded to [n, size] by repeating the last column."""
    last = columns.shape[1] - 1
    if isinstance(columns, Tensor):
        return columns[:, torch.arange(size, device=columns.device).clamp_(max=last)]
    return columns[:, np.minimum(np.arange(size), last)]
