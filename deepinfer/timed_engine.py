"""``TimedEngine``: times every step of an engine, with growing batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from deepinfer.engine.engine import LLMEngine
from deepinfer.engine.types import Completion, Request

from .engine.execution.decode_stages import DecodeResult

_LONGER = 4  # at most this many times the seconds
_OPEN_SHARE = 0.2  # fraction of the first answers that may be unfinished
# At the end of a run batches are small, and drafts may pay off more: time such steps, too.
_SMALL_BATCHES = (1, 4, 16, 32)
_SMALL_SHARE = 0.1  # fraction of the time for each of them, besides a minimum of steps
_FEW_STEPS, _ENOUGH_STEPS = 3, 8


class TimeIsUp(Exception):
    """Ends the stream between two steps."""


@dataclass(slots=True)
class TimedEngine:
    """Forwards everything to the engine and records each step.

    Batches of one, four and sixteen answers come first, then full ones, which start with the
    longest prompts as in a run: so even a short rehearsal has realistic batches of many sizes.
    """

    engine: LLMEngine
    seconds: float
    clock: Callable[[], float]
    prefills: list[tuple[int, float, float]] = field(default_factory=list)
    decodes: list[tuple[int, int, float, float]] = field(default_factory=list)
    cut_lengths: list[int] = field(default_factory=list)
    first_wave: set[str] | None = None  # requests running when the batch was first full
    endless: set[str] = field(default_factory=set)  # requests that ignore the end-of-text token
    step_s: float = 0.0
    step_cpu_s: float = 0.0
    last_decode: DecodeResult | None = None
    began: float = 0.0
    stage: int = 0  # in _SMALL_BATCHES, then beyond
    stage_began: float = 0.0
    num_steady: int = 0  # decode steps since the stage began, or since the last prefill

    def __post_init__(self) -> None:
        self.began = self.stage_began = self.clock()

    def observe(self, result: DecodeResult) -> None:
        self.last_decode = result

    def has_room(self) -> bool:
        """Whether another row may start now."""
        full = self.engine.config.max_num_seqs
        most = min(_SMALL_BATCHES[self.stage], full) if self.is_small else full
        return self.used_s <= self.seconds and len(self.engine.unfinished_lengths()) < most

    @property
    def is_small(self) -> bool:
        """Whether batches are still limited."""
        return self.stage < len(_SMALL_BATCHES)

    @property
    def used_s(self) -> float:
        """Seconds since the start."""
        return self.clock() - self.began

    def add_request(self, request: Request) -> None:
        if request.sampling.ignore_eos:
            self.endless.add(request.request_id)
        self.engine.add_request(request)

    def abort(self, request_id: str) -> bool:
        return self.engine.abort(request_id)

    def step(self) -> list[Completion]:
        if self.used_s > self.seconds:
            lengths = self.engine.unfinished_lengths()
            cut = lengths.keys() - self.endless
            self.cut_lengths = [lengths[name] for name in cut if lengths[name]]
            if self._knows_enough(lengths):
                raise TimeIsUp
            if any(lengths.values()):
                self._drop_prompts(lengths)
        completions = self._timed_step()
        self._advance()
        return completions

    def _drop_prompts(self, lengths: Mapping[str, int]) -> None:
        """Drop prompts that have not started: prefill has priority and could use up the time."""
        for name, length in lengths.items():
            if not length:
                self.engine.abort(name)

    def _advance(self) -> None:
        """Continue with the next larger batch once this size was timed."""
        if self.is_small:
            is_late = self.clock() - self.stage_began > _SMALL_SHARE * self.seconds
            if self.num_steady >= (_FEW_STEPS if is_late else _ENOUGH_STEPS):
                self.stage, self.stage_began, self.num_steady = self.stage + 1, self.clock(), 0
                # A run starts with full batches: forget what was learned from small ones.
                self.engine.reset_draft_planner()
        elif self.first_wave is None and self.num_steady:
            begun = self.engine.unfinished_lengths().items()
            self.first_wave = {name for name, length in begun if length} - self.endless

    def _timed_step(self) -> list[Completion]:
        before = self.engine.stats().num_prefill_tokens
        self.last_decode = None
        began, cpu_began = time.perf_counter(), time.process_time()
        completions = self.engine.step()
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu_began
        self.step_s += wall
        self.step_cpu_s += cpu
        if (result := self.last_decode) is not None:
            self.decodes.append((len(result.tokens), sum(map(len, result.tokens)), wall, cpu))
            self.num_steady += 1
        elif tokens := self.engine.stats().num_prefill_tokens - before:
            self.prefills.append((tokens, wall, cpu))
            self.num_steady = 0
        return completions

    def _knows_enough(self, lengths: Mapping[str, int]) -> bool:
        """Whether a step of each kind was run, and enough of the first answers have finished to
        estimate lengths.  ``lengths``: those of unfinished answers."""
        if not self.prefills or not self.decodes:
            return False
        is_timed = self.num_steady >= _ENOUGH_STEPS or self.used_s > 1.5 * self.seconds
        wave = self.first_wave or set()
        is_known = len(wave & lengths.keys()) <= _OPEN_SHARE * len(wave)
        return is_timed and (is_known or self.used_s > _LONGER * self.seconds)
