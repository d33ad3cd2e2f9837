"""Overhead per row besides the engine (reading, encoding, parsing, writing), and peak memory.

    python benchmarks/pipeline_overhead.py [--rows 1000000] [--few 10000]

Runs ``deepinfer run`` on raw prompts, in a separate process per case on one core, with an engine
that answers every request immediately with the same tokens.  One JSON line per case: rows_per_s by
wall-clock time, rows_per_core_s by CPU time of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from deepinfer.engine.types import Completion, EngineStats, Request, SamplingParams
from deepinfer.engine_facts import EngineFacts
from deepinfer.recipes.embedded import embedded_model_path
from deepinfer.recipes.tokenizer import Tokenizer
from deepinfer.rows.row_stream import RowStream
from deepinfer_cli.main import main as deepinfer
from deepinfer_cli.settings.settings import Settings

PROMPT = "Once upon a time there was a small fox who lived near row %d of the field."
ANSWER = " The fox looked at the moon and said that it would like to have some cheese tonight."
BATCH = 64


class InstantEngine:
    """An engine that finishes a batch of waiting requests in every step."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._waiting: list[Request] = []
        self._answer = (*tokenizer.encode_plain(ANSWER), tokenizer.eos_id)

    def add_request(self, request: Request) -> None:
        self._waiting.append(request)

    def step(self) -> list[Completion]:
        done, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
        return [
            Completion(
                request_id=request.request_id,
                output_token_ids=self._answer,
                finish_reason="stop",
                stop_reason=self._answer[-1],
            )
            for request in done
        ]

    def abort(self, request_id: str) -> bool:
        return False


class Rows:
    """The interface of ``OfflineEngine`` that the command line uses, with an ``InstantEngine``."""

    def __init__(self, settings: Settings) -> None:
        tokenizer = Tokenizer.from_file(embedded_model_path() / "tokenizer.json")
        self._rows = RowStream(
            InstantEngine(tokenizer),
            tokenizer,
            max_model_len=8192,
            vocab_size=tokenizer.size,
            max_in_flight=4 * BATCH,
            seed=settings.seed,
        )

    def stream(
        self,
        rows: Iterable[tuple[int, Mapping[str, Any]]],
        sampling_params: SamplingParams | None = None,
        *,
        raw: bool = False,
        thinking: Any = None,
        constraint: Mapping[str, Any] | None = None,
    ) -> Iterator[Any]:
        defaults = sampling_params or SamplingParams()
        numbered = ((number, row, defaults) for number, row in rows)
        return self._rows.run(numbered, raw=raw, thinking=thinking)

    def facts(self) -> EngineFacts:
        return EngineFacts(device="none", device_name="none")

    @property
    def notes(self) -> Mapping[str, str]:
        return {}

    def stats(self) -> EngineStats:
        return EngineStats()

    def close(self) -> None:
        self._rows.close()


def run_once(num_rows: int, folder: Path) -> dict[str, float]:
    """Write ``num_rows`` prompts and run them in this process; returns the measurements."""
    source = folder / "prompts.jsonl"
    with source.open("w", encoding="utf-8") as file:
        for row in range(num_rows):
            file.write(json.dumps({"prompt": PROMPT % row}) + "\n")
    start, start_core = time.perf_counter(), time.process_time()
    output = folder / "answers.jsonl"
    code = deepinfer(["run", str(source), "-o", str(output), "--raw", "--quiet"], Rows)
    seconds, core_seconds = time.perf_counter() - start, time.process_time() - start_core
    with output.open("rb") as file:
        answered = sum(1 for _ in file)
    if code or answered != num_rows:
        raise SystemExit(f"{answered} of {num_rows} rows were answered, exit code {code}")
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "rows": num_rows,
        "rows_per_s": num_rows / seconds,
        "rows_per_core_s": num_rows / core_seconds,
        "peak_mib": peak_mib,
    }


def _in_a_process(num_rows: int) -> dict[str, float]:
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="pipeline-") as folder:
        done = subprocess.run(
            [sys.executable, "-P", __file__, "--child", folder, "--rows", str(num_rows)],
            env=environment,
            stdout=subprocess.PIPE,
            check=True,
        )
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the large file")
    parser.add_argument("--few", type=int, default=10_000, help="rows of the small file")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        print(json.dumps(run_once(arguments.rows, arguments.child)))
        return 0
    few, many = _in_a_process(arguments.few), _in_a_process(arguments.rows)
    growth = many["peak_mib"] / few["peak_mib"] - 1
    machine = {
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
    }
    for measured in (few, many):
        rounded = {name: round(value, 1) for name, value in measured.items()}
        print(json.dumps({"benchmark": "pipeline_overhead", **rounded, **machine}))
    slowest = min(few["rows_per_core_s"], many["rows_per_core_s"])
    held = slowest >= 3_000 and growth <= 0.15
    verdict = {"slowest_rows_per_core_s": round(slowest), "memory_growth": round(growth, 4)}
    print(json.dumps({"benchmark": "pipeline_overhead", **verdict, "holds": held}))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
