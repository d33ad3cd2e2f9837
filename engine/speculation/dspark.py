"""What a verified block yields when drafts and target draw with the same noise."""

from __future__ import annotations

from collections.abc import Sequence


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
