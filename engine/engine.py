"""``LLMEngine``: requests in, completions out, one step at a time.  Single-threaded."""

from __future__ import annotations

from typing import Any

from .config import EngineConfig
from .types import Completion, EngineStats, Request


class LLMEngine:
    """The engine of one device.

    ``model`` is ``engine.model.model.Model`` (anything with its ``forward``); ``cache`` is made from
    the model's sizes unless one is given.

        engine = LLMEngine(model, EngineConfig(max_num_seqs=8))
        engine.add_request(Request(...))
        while engine.has_unfinished():
            for completion in engine.step(): ...
    """

    config: EngineConfig
    max_model_len: int

    def __init__(self, model: Any, config: EngineConfig, cache: Any = None) -> None:
        raise NotImplementedError

    def add_request(self, request: Request) -> None:
        """Queue a request.  One that can never run (too long, empty) comes back from ``step`` as an
        error completion.  Raises: EngineError if the id is in use or the engine is closed."""
        raise NotImplementedError

    def step(self) -> list[Completion]:
        """Run one prefill or decode step; return the requests that finished in it."""
        raise NotImplementedError

    def abort(self, request_id: str) -> bool:
        """Drop a request and free what it holds; no completion follows.  False if unknown."""
        raise NotImplementedError

    def has_unfinished(self) -> bool:
        """Whether ``step`` has anything left to do."""
        raise NotImplementedError

    def stats(self) -> EngineStats:
        """Counters since the engine was made."""
        raise NotImplementedError

    def check_integrity(self) -> None:
        """Raise EngineError if a block or slot leaked or is used twice."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the caches.  Idempotent."""
        raise NotImplementedError
