"""Decides which requests run next, and allocates their blocks.  Policy only: no tensors, no model.

Life of a request: waiting, prefilling (in chunks), transferring, decoding, finished.  Prefill has
priority whenever a request can start, so that decode batches are full.  There is no deadlock: a
prompt gets all its blocks before it starts; a decoding request without a free block preempts the
request that came last; and a single request always fits (the engine bounds ``max_model_len``).
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence

from deepinfer.engine.cache.block_manager import BlockManager, block_digests
from deepinfer.engine.cache.kv_transfer import KVTransfer
from deepinfer.engine.cache.prefix_hit import PrefixHit
from deepinfer.engine.cache.snapshots import SnapshotStore
from deepinfer.engine.cache.state_slots import StateSlots
from deepinfer.engine.config import EngineConfig
from deepinfer.errors import EngineError

from .prefix_sharing import PrefixSharing
from .request_state import Phase, RequestState
from .schedule import Batch, DecodeBatch, PrefillBatch, PrefillChunk


class Scheduler:
    """``schedule`` returns the next batch; the engine runs it and reports what was computed.

    ``spare_slots``: slots that no request gets; a prefill pass fills them with rings to be saved.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        blocks: BlockManager,
        slots: StateSlots,
        snapshots: SnapshotStore,
        transfer: KVTransfer,
        window: int,
        spare_slots: Sequence[int] = (),
    ) -> None:
        self.config = config
        self.blocks = blocks
        self.slots = slots
        self.snapshots = snapshots
        self.transfer = transfer
        self.spare_slots = spare_slots
        self.sharing = PrefixSharing(config, blocks, snapshots, window)
        self.num_preemptions = 0
        self.max_running = config.max_num_seqs
        self.max_tokens = config.max_num_batched_tokens
        self._arrived: deque[RequestState] = deque()
        self._next: deque[RequestState] = deque()
        self.prefilling: list[RequestState] = []
        self.transferring: list[RequestState] = []
        self.decoding: list[RequestState] = []

    def add(self, state: RequestState) -> None:
        self._arrived.append(state)

    @property
    def holding(self) -> list[RequestState]:
        """Requests that have a slot and blocks."""
        return [*self.prefilling, *self.transferring, *self.decoding]

    def schedule(self) -> Batch | None:
        """The batch of the next step; None if nothing can run until a transfer arrives."""
        self._receive()
        chunks = self._schedule_prefill()
        if chunks:
            return PrefillBatch(chunks=chunks)
        if self.decoding:
            return self._schedule_decode()
        return None

    def prefilled(self, chunk: PrefillChunk, snapshots: Sequence[object]) -> None:
        """Record that a chunk was computed: share its blocks, store the snapshots of its rings
        (one for each of ``chunk.saves``, or none)."""
        state = chunk.state
        state.num_computed_tokens = chunk.end
        self._publish(state)
        for save, snapshot in zip(chunk.saves, snapshots, strict=False):
            self.snapshots.put(state.digests[save.position // self.config.block_size - 1], snapshot)
        if chunk.is_last:
            self._move(state, Phase.TRANSFERRING)

    def decoded(self, state: RequestState, num_tokens: int) -> None:
        """Record that ``num_tokens`` more positions of a decoding request are final."""
        before = state.num_computed_tokens
        state.num_computed_tokens = before + num_tokens
        state.num_in_flight = max(0, state.num_in_flight - 1)
        block_size = self.config.block_size
        if before // block_size != state.num_computed_tokens // block_size:
            self._publish(state)

    def shrink(self, batch: Batch, reason: str) -> None:
        """The batch ran out of memory: preempt its requests, and halve the limit of later steps.
        All state of these requests is discarded, so none is left half written.
        Raises: EngineError with ``reason`` if the batch cannot be any smaller."""
        if isinstance(batch, PrefillBatch):
            states = [chunk.state for chunk in batch.chunks]
            num_tokens = sum(chunk.end - chunk.start for chunk in batch.chunks)
        else:
            states, num_tokens = list(batch.states), 0
        if num_tokens > self.config.block_size:
            self.max_tokens = max(num_tokens // 2, self.config.block_size)
        elif len(states) > 1:
            self.max_running = len(states) // 2
        else:
            raise EngineError(
                f"out of memory in a step of a single request ({reason}); reduce the caches "
                "(cache_memory_gib) or max_model_len"
            )
        for state in sorted(states, key=lambda s: -s.arrival):
            self._preempt(state)

    def finish(self, state: RequestState) -> None:
        """Remove a request, whatever its phase, and free its slot and blocks."""
        if state.phase is Phase.WAITING:
            for queue in (self._arrived, self._next):
                if state in queue:
                    queue.remove(state)
        self._free(state)
        self._move(state, Phase.FINISHED)

    def check_integrity(self) -> None:
        """Raise EngineError if a block or slot has leaked or is used twice."""
        holding = self.holding
        self.blocks.check_integrity(state.blocks for state in holding)
        self.slots.check_integrity(state.slot for state in holding)

    # Prefill ---------------------------------------------------------------------------------

    def _schedule_prefill(self) -> list[PrefillChunk]:
        budget = self.max_tokens
        spare_slots = list(self.spare_slots)
        chunks: list[PrefillChunk] = []
        for state in self.prefilling:
            if budget == 0:
                return chunks
            chunks.append(
                PrefillChunk.next_of(state, state.num_computed_tokens, budget, spare_slots)
            )
            budget -= chunks[-1].end - chunks[-1].start
        while budget and self._may_start() and (waiting := self._peek_waiting()):
            hit = self._admit(waiting)
            if hit is None:
                break
            self._next.popleft()
            chunks.append(
                PrefillChunk.next_of(
                    waiting, waiting.num_computed_tokens, budget, spare_slots,
                    is_first=True, restore=hit.snapshot,
                )
            )  # fmt: skip
            budget -= chunks[-1].end - chunks[-1].start
        return chunks

    def _may_start(self) -> bool:
        num_running = len(self.prefilling) + len(self.transferring) + len(self.decoding)
        return self.slots.num_free > 0 and num_running < self.max_running

    def _peek_waiting(self) -> RequestState | None:
        """The next request to start.  Arrivals are taken in groups, the longest of a group first,
        so that long prompts do not run alone at the end and no short one waits forever."""
        if not self._next and self._arrived:
            size = min(len(self._arrived), 2 * self.config.max_num_seqs)
            group = [self._arrived.popleft() for _ in range(size)]
            self._next.extend(sorted(group, key=lambda s: -len(s.token_ids)))
        return self._next[0] if self._next else None

    def _admit(self, state: RequestState) -> PrefixHit | None:
        """Give a request its slot and the blocks of all its tokens.

        None if they are not free, or if another prefill will soon provide a longer prefix: of many
        prompts with a common prefix (or samples of one prompt) only the first computes it.
        """
        block_size = self.config.block_size
        hit, matched = self.sharing.find_hit(state)
        if any(self.sharing.is_due(other, state, hit) for other in self.prefilling):
            return None
        shared = matched[: hit.num_tokens // block_size]
        self.blocks.hold(shared)
        needed = -(-len(state.token_ids) // block_size) - len(shared)
        # Every decoding request may need a block soon; starting this one would lead to preemption.
        if needed + len(self.decoding) > self.blocks.num_free and self.holding:
            self.blocks.release(shared)
            return None
        state.blocks = shared + self.blocks.allocate(needed)
        state.slot = self.slots.allocate()
        state.num_computed_tokens = hit.start
        state.write_start = hit.num_tokens
        state.encoder_start = 0 if self.config.restores_snapshots else hit.start
        if state.num_preemptions == 0:
            state.num_cached_tokens = hit.num_tokens
        self._move(state, Phase.PREFILLING)
        return hit

    def _publish(self, state: RequestState) -> None:
        """Make blocks that have become full available for prefix hits."""
        if not self.config.enable_prefix_caching:
            return
        count = state.num_computed_tokens // self.config.block_size
        if count > len(state.digests):
            state.digests = block_digests(state.token_ids, self.config.block_size, state.digests)
        for i in range(state.num_published_blocks, count):
            self.blocks.publish(state.blocks[i], state.digests[i])
        state.num_published_blocks = max(state.num_published_blocks, count)

    # Decode ----------------------------------------------------------------------------------

    def _receive(self) -> None:
        if self.transferring:
            for state in self.transfer.arrived(self.transferring):
                self._move(state, Phase.DECODING)
        for state in self.transfer.lost():
            self._preempt(state)

    def _schedule_decode(self) -> DecodeBatch | None:
        most = self.config.num_speculative_tokens
        states: list[RequestState] = []
        num_drafts: list[int] = []
        block_size = self.config.block_size
        # Oldest first: when blocks run out, the last arrivals are preempted.
        for state in list(self.decoding):
            if state.phase is not Phase.DECODING:
                continue
            if state.num_output_tokens + state.num_in_flight >= state.max_output_tokens:
                continue  # its last token is being sampled
            drafts = most
            if most:
                drafts = min(most, state.max_output_tokens - state.num_output_tokens - 1)
            if state.next_position + 1 + drafts > len(state.blocks) * block_size:
                drafts = self._make_room(state, drafts)
                if drafts < 0:
                    continue
            states.append(state)
            num_drafts.append(drafts)
        return DecodeBatch(states=states, num_drafts=num_drafts) if states else None

    def _make_room(self, state: RequestState, drafts: int) -> int:
        """Allocate blocks for one token and up to ``drafts`` more; returns how many drafts fit, -1
        if the request itself was preempted."""
        block_size = self.config.block_size
        start = state.next_position
        while True:
            needed = -(-(start + 1 + drafts) // block_size) - len(state.blocks)
            if needed <= self.blocks.num_free:
                state.blocks += self.blocks.allocate(max(needed, 0))
                return drafts
            fitting = (len(state.blocks) + self.blocks.num_free) * block_size - start - 1
            if fitting >= 0:
                drafts = fitting
                continue
            victim = max(self.holding, key=lambda s: s.arrival)
            self._preempt(victim)
            if victim is state:
                return -1

    def _preempt(self, state: RequestState) -> None:
        """Free a request's cache state, to be recomputed; its tokens and replay start are kept."""
        self._free(state)
        state.num_preemptions += 1
        self.num_preemptions += 1
        self._move(state, Phase.WAITING)
        self._next.appendleft(state)

    # Common ----------------------------------------------------------------------------------

    def _free(self, state: RequestState) -> None:
        if state.slot < 0:
            return
        self.blocks.release(state.blocks)
        self.slots.release(state.slot)
        state.blocks = []
        state.slot = -1
        state.num_computed_tokens = 0
        state.num_in_flight = 0
        state.num_published_blocks = 0

    def _move(self, state: RequestState, phase: Phase) -> None:
        queues = {
            Phase.PREFILLING: self.prefilling,
            Phase.TRANSFERRING: self.transferring,
            Phase.DECODING: self.decoding,
        }
        if state.phase in queues:
            queues[state.phase].remove(state)
        state.phase = phase
        if phase in queues:
            insort(queues[phase], state, key=lambda s: s.arrival)
