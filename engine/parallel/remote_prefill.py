"""A decode rank's view of prefill ranks: sends jobs, receives packed state.

A request gets its slot and all its blocks here before its prompt is sent away, so a prefill rank
never computes a prompt without a destination.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from deepinfer.engine.cache.kv_cache import KVCache
from deepinfer.engine.execution.prefill import PrefillResult, PrefillWorker
from deepinfer.engine.execution.staging import send
from deepinfer.engine.scheduling.request_state import Phase, RequestState
from deepinfer.engine.scheduling.schedule import PrefillBatch

from .handover import (
    Prefilled,
    PrefilledBlocks,
    PrefillJob,
    block_rows,
    from_bytes,
    ring_rows,
    write_blocks,
    write_rings,
)
from .mailbox import Mailbox
from .parcels import Inbox, Parcel, Taken

_HOLDING = (Phase.PREFILLING, Phase.TRANSFERRING)


@dataclass(slots=True, eq=False)
class _Pending:
    """A job on a prefill rank, and its results so far."""

    state: RequestState
    mailbox: Mailbox
    blocks: list[PrefilledBlocks] = field(default_factory=list)
    end: Prefilled | None = None

    @property
    def messages(self) -> list[PrefilledBlocks | Prefilled]:
        return [*self.blocks, *([] if self.end is None else [self.end])]

    def add(self, message: PrefilledBlocks | Prefilled) -> None:
        if isinstance(message, PrefilledBlocks):
            self.blocks.append(message)
        else:
            self.end = message


class RemotePrefillWorker:
    """``local`` takes over when no prefill rank is left.  ``inboxes``: staging buffers for the GPUs
    behind the mailboxes; without them, bytes are received."""

    def __init__(
        self, local: PrefillWorker, mailboxes: Sequence[Mailbox], inboxes: Sequence[Inbox] = ()
    ) -> None:
        assert isinstance(local.model.cache, KVCache)
        self._cache: KVCache = local.model.cache
        self._local = local
        self._mailboxes = list(mailboxes)
        self._inboxes = dict(zip(mailboxes, inboxes, strict=True)) if inboxes else {}
        self._pending: dict[int, _Pending] = {}
        self._num_jobs = 0
        self._ended: list[RequestState] = []

    def run(self, batch: PrefillBatch) -> PrefillResult:
        """Send new prompts away; later chunks of prompts that were sent need nothing here."""
        for chunk in batch.chunks:
            if chunk.is_first:
                self._forget(chunk.state)
        open_ones = [mailbox for mailbox in self._mailboxes if mailbox.is_open]
        away = {pending.state for pending in self._pending.values()}
        if not open_ones and not any(chunk.state in away for chunk in batch.chunks):
            return self._local.run(batch)
        starting = [chunk.state for chunk in batch.chunks if chunk.is_first]
        self._local.begin(starting)
        for state in starting:
            self._send(state, open_ones or self._mailboxes)
        nothing: list[list[int]] = [[] for _ in batch.chunks]
        return PrefillResult(
            tokens=nothing, logprobs=[[] for _ in nothing], snapshots=[[] for _ in nothing]
        )

    def arrived(self, transferring: Sequence[RequestState]) -> list[RequestState]:
        self._read()
        numbers = {pending.state: number for number, pending in self._pending.items()}
        complete = [
            self._pending.pop(numbers[state])
            for state in transferring
            if state in numbers and self._pending[numbers[state]].end is not None
        ]
        self._install(complete)
        received = {pending.state for pending in complete}
        return [
            state
            for state in transferring
            if state.finish_reason is None and (state in received or state not in numbers)
        ]

    def lost(self) -> list[RequestState]:
        if all(mailbox.is_open for mailbox in self._mailboxes):
            return []
        self._read()
        gone = [
            number
            for number, pending in self._pending.items()
            if not pending.mailbox.is_open and pending.end is None
        ]
        states = [self._pending.pop(number).state for number in gone]
        return [state for state in states if state.phase in _HOLDING]

    def ended(self) -> list[RequestState]:
        ended, self._ended = self._ended, []
        return ended

    def _send(self, state: RequestState, mailboxes: Sequence[Mailbox]) -> None:
        """Send to the rank with the least work for this one."""
        busy = [sum(p.mailbox is mailbox for p in self._pending.values()) for mailbox in mailboxes]
        mailbox = mailboxes[busy.index(min(busy))]
        self._num_jobs += 1
        self._pending[self._num_jobs] = _Pending(state, mailbox)
        mailbox.send(
            PrefillJob(
                number=self._num_jobs,
                token_ids=tuple(state.token_ids),
                decoder_start=state.decoder_start,
            )
        )

    def _forget(self, state: RequestState) -> None:
        """Forget the job of a request that has lost its slot."""
        stale = [number for number, p in self._pending.items() if p.state is state]
        for number in stale:
            pending = self._pending.pop(number)
            _acknowledge(pending.mailbox, pending.messages)

    def _read(self) -> None:
        for mailbox in self._mailboxes:
            while (message := mailbox.take()) is not None:
                pending = self._pending.get(message.number)
                if pending is not None and pending.state.phase in _HOLDING:
                    pending.add(message)
                    continue
                _acknowledge(mailbox, [message])
                if pending is not None:
                    _acknowledge(mailbox, self._pending.pop(message.number).messages)

    def _install(self, complete: Sequence[_Pending]) -> None:
        """Copy the state of complete prompts into their blocks and slots; sample first tokens."""
        if not complete:
            return
        logits = []
        for pending in complete:
            state, end = pending.state, pending.end
            assert end is not None
            for part in pending.blocks:
                places = state.blocks[part.first : part.first + part.num_blocks]
                if isinstance(part.data, Parcel):
                    rows = block_rows(self._cache, places)
                    self._inboxes[pending.mailbox].take(part.data, rows)
                else:
                    write_blocks(self._cache, places, part.data)
            if isinstance(end.rings, Parcel):
                rows = ring_rows(self._cache, state.slot)
                self._inboxes[pending.mailbox].take(end.rings, rows)
            else:
                write_rings(self._cache, state.slot, end.rings)
            state.encoder_start = end.encoder_start
            if state.num_preemptions == 0:
                state.num_cached_tokens = end.num_cached_tokens
            self._local.table.assign(state)
            logits.append(from_bytes(end.logits).view(torch.float32))
        states = [pending.state for pending in complete]
        device = self._local.table.device
        self._local.model.note(send([state.slot for state in states], device))
        raw = torch.stack(logits).to(device)
        tokens, logprobs = self._local.first_tokens(raw, states)  # waits for the device
        for pending in complete:
            _acknowledge(pending.mailbox, pending.messages)
        now = time.monotonic()
        for state, new, values in zip(states, tokens, logprobs, strict=True):
            state.first_token_s = state.first_token_s or now
            state.logprobs += values
            if any(map(state.append, new)):
                self._ended.append(state)


def _acknowledge(mailbox: Mailbox, messages: Sequence[PrefilledBlocks | Prefilled]) -> None:
    """Tell the sender that the data was copied or is not needed: its buffers are free."""
    for message in messages:
        data = message.data if isinstance(message, PrefilledBlocks) else message.rings
        if isinstance(data, Parcel):
            mailbox.send(Taken(data.number))
