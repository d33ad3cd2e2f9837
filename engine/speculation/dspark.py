"""Acceptance of drafts when draft and target are sampled with the same noise."""

from __future__ import annotations

from collections.abc import Sequence


def accepted_tokens(draft_token_ids: Sequence[int], target_token_ids: Sequence[int]) -> list[int]:
    """The tokens that a verified block yields.

    The target sampled one token after the anchor and one after each draft, with the noise of their
    positions.  As long as a draft equals the target's token there, the next target token is valid,
    too: these are exactly the tokens of single steps.
    """
    num_accepted = 0
    for draft, target in zip(draft_token_ids, target_token_ids, strict=False):
        if draft != target:
            break
        num_accepted += 1
    return list(target_token_ids[: num_accepted + 1])
