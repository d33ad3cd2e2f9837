"""The decisions of the speculation loop: how many drafts to verify, which tokens to keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class VerifyLengths(Protocol):
    """Chooses how many drafts of each request are worth verifying."""

    def __call__(self, confidence: Tensor, most: Sequence[int]) -> list[int]:
        """confidence [R, B] f32; ``most`` R ints, the limits.  Returns R ints within them."""
        ...


def verify_all(confidence: Tensor, most: Sequence[int]) -> list[int]:
    """Verify as many drafts as there may be, whatever their confidence."""
    return [min(limit, confidence.shape[1]) for limit in most]


def accepted_tokens(draft_token_ids: Sequence[int], target_token_ids: Sequence[int]) -> list[int]:
    """The tokens that a verified block yields.

    The target drew one token after the anchor and one after each draft, with the noise of their
    positions.  As long as a draft is what the target drew there, the next target token counts too:
    exactly the tokens that single steps would give.
    """
    num_accepted = 0
    for draft, target in zip(draft_token_ids, target_token_ids, strict=False):
        if draft != target:
            break
        num_accepted += 1
    return list(target_token_ids[: num_accepted + 1])
