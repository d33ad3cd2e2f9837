"""A prefill rank: computes prompts for decode ranks and sends them the resulting state."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from deepinfer.engine.cache.kv_cache import KVCache
from deepinfer.engine.engine import LLMEngine
from deepinfer.engine.scheduling.intake import detached_state
from deepinfer.engine.scheduling.request_state import RequestState
from deepinfer.engine.scheduling.schedule import PrefillBatch, PrefillChunk

from .handover import (
    Prefilled,
    PrefilledBlocks,
    PrefillJob,
    block_rows,
    read_blocks,
    read_rings,
    ring_rows,
    to_bytes,
)
from .mailbox import Mailbox
from .parcels import Outbox, Parcel, Rows, Taken

_REST_S = 0.002


class PrefillServer:
    """Runs the jobs of several mailboxes on one engine, which never decodes.

    Chunking and prefix hits are those of the engine; blocks are sent as they become full.
    ``outboxes``: staging buffers on the GPUs behind the mailboxes; without them, bytes are sent.
    """

    def __init__(
        self, engine: LLMEngine, mailboxes: Sequence[Mailbox], outboxes: Sequence[Outbox] = ()
    ) -> None:
        cache = engine.prefill_worker.model.cache
        assert isinstance(cache, KVCache)
        self._cache = cache
        self._engine = engine
        self._mailboxes = mailboxes
        self._outboxes = dict(zip(mailboxes, outboxes, strict=True)) if outboxes else {}
        self._unsent: deque[tuple[Mailbox, Any, torch.cuda.Event | None]] = deque()
        self._owners: dict[RequestState, tuple[Mailbox, int]] = {}
        self._num_sent: dict[RequestState, int] = {}
        self._num_arrived = 0

    def serve(self, rest: Callable[[], bool]) -> None:
        """Run until the process is stopped; ``rest`` takes part in other ranks' passes, if any."""
        while True:
            self.take_jobs()
            if not self.step() and not rest():
                time.sleep(_REST_S)

    def take_jobs(self) -> None:
        for mailbox in self._mailboxes:
            while (message := mailbox.take()) is not None:
                if isinstance(message, Taken):
                    self._outboxes[mailbox].free(message)
                else:
                    self._add(mailbox, message)
        self._post()

    @torch.inference_mode()
    def step(self) -> bool:
        """Compute one batch of chunks; False if there is nothing to do."""
        scheduler, worker = self._engine.scheduler, self._engine.prefill_worker
        batch = scheduler.schedule()
        if batch is None:
            return False
        assert isinstance(batch, PrefillBatch), "requests leave when they are prefilled"
        raw, last, snapshots = worker.compute(batch)
        for chunk, saved in zip(batch.chunks, snapshots, strict=True):
            scheduler.prefilled(chunk, saved)
            self._send_blocks(chunk)
        for row, place in zip(raw, last, strict=True):
            state = batch.chunks[place].state
            mailbox, number = self._owners.pop(state)
            parcel = self._write(mailbox, ring_rows(self._cache, state.slot))
            rings = read_rings(self._cache, state.slot) if parcel is None else parcel
            message = Prefilled(
                number=number,
                encoder_start=state.encoder_start,
                num_cached_tokens=state.num_cached_tokens,
                rings=rings,
                logits=to_bytes(row),
            )
            self._send(mailbox, message)
            del self._num_sent[state]
            scheduler.finish(state)
        return True

    def _add(self, mailbox: Mailbox, job: PrefillJob) -> None:
        self._num_arrived += 1
        state = detached_state(self._num_arrived, job.token_ids)
        state.decoder_start = job.decoder_start
        self._owners[state] = mailbox, job.number
        self._num_sent[state] = 0
        self._engine.scheduler.add(state)

    def _send_blocks(self, chunk: PrefillChunk) -> None:
        """Send the blocks that have become complete; after the last chunk, all of them."""
        state = chunk.state
        first, block_size = self._num_sent[state], self._engine.config.block_size
        end = len(state.blocks) if chunk.is_last else chunk.end // block_size
        if end > first:
            mailbox, number = self._owners[state]
            blocks = state.blocks[first:end]
            parcel = self._write(mailbox, block_rows(self._cache, blocks))
            data = read_blocks(self._cache, blocks) if parcel is None else parcel
            message = PrefilledBlocks(number=number, first=first, num_blocks=end - first, data=data)
            self._send(mailbox, message)
            self._num_sent[state] = end

    def _write(self, mailbox: Mailbox, parts: Sequence[Rows]) -> Parcel | None:
        """Write into the other GPU's memory; None without a staging buffer, or if it is full."""
        outbox = self._outboxes.get(mailbox)
        return None if outbox is None else outbox.send(parts)

    def _send(self, mailbox: Mailbox, message: Any) -> None:
        """Send when the device has written its data, and after earlier messages."""
        event = None
        if self._outboxes:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._unsent.append((mailbox, message, event))
        self._post()

    def _post(self) -> None:
        while self._unsent:
            mailbox, message, event = self._unsent[0]
            if event is not None and not event.query():  # type: ignore[no-untyped-call]
                return
            self._unsent.popleft()
            mailbox.send(message)
