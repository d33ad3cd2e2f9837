"""A stand-in for the engine, so that the rows around it can be tested alone and fast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from deepinfer.engine.types import Completion, Request
from deepinfer.recipes.embedded import embedded_model_path
from deepinfer.recipes.tokenizer import Tokenizer
from deepinfer.rows.row_stream import RowStream

GOLDEN = Path(__file__).parent.parent / "goldens" / "tiny-a" / "checkpoint"


class ScriptedEngine:
    """Emits the ids that ``script`` gives for a request, one token per step, like the real one."""

    def __init__(self, script: Callable[[Request], Sequence[int]], eos_id: int) -> None:
        self.script = script
        self.eos_id = eos_id
        self.requests: list[Request] = []
        self.running: dict[str, tuple[Request, list[int], list[int]]] = {}
        self.aborted: list[str] = []
        self.most_running = 0

    def add_request(self, request: Request) -> None:
        assert request.request_id not in self.running
        assert request.sampling.n == 1
        self.requests.append(request)
        self.running[request.request_id] = (request, list(self.script(request)), [])
        self.most_running = max(self.most_running, len(self.running))

    def step(self) -> list[Completion]:
        finished = []
        for request, script, output in list(self.running.values()):
            completion = self._advance(request, script, output)
            if completion is not None:
                del self.running[request.request_id]
                finished.append(completion)
        return finished

    def _advance(self, request: Request, script: list[int], output: list[int]) -> Completion | None:
        def done(reason, stop=None, error=None):
            return Completion(
                request_id=request.request_id, output_token_ids=tuple(output),
                finish_reason=reason, stop_reason=stop, error=error,
            )  # fmt: skip

        if script[:1] == [-1]:
            return done("error", error="not a number in the logits")
        token_id = script.pop(0) if script else self.eos_id
        output.append(token_id)
        if token_id == self.eos_id:
            return done("stop", token_id)
        if token_id in request.sampling.stop_token_ids:
            return done("stop", token_id)
        stop = request.stop_checker.push(token_id) if request.stop_checker else None
        if stop is not None:
            return done("stop", stop)
        return done("length") if len(output) == request.sampling.max_tokens else None

    def abort(self, request_id: str) -> bool:
        self.aborted.append(request_id)
        return self.running.pop(request_id, None) is not None


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(embedded_model_path() / "tokenizer.json")


@pytest.fixture
def make_stream(tokenizer):
    """``make_stream(text or script)`` gives a RowStream over a ScriptedEngine."""
    streams = []

    def make(script="ok", *, max_in_flight=8, max_model_len=1000, seed=0):
        if isinstance(script, str):
            ids = tokenizer.encode_with_control(script)
            engine = ScriptedEngine(lambda request: ids, tokenizer.eos_id)
        else:
            engine = ScriptedEngine(script, tokenizer.eos_id)
        stream = RowStream(
            engine, tokenizer, max_model_len=max_model_len, vocab_size=tokenizer.size,
            max_in_flight=max_in_flight, seed=seed,
        )  # fmt: skip
        streams.append(stream)
        return stream, engine

    yield make
    for stream in streams:
        stream.close()


@pytest.fixture(scope="session")
def golden_model() -> Path:
    return GOLDEN
