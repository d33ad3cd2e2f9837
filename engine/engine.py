"""``LLMEngine``: takes requests, runs one step at a time, returns completions.  Single-threaded."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch

from deepinfer.errors import EngineError

from .cache.block_manager import BlockManager
from .cache.kv_transfer import LocalTransfer, RemotePrefill
from .cache.snapshots import SnapshotStore
from .cache.state_slots import StateSlots
from .config import EngineConfig
from .counters import Counters
from .execution.bound_model import BoundModel
from .execution.complete import complete_decode, complete_prefill
from .execution.current_device import current_device
from .execution.decode import DecodeWorker, can_follow
from .execution.decode_stages import DecodeResult, DrawnDecode
from .execution.decode_step import DecodeStep, pieces_for
from .execution.graphs import GraphCache
from .execution.prefill import PrefillWorker
from .execution.runner import Cache, Runner
from .execution.slot_table import SlotTable
from .execution.step_sizes import StepSize, time_first_steps
from .memory.capacity import plan_cache
from .memory.out_of_memory import free_unused, is_out_of_memory
from .sampling.sampler import Sampler
from .scheduling.intake import make_state
from .scheduling.request_state import RequestState
from .scheduling.schedule import Batch, DecodeBatch, PrefillBatch
from .scheduling.scheduler import Scheduler
from .speculation.calibration import Calibration
from .speculation.draft_backlog import DraftBacklog
from .speculation.draft_planner import make_planner
from .speculation.graph_profile import graph_profile
from .speculation.measure_steps import device_name, measure_steps
from .speculation.step_profile import StepProfile
from .types import Completion, EngineStats, Request

Result = TypeVar("Result")


class LLMEngine:
    """Inference engine for one device.

    model           ``engine.model.model.Model``, or anything with its ``forward``
    cache           allocated from the model's sizes if None; if given, ``config.num_blocks`` must
                    be its number of blocks
    calibration     acceptance estimates for draft scheduling
    profile         step times for draft scheduling; measured if needed and not given
    observer        called with the result of every decode step
    is_alone        False for ranks that run every forward pass in lockstep.  When True, a step that
                    runs out of memory is undone and retried in smaller steps
    remote_prefill  maps the local prefill worker to one that sends prompts to prefill ranks
    overlaps_steps  launch a decode step before the previous one is read, where that cannot change
                    an answer; None: on a GPU only
    captures        capture decode steps as CUDA graphs on a GPU, unless the ranks' ``Turn`` forbids

        engine = LLMEngine(model, EngineConfig(max_num_seqs=8))
        engine.add_request(Request(...))
        while engine.has_unfinished():
            for completion in engine.step(): ...

    Raises: ConfigError if the sizes contradict the model or exceed the memory.
    """

    def __init__(
        self,
        model: Runner,
        config: EngineConfig,
        cache: Cache | None = None,
        *,
        calibration: Calibration | None = None,
        profile: StepProfile | None = None,
        observer: Callable[[DecodeResult], None] | None = None,
        is_alone: bool = True,
        remote_prefill: Callable[[PrefillWorker], RemotePrefill] | None = None,
        overlaps_steps: bool | None = None,
        captures: bool = True,
    ) -> None:
        self.config, cache = plan_cache(model, config.with_environment(), cache)
        self.model_config = model.config
        assert self.config.num_blocks is not None and self.config.max_model_len is not None
        num_slots, device = self.config.max_num_seqs, self.config.device
        num_drafts, window = self.config.num_speculative_tokens, model.config.sliding_window
        snapshots = SnapshotStore(self.config.most_snapshots)
        self.blocks = BlockManager(self.config.num_blocks, snapshots.discard)
        self.graphs = GraphCache(device, captures=captures)
        calibration = calibration or Calibration()
        keeps_logits = self.config.rejection_sampling or calibration.reads_logits
        step = _make_step(model, cache, self.config, self.graphs, keeps_logits)
        local = PrefillWorker(step)
        remote = None if remote_prefill is None else remote_prefill(local)
        self.transfer = remote or LocalTransfer()
        self.scheduler = Scheduler(
            self.config,
            blocks=self.blocks,
            slots=StateSlots(num_slots),
            snapshots=snapshots,
            transfer=self.transfer,
            window=window,
            spare_slots=range(num_slots, cache.num_slots)[: self.config.num_spare_slots],
        )
        chooses = self.config.schedule_drafts and num_drafts > 0
        self._counters = Counters()
        captures_now = self.graphs.is_enabled and (is_alone or chooses)
        self.profile = profile if chooses else None
        with current_device(device):
            times = self._first_steps(step, chooses) if captures_now else {}
            if chooses and profile is None:
                self.profile = (
                    graph_profile(times, device_name(device), num_drafts)
                    if times
                    else measure_steps(model, cache, self.config)
                )
        self._new_planner = partial(
            make_planner, self.profile, num_drafts, device, window, calibration
        )
        decode = DecodeWorker(
            step,
            planner=self._new_planner(),
            calibration=calibration,
            rejects=self.config.rejection_sampling,
        )
        self._workers: tuple[PrefillWorker | RemotePrefill, DecodeWorker] | None
        self._workers = remote or local, decode
        self._states: dict[str, RequestState] = {}
        self._refused: list[RequestState] = []
        self._num_arrived = 0
        self._observer = observer
        self._shrinks = is_alone
        if overlaps_steps is None:
            overlaps_steps = is_alone and device != "cpu"
        self._overlaps = overlaps_steps and (num_drafts == 0 or chooses)
        self._drawn: DrawnDecode | None = None

    @property
    def max_model_len(self) -> int:
        """Maximum tokens of prompt plus answer."""
        assert self.config.max_model_len is not None
        return self.config.max_model_len

    def add_request(self, request: Request) -> None:
        """Queue a request.  One that can never run (too long, empty, a token id outside the
        vocabulary) is returned by ``step`` as an error completion.
        Raises: EngineError if the id is in use or the engine is closed."""
        self._open_workers()
        if request.request_id in self._states:
            raise EngineError(
                f"request_id {request.request_id!r} is already running: ids must be unique"
            )
        state = make_state(request, self._num_arrived, self.config, self.model_config)
        self._num_arrived += 1
        self._states[request.request_id] = state
        if state.finish_reason is None:
            self.scheduler.add(state)
        else:
            self._refused.append(state)

    @torch.inference_mode()
    def step(self) -> list[Completion]:
        """Run one prefill or decode step; return the requests that have finished by now."""
        with current_device(self.config.device):
            return self._step()

    def _step(self) -> list[Completion]:
        started = time.monotonic()
        finished, self._refused = self._refused, []
        if self._drawn is not None and not can_follow(self.scheduler.holding):
            finished += self._finish_drawn()
        batch = self.scheduler.schedule()
        finished += self.transfer.ended()
        scheduled = time.monotonic()
        finished += self._run(batch)
        now = time.monotonic()
        self._counters.add_step(batch, scheduled - started, now - scheduled)
        return [self._complete(state, now) for state in finished]

    def abort(self, request_id: str) -> bool:
        """Drop a request and free its blocks and slot, without a completion.  False if unknown."""
        state = self._states.pop(request_id, None)
        if state is None:
            return False
        if state in self._refused:
            self._refused.remove(state)
        self.scheduler.finish(state)
        self._counters.add_ended(state)
        return True

    def has_unfinished(self) -> bool:
        """Whether ``step`` has anything left to do."""
        return bool(self._states)

    def unfinished_lengths(self) -> dict[str, int]:
        """Number of answer tokens so far, for each request that is not finished."""
        return {name: state.num_output_tokens for name, state in self._states.items()}

    @property
    def is_waiting(self) -> bool:
        """Whether all unfinished requests are waiting for prefill on other ranks."""
        return len(self.scheduler.transferring) == len(self._states) > 0

    def reset_draft_planner(self) -> None:
        """Plan drafts as a new engine would: forget what was learned from earlier steps."""
        self._open_workers()[1].drafter.planner = self._new_planner()

    def stats(self) -> EngineStats:
        """Counters since the engine was created.  May be called from any thread."""
        return self._counters.stats(
            unfinished=list(self._states.values()),
            num_preemptions=self.scheduler.num_preemptions,
            most_running=self.scheduler.max_running,
            num_blocks=self.blocks.num_blocks,
            peak_blocks=self.blocks.peak_blocks,
            num_graphs=self.graphs.num_captured,
        )

    def check_integrity(self) -> None:
        """Raise EngineError if a block or slot leaked or is used twice."""
        self.scheduler.check_integrity()

    def close(self) -> None:
        """Release model, cache and requests.  Idempotent; later use is an error."""
        self._workers = None
        self._drawn = None
        for request_id in list(self._states):
            self.abort(request_id)

    def _first_steps(self, step: DecodeStep, chooses_drafts: bool) -> dict[StepSize, float]:
        """Run and time steps of all sizes before the first request; empty if out of memory."""
        started = time.monotonic()
        try:
            return time_first_steps(step, chooses_drafts=chooses_drafts)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            free_unused(self.config.device)
            return {}
        finally:
            self._counters.capture_s = time.monotonic() - started

    def _run(self, batch: Batch | None) -> list[RequestState]:
        """Run a batch and record its results; returns the requests that finished.

        A decode step that can be overlapped is only launched; the results recorded are then those
        of the previous step.
        """
        prefill, decode = self._open_workers()
        if isinstance(batch, DecodeBatch) and self._overlaps and can_follow(batch.states):
            return self._run_ahead(decode, batch)
        finished = self._finish_drawn()
        started = time.monotonic()
        if isinstance(batch, PrefillBatch):
            prefilled = self._try(lambda: prefill.run(batch), batch)
            if prefilled is not None:
                finished += complete_prefill(self.scheduler, batch, prefilled, started)
        elif batch is not None:
            result = self._try(lambda: decode.run(batch), batch)
            if result is not None:
                finished += self._note(batch, result)
        return finished

    def _run_ahead(self, decode: DecodeWorker, batch: DecodeBatch) -> list[RequestState]:
        """Launch a step, record the previous one, then sample: the host works while the model runs.

        Drafting starts from known tokens, so a step with drafts is run after the previous one was
        recorded, and is recorded at once.
        """
        finished: list[RequestState] = []
        if depth := decode.drafter.depth(batch):
            finished += self._finish_drawn()
            batch = batch.still_running()
            result = self._try(lambda: decode.run(batch, depth), batch) if batch.states else None
            return finished + (self._note(batch, result) if result is not None else [])
        launched = self._try(lambda: decode.launch(decode.plan(batch, depth)), batch)
        if launched is not None:
            for state in batch.states:
                state.num_in_flight += 1
        finished += self._finish_drawn()
        if launched is not None:
            with decode.start_masks(launched.plan) as masks:
                self._drawn = self._try(lambda: decode.draw(launched, masks), batch)
        return finished

    def _finish_drawn(self) -> list[RequestState]:
        """Read and record the step in flight, if there is one."""
        drawn, self._drawn = self._drawn, None
        if drawn is None:
            return []
        return self._note(drawn.plan.batch, self._open_workers()[1].finish(drawn))

    def _note(self, batch: DecodeBatch, result: DecodeResult) -> list[RequestState]:
        self._counters.add_drafts(result)
        if self._observer is not None:
            self._observer(result)
        return complete_decode(self.scheduler, batch, result)

    def _try(self, run: Callable[[], Result], batch: Batch) -> Result | None:
        """The result; None if out of memory, in which case later steps are smaller."""
        try:
            return run()
        except Exception as error:
            if not self._shrinks or not is_out_of_memory(error):
                raise
            reason = " ".join(str(error).split())[:200]
        free_unused(self.config.device)
        self.scheduler.shrink(batch, reason)
        self._counters.num_out_of_memory += 1
        return None

    def _complete(self, state: RequestState, now_s: float) -> Completion:
        self.scheduler.finish(state)
        self._counters.add_ended(state)
        del self._states[state.request.request_id]
        return state.completion(now_s)

    @property
    def prefill_worker(self) -> PrefillWorker:
        """The local prefill worker, for a rank that only prefills."""
        worker = self._open_workers()[0]
        assert isinstance(worker, PrefillWorker)
        return worker

    def _open_workers(self) -> tuple[PrefillWorker | RemotePrefill, DecodeWorker]:
        if self._workers is None:
            raise EngineError("this engine is closed: create a new one")
        return self._workers


def _make_step(
    model: Runner, cache: Cache, config: EngineConfig, graphs: GraphCache, keeps_draft_logits: bool
) -> DecodeStep:
    """The decode steps of a device, with their state for each slot."""
    num_slots, device = config.max_num_seqs, config.device
    num_drafts = config.num_speculative_tokens
    assert config.max_model_len is not None
    window = model.config.sliding_window
    backlog = DraftBacklog(num_slots, window, device) if num_drafts else None
    table = SlotTable(
        num_slots, config.max_model_len, config.block_size, device, model.config.image_token_id
    )
    has_pieces = device.startswith("cuda") and not config.batch_invariant
    return DecodeStep(
        BoundModel(model, cache, backlog=backlog),
        table,
        Sampler(num_slots, device),
        num_drafts=num_drafts,
        graphs=graphs,
        piece_keys=pieces_for(num_slots * (1 + num_drafts)) if has_pieces else None,
        keeps_draft_logits=keeps_draft_logits,
    )
