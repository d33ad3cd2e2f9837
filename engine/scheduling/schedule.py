"""The scheduler's output: one prefill step or one decode step."""

from __future__ import annotations

from dataclasses import dataclass

from .request_state import Phase, RequestState


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillChunk:
    """Tokens ``start`` to ``end`` (exclusive) of one request.

    The first chunk initializes the slot and restores the ring snapshot ``restore`` unless None.
    ``is_saved``: take a ring snapshot at ``end``.  The last chunk yields the first output token.
    """

    state: RequestState
    start: int
    end: int
    is_first: bool = False
    restore: object = None
    is_saved: bool = False

    @property
    def is_last(self) -> bool:
        return self.end == len(self.state.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillBatch:
    chunks: list[PrefillChunk]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBatch:
    """``num_drafts[i]`` is the maximum number of drafts to verify for ``states[i]``."""

    states: list[RequestState]
    num_drafts: list[int]

    def still_running(self) -> DecodeBatch:
        """Without requests that have ended since, and without drafts beyond a maximum length."""
        pairs = [
            (state, min(most, state.max_output_tokens - state.num_output_tokens - 1))
            for state, most in zip(self.states, self.num_drafts, strict=True)
            if state.phase is Phase.DECODING and state.finish_reason is None
        ]
        return DecodeBatch(states=[s for s, _ in pairs], num_drafts=[most for _, most in pairs])


Batch = PrefillBatch | DecodeBatch
