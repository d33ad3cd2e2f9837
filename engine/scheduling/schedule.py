"""The scheduler's output: one prefill step or one decode step."""

from __future__ import annotations

from dataclasses import dataclass

from .request_state import Phase, RequestState


@dataclass(frozen=True, slots=True)
class Save:
    """A snapshot of a request's rings before the token at ``position``, taken from ``slot``: the
    request's own if its chunk ends there, otherwise a spare one that the pass fills."""

    position: int
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillChunk:
    """Tokens ``start`` to ``end`` (exclusive) of one request.

    The first chunk initializes the slot and restores the ring snapshot ``restore`` unless None.
    ``saves``: take ring snapshots.  The last chunk yields the first output token.
    """

    state: RequestState
    start: int
    end: int
    is_first: bool = False
    restore: object = None
    saves: tuple[Save, ...] = ()

    @classmethod
    def next_of(
        cls,
        state: RequestState,
        start: int,
        budget: int,
        spare_slots: list[int],
        *,
        is_first: bool = False,
        restore: object = None,
    ) -> PrefillChunk:
        """At most ``budget`` tokens from ``start`` on, with a snapshot at each of the request's
        ``boundaries``.

        A boundary within the chunk takes one of ``spare_slots``; the chunk ends at the first
        boundary for which there is none.
        """
        end = min(len(state.token_ids), start + budget)
        saves = []
        for boundary in state.boundaries:
            if not start < boundary <= end:
                continue
            if boundary < end and spare_slots:
                saves.append(Save(boundary, spare_slots.pop()))
            else:
                end = boundary
                saves.append(Save(boundary, state.slot))
        return cls(
            state=state, start=start, end=end, is_first=is_first, restore=restore,
            saves=tuple(saves),
        )  # fmt: skip

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
