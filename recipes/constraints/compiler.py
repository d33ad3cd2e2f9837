"""Compiles constraints in background threads, once per distinct spec, within limits."""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import llguidance

from .grammar import to_grammar
from .limits import ConstraintLimits
from .masks import num_threads
from .matcher import ConstraintMatcher
from .spec import ConstraintSpec
from .trial import Trial, compile_error
from .vocabulary import ConstraintVocabulary

# Masks of answers with the same prototype are computed sequentially.
ROWS_OF_A_PROTOTYPE, MOST_PROTOTYPES = 8, 8
# A grammar that takes longer is large; rows should not wait for eight prototypes of it.
_LONG_S = 0.2


class CompiledConstraint:
    """A compiled spec, from which matchers are created.

    Matchers of one prototype share the lazily computed state of its grammar, which llguidance locks
    while it computes a mask.  A constraint of many rows therefore has several prototypes, whose
    masks can be computed in parallel.
    """

    def __init__(
        self, spec: ConstraintSpec, vocabulary: ConstraintVocabulary, compile: Callable[[], Any]
    ) -> None:
        self.spec = spec
        self.vocabulary = vocabulary
        self._compile = compile
        began = time.thread_time()
        self._prototypes = [compile()]
        self._most = 1 if time.thread_time() - began > _LONG_S else MOST_PROTOTYPES
        self._num_made = [0]

    @property
    def num_prototypes(self) -> int:
        return len(self._prototypes)

    def is_enough_for(self, num_rows: int) -> bool:
        """Whether the prototypes suffice for ``num_rows`` rows, or for all threads."""
        most = min(self._most, num_threads())
        return self.num_prototypes >= min(-(-num_rows // ROWS_OF_A_PROTOTYPE), most)

    def grow(self) -> None:
        """Compile one more prototype."""
        self._num_made.append(0)
        self._prototypes.append(self._compile())

    def new_matcher(self, *, start_after: int | None = None) -> ConstraintMatcher:
        """A matcher for one answer.

        ``start_after``: the id that ends the reasoning, if the answer starts within it.
        """
        place = min(range(self.num_prototypes), key=self._num_made.__getitem__)
        self._num_made[place] += 1
        copy = self._prototypes[place].deep_copy()
        return ConstraintMatcher(copy, self.vocabulary, start_after=start_after)


@dataclass(slots=True)
class _Entry:
    """``num_rows``: how often this constraint was requested."""

    num_rows: int = 0
    future: Future[CompiledConstraint] = field(init=False)


class ConstraintCompiler:
    """Compiles the constraints of one model.  Results, including errors, are cached (LRU).

    Each worker tries a grammar in a child process first and compiles it here once it has passed, so
    a hostile grammar blocks only its worker, for at most ``compile_timeout_s``.
    """

    def __init__(
        self,
        vocabulary: ConstraintVocabulary,
        *,
        limits: ConstraintLimits | None = None,
        num_workers: int = 2,
        max_cached: int = 1024,
    ) -> None:
        self.vocabulary = vocabulary
        self._limits = limits or ConstraintLimits()
        self._max_cached = max_cached
        self._cache: OrderedDict[ConstraintSpec, _Entry] = OrderedDict()
        self._lock = threading.Lock()
        self._trials: queue.LifoQueue[Trial] = queue.LifoQueue()  # the last used one is warm
        self.trials = [Trial(self._limits) for _ in range(num_workers)]
        for trial in self.trials:
            self._trials.put(trial)
        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix="constraint")

    def submit(self, spec: ConstraintSpec) -> Future[CompiledConstraint]:
        """Start compiling ``spec`` for one more row, unless it is cached.  The future raises
        RowError if it is invalid."""
        with self._lock:
            entry = self._cache.get(spec)
            if entry is None:
                entry = self._cache[spec] = _Entry()
                entry.future = self._pool.submit(self._compile, spec, entry)
            entry.num_rows += 1
            if _is_small(entry):
                entry.future = self._pool.submit(_grown, entry.future.result(), entry)
            self._cache.move_to_end(spec)
            while len(self._cache) > self._max_cached:
                self._cache.popitem(last=False)
            return entry.future

    def compile(self, spec: ConstraintSpec) -> CompiledConstraint:
        """As ``submit``, but waits for the result.  Raises: RowError."""
        return self.submit(spec).result()

    def close(self) -> None:
        """Stop the workers and their processes; pending compilations are cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for trial in self.trials:
            trial.close()
        self._pool.shutdown(wait=True)
        for trial in self.trials:
            trial.release()

    def __enter__(self) -> ConstraintCompiler:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _compile(self, spec: ConstraintSpec, entry: _Entry) -> CompiledConstraint:
        vocabulary = self.vocabulary
        grammar = to_grammar(spec, marker=vocabulary.marker, marker_id=vocabulary.marker_id)
        trial = self._trials.get()
        try:
            trial.check(spec.kind, _without_token_ids(grammar, vocabulary))
        finally:
            self._trials.put(trial)
        compiled = CompiledConstraint(spec, vocabulary, lambda: self._prototype(spec, grammar))
        return _grown(compiled, entry)

    def _prototype(self, spec: ConstraintSpec, grammar: str) -> Any:
        matcher = llguidance.LLMatcher(
            self.vocabulary.ll_tokenizer,
            grammar,
            log_level=0,
            limits=llguidance.LLParserLimits(**self._limits.for_llguidance()),
        )
        matcher.compute_bitmask()  # cached in copies, so that their first mask costs nothing
        if matcher.is_error():
            raise compile_error(spec.kind, matcher.get_error())
        return matcher


def _is_small(entry: _Entry) -> bool:
    """Whether it is compiled, but with too few prototypes for its rows."""
    future = entry.future
    if not future.done() or future.cancelled() or future.exception() is not None:
        return False
    return not future.result().is_enough_for(entry.num_rows)


def _grown(compiled: CompiledConstraint, entry: _Entry) -> CompiledConstraint:
    """The same constraint with enough prototypes for the rows that have requested it so far."""
    while not compiled.is_enough_for(entry.num_rows):
        compiled.grow()
    return compiled


def _without_token_ids(grammar: str, vocabulary: ConstraintVocabulary) -> str:
    """The same grammar for the trial, whose only special token is the end token."""
    return grammar.replace(f"<[{vocabulary.marker_id}]>", "<[256]>")
