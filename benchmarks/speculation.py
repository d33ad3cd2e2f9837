"""Speculation on held-out prompts: accepted length, calibration, speed with and without it.

Writes one JSON object per line.  Paired runs alternate step by step, and the median of their ratios
is reported, so that other programs affect both equally; times are of engine steps, including
prefill.  "scheduled" verifies by confidence on a hypothetical device, on which a step with a block
of five drafts takes 1.5 times as long as one without.

python -m benchmarks.speculation [--pairs 3]
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.turns import Seconds, Turns
from deepinfer import OfflineEngine, SamplingParams
from deepinfer.engine.speculation.measure_steps import device_name
from deepinfer.engine.speculation.step_profile import StepProfile
from deepinfer.engine.types import EngineStats
from deepinfer.loading import LoadedModel, load_model
from deepinfer.rows.row_stream import RowStream
from training.calibrate import prompts

SEED = "speculation"
MAX_TOKENS = 128
Setting = int | None  # drafts, or None for auto
BLOCK_S = 1.5


def answer(
    rows: list[dict[str, Any]],
    drafts: Setting,
    num_seqs: int,
    temperature: float = 0.0,
    profile_path: Path | None = None,
) -> tuple[float, EngineStats, list[tuple[int, ...]]]:
    """Tokens per second of the whole run except loading, the counters, and the answers."""
    with OfflineEngine(
        num_speculative_tokens=drafts, max_num_seqs=num_seqs, profile_path=profile_path
    ) as engine:
        started = time.perf_counter()
        outputs = engine.generate(
            rows, SamplingParams(temperature=temperature, max_tokens=MAX_TOKENS)
        )
        seconds = time.perf_counter() - started
        answers = [output.samples[0].token_ids for output in outputs]
        return sum(map(len, answers)) / seconds, engine.stats(), answers


def imagined_profile() -> StepProfile:
    """The profile of a hypothetical device: drafting is cheap, verification is not."""
    return StepProfile(
        device=device_name("cpu"), block_size=5, num_requests=(1,),
        draft_s=(0.05,), first_s=(0.05,), seed_s=(1e-6,), single_s=(1.0,), block_s=(BLOCK_S,),
    )  # fmt: skip


def draft_facts(stats: EngineStats) -> dict[str, Any]:
    """The counters of a run, named as in the report."""
    blocks = max(stats.num_draft_blocks, 1)
    pairs = zip(stats.accepted_per_position, stats.verified_per_position, strict=True)
    return {
        "blocks": stats.num_draft_blocks,
        "accepted_length": round(1 + stats.num_accepted_tokens / blocks, 3),
        "mean_verify_length": round(stats.num_draft_tokens / blocks, 3),
        "acceptance_per_position": [round(a / max(v, 1), 3) for a, v in pairs],
        "calibration_error": round(stats.calibration_error or 0.0, 4),
    }


def paired(rows: list[dict[str, Any]], num_seqs: int, pairs: int) -> dict[str, Any]:
    """``auto`` compared with no drafts, alternating step by step.  Ratios of tokens per second."""
    runs = [_pair(rows, num_seqs) for _ in range(pairs)]
    cpu = [pair["off"].cpu / pair["auto"].cpu for pair, _, _ in runs]
    wall = [pair["off"].wall / pair["auto"].wall for pair, _, _ in runs]
    stats, num_tokens = runs[-1][1], runs[-1][2]
    return {
        "num_seqs": num_seqs,
        "num_rows": len(rows),
        "off_tokens_per_cpu_s": round(median(num_tokens / pair["off"].cpu for pair, _, _ in runs)),
        "auto_tokens_per_cpu_s": round(
            median(num_tokens / pair["auto"].cpu for pair, _, _ in runs)
        ),
        "cpu_ratio": round(median(cpu), 3),
        "cpu_ratios": [round(ratio, 3) for ratio in cpu],
        "wall_ratio": round(median(wall), 3),
        "wall_ratios": [round(ratio, 3) for ratio in wall],
        **draft_facts(stats),
    }


def _pair(rows: list[dict[str, Any]], num_seqs: int) -> tuple[dict[str, Seconds], EngineStats, int]:
    """Times of both runs, counters of the one with drafts, tokens of each.  Checks that answers are
    equal."""
    answers: dict[str, dict[int, tuple[int, ...]]] = {"off": {}, "auto": {}}
    settings = {"off": {"num_speculative_tokens": 0}, "auto": {}}
    loaded = {
        name: load_model(None, {"max_num_seqs": num_seqs, **more}, device="cpu")
        for name, more in settings.items()
    }

    def act(name: str) -> None:
        for output in _stream(loaded[name]).run(
            (number, row, SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS))
            for number, row in enumerate(rows)
        ):
            answers[name][output.row] = output.samples[0].token_ids

    turns = Turns()
    turns.run({name: (loaded[name].engine, partial(act, name)) for name in loaded})
    assert answers["off"] == answers["auto"], "drafts changed an answer"
    num_tokens = sum(map(len, answers["off"].values()))
    return turns.used, loaded["auto"].engine.stats(), num_tokens


def _stream(loaded: LoadedModel) -> RowStream:
    return RowStream(
        loaded.engine, loaded.tokenizer, max_model_len=loaded.engine.max_model_len,
        vocab_size=loaded.config.vocab_size, max_in_flight=64, seed=0,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only-pairs", action="store_true", help="no lengths and calibration")
    options = parser.parse_args()
    place = {"torch": torch.__version__, "cpu": platform.machine(), "seed": SEED}
    all_rows = prompts(SEED, 192)
    rows = all_rows[:64]
    for temperature in () if options.only_pairs else (0.0, 1.0):
        name = {"num_seqs": 4, "temperature": temperature} | place
        _, stats, _ = answer(rows, 5, 4, temperature)
        print(json.dumps({"case": "all 5 verified"} | draft_facts(stats) | name), flush=True)
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            imagined_profile().save(Path(file.name))
            _, stats, _ = answer(rows, None, 4, temperature, Path(file.name))
        print(json.dumps({"case": "scheduled"} | draft_facts(stats) | name), flush=True)
    for num_seqs, count in ((1, 10), (64, 64), (64, 192)):
        result = paired(all_rows[:count], num_seqs, options.pairs)
        print(json.dumps({"case": "auto against off, greedy"} | result | place), flush=True)


if __name__ == "__main__":
    main()
