"""Compiles constraints beside the run: in threads, once per distinct spec, within limits."""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import llguidance

from .grammar import to_grammar
from .limits import ConstraintLimits
from .matcher import ConstraintMatcher
from .spec import ConstraintSpec
from .trial import Trial, compile_error
from .vocabulary import ConstraintVocabulary


@dataclass(frozen=True)
class CompiledConstraint:
    """A spec ready to make matchers, which share what has been computed lazily."""

    spec: ConstraintSpec
    vocabulary: ConstraintVocabulary
    prototype: Any

    def new_matcher(self, *, start_after: int | None = None) -> ConstraintMatcher:
        """A matcher for one answer.

        ``start_after`` is the id that ends the reasoning, if the answer begins inside of it.
        """
        return ConstraintMatcher(
            self.prototype.deep_copy(), self.vocabulary, start_after=start_after
        )


class ConstraintCompiler:
    """The constraints of one model.  Results, errors too, are kept for the last specs used.

    Each worker tries a grammar in a child process first and compiles it here once it has passed,
    so a hostile one costs its worker at most ``compile_timeout_s`` and nobody else anything.
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
        self._cache: OrderedDict[ConstraintSpec, Future[CompiledConstraint]] = OrderedDict()
        self._lock = threading.Lock()
        self._trials: queue.LifoQueue[Trial] = queue.LifoQueue()  # the last used is warm
        self.trials = [Trial(self._limits) for _ in range(num_workers)]
        for trial in self.trials:
            self._trials.put(trial)
        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix="constraint")

    def submit(self, spec: ConstraintSpec) -> Future[CompiledConstraint]:
        """Start to compile ``spec``, or find it.  The future raises RowError for a bad one."""
        with self._lock:
            future = self._cache.get(spec)
            if future is None:
                future = self._cache[spec] = self._pool.submit(self._compile, spec)
            self._cache.move_to_end(spec)
            while len(self._cache) > self._max_cached:
                self._cache.popitem(last=False)
            return future

    def compile(self, spec: ConstraintSpec) -> CompiledConstraint:
        """The same, waiting.  Raises: RowError."""
        return self.submit(spec).result()

    def close(self) -> None:
        """End the workers and their processes; what is not compiled yet is cancelled."""
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

    def _compile(self, spec: ConstraintSpec) -> CompiledConstraint:
        vocabulary = self.vocabulary
        grammar = to_grammar(spec, marker=vocabulary.marker, marker_id=vocabulary.marker_id)
        trial = self._trials.get()
        try:
            trial.check(spec.kind, _without_token_ids(grammar, vocabulary))
        finally:
            self._trials.put(trial)
        matcher = llguidance.LLMatcher(
            vocabulary.ll_tokenizer,
            grammar,
            log_level=0,
            limits=llguidance.LLParserLimits(**self._limits.for_llguidance()),
        )
        matcher.compute_bitmask()  # copies know it from then on: the first mask costs nothing
        if matcher.is_error():
            raise compile_error(spec.kind, matcher.get_error())
        return CompiledConstraint(spec, vocabulary, matcher)


def _without_token_ids(grammar: str, vocabulary: ConstraintVocabulary) -> str:
    """The same grammar for the trial, whose vocabulary knows only its end token."""
    return grammar.replace(f"<[{vocabulary.marker_id}]>", "<[256]>")
