"""A stand-in for OfflineEngine: echoes prompts, finishes rows out of order, needs no torch.

Run as a script it is the ``deepinfer`` program with this engine, for tests of whole processes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from deepinfer.engine.types import EngineStats, SamplingParams
from deepinfer.engine_facts import EngineFacts
from deepinfer.outputs import RequestOutput, Sample, Usage
from deepinfer_cli.settings.settings import Settings


class FakeEngine:
    """Answers ``prompt`` with its own text, ``window`` rows at a time, the last of them first.

    A row with ``fail`` is an error of that kind; ``crash`` raises; ``reasoning`` is passed through.
    """

    def __init__(self, settings: Settings, *, window: int = 8, seconds: float = 0.0) -> None:
        self.seed = settings.seed
        self.window = window
        self.seconds = seconds
        self.rows: list[int] = []
        self.max_in_flight = 0
        self.is_closed = False
        self.constraint: Mapping[str, Any] | None = None
        self.notes: Mapping[str, str] = {}

    def stream(
        self,
        rows: Iterable[tuple[int, Mapping[str, Any]]],
        sampling_params: SamplingParams | None = None,
        *,
        raw: bool = False,
        thinking: str | None = None,
        constraint: Mapping[str, Any] | None = None,
    ) -> Iterator[RequestOutput]:
        self.constraint = constraint
        held: list[tuple[int, Mapping[str, Any]]] = []
        for row in rows:
            held.append(row)
            self.max_in_flight = max(self.max_in_flight, len(held))
            if len(held) == self.window:
                yield from self._answer_all(held, sampling_params or SamplingParams())
        yield from self._answer_all(held, sampling_params or SamplingParams())

    def _answer_all(
        self, held: list[tuple[int, Mapping[str, Any]]], sampling: SamplingParams
    ) -> Iterator[RequestOutput]:
        while held:
            number, fields = held.pop()
            time.sleep(self.seconds)
            yield self._answer(number, fields, sampling)

    def _answer(
        self, number: int, fields: Mapping[str, Any], sampling: SamplingParams
    ) -> RequestOutput:
        self.rows.append(number)
        row_id = str(fields.get("custom_id", fields.get("id")))
        if "crash" in fields:
            raise RuntimeError("the device is gone")
        prompt = fields.get("prompt")
        if "fail" in fields or not isinstance(prompt, str):
            kind = str(fields.get("fail", "missing_field"))
            return RequestOutput(row=number, request_id=row_id, error_kind=kind, error="no prompt")
        samples = tuple(
            Sample(
                text=prompt,
                reasoning=fields.get("reasoning"),
                tool_calls=(),
                token_ids=tuple(prompt.encode("utf-8", "replace")),
                finish_reason="stop",
                stop_reason=None,
                seed=self.seed + number * 10 + index,
                constraint="valid" if self.constraint else None,
            )
            for index in range(sampling.n)
        )
        length = len(samples[0].token_ids)
        return RequestOutput(
            row=number,
            request_id=row_id,
            kind="prompt",
            prompt_token_ids=samples[0].token_ids,
            samples=samples,
            usage=Usage(
                prompt_tokens=length, cached_tokens=number % 2, reasoning_tokens=0,
                completion_tokens=length * sampling.n,
            ),
            sampling=sampling,
        )  # fmt: skip

    def stats(self) -> EngineStats:
        return EngineStats(num_steps=len(self.rows))

    def facts(self) -> EngineFacts:
        return EngineFacts(device="cpu", device_name="an echo")

    def close(self) -> None:
        self.is_closed = True


def _main() -> int:
    from deepinfer_cli.main import main

    seconds = float(os.environ.pop("FAKE_SECONDS_PER_ROW", "0"))
    return main(make_engine=lambda settings: FakeEngine(settings, seconds=seconds))


if __name__ == "__main__":
    sys.exit(_main())
