"""Counters behind ``EngineStats``."""

from __future__ import annotations

from collections.abc import Sequence

from .execution.decode_stages import DecodeResult
from .scheduling.request_state import RequestState
from .scheduling.schedule import Batch, PrefillBatch
from .speculation.draft_counters import DraftCounters, Stretches
from .types import EngineStats


class Counters:
    """Sums over steps; ``stats`` returns them as the public ``EngineStats``."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_decode_steps = 0
        self.num_decode_rows = 0
        self.decode_batches = Stretches()
        self.num_prefill_tokens = 0
        self.num_decode_tokens = 0
        self.num_cached_tokens = 0
        self.num_out_of_memory = 0
        self.drafts = DraftCounters()
        self.prefill_s = 0.0
        self.decode_s = 0.0
        self.schedule_s = 0.0
        self.capture_s = 0.0

    def add_step(self, batch: Batch | None, schedule_s: float, run_s: float) -> None:
        self.schedule_s += schedule_s
        if batch is None:
            return
        self.num_steps += 1
        if isinstance(batch, PrefillBatch):
            self.num_prefill_tokens += sum(c.end - c.start for c in batch.chunks)
            self.prefill_s += run_s
        else:
            self.decode_s += run_s
            self.num_decode_steps += 1
            self.num_decode_rows += len(batch.states)
            self.decode_batches.add(len(batch.states), 1)

    def add_drafts(self, result: DecodeResult) -> None:
        """Count the drafts of a step; one without drafting only enters ``verify_lengths``."""
        self.drafts.add(result.num_proposed, result.num_drafts, result.tokens, result.survival)

    def add_ended(self, state: RequestState) -> None:
        """Count a request that finished or was aborted."""
        self.num_decode_tokens += _decoded(state)
        self.num_cached_tokens += state.num_cached_tokens

    def stats(
        self,
        *,
        unfinished: Sequence[RequestState],
        num_preemptions: int,
        most_running: int,
        num_blocks: int,
        peak_blocks: int,
        num_graphs: int,
    ) -> EngineStats:
        return EngineStats(
            num_steps=self.num_steps,
            num_decode_steps=self.num_decode_steps,
            num_decode_rows=self.num_decode_rows,
            decode_batches=self.decode_batches.means(),
            num_prefill_tokens=self.num_prefill_tokens,
            num_decode_tokens=self.num_decode_tokens + sum(map(_decoded, unfinished)),
            num_cached_tokens=self.num_cached_tokens,
            num_preemptions=num_preemptions,
            num_out_of_memory=self.num_out_of_memory,
            most_running=most_running,
            num_proposed_tokens=self.drafts.num_proposed,
            num_draft_blocks=self.drafts.num_blocks,
            num_draft_tokens=sum(self.drafts.verified_per_position),
            num_accepted_tokens=sum(self.drafts.accepted_per_position),
            verified_per_position=tuple(self.drafts.verified_per_position),
            accepted_per_position=tuple(self.drafts.accepted_per_position),
            calibration_error=self.drafts.calibration_error(),
            verify_lengths=self.drafts.verify_lengths.means(),
            prefill_s=self.prefill_s,
            decode_s=self.decode_s,
            schedule_s=self.schedule_s,
            num_blocks=num_blocks,
            peak_blocks=peak_blocks,
            num_graphs=num_graphs,
            capture_s=self.capture_s,
        )


def _decoded(state: RequestState) -> int:
    """Tokens drawn by decode steps: all but the first, which prefill draws."""
    return max(state.num_output_tokens - 1, 0)
