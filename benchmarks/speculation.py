"""Speculation on held-out prompts: accepted length, calibration, speed with and without it.

Writes one JSON object per line.  Paired runs take turns, and the median of their ratios counts, so
that other programs on the machine weigh on both alike.  "scheduled" verifies by confidence on an
imagined device, where a block of five drafts takes 1.5 times as long as a step without them.

python -m benchmarks.speculation [--pairs 3]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from deepinfer import OfflineEngine, SamplingParams
from deepinfer.engine.measure_steps import device_name
from deepinfer.engine.step_profile import StepProfile
from deepinfer.engine.types import EngineStats
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
    """Tokens per second of the whole run without loading, the counters, and the answers."""
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
    """Large batches on a large model: drafting is cheap, verification takes its share."""
    return StepProfile(
        device=device_name("cpu"), block_size=5, num_requests=(1,),
        draft_s=(0.05,), single_s=(1.0,), block_s=(BLOCK_S,),
    )  # fmt: skip


def draft_facts(stats: EngineStats) -> dict[str, Any]:
    """The counters of a run in the report's words."""
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
    """Auto against no drafts, in turns."""
    runs = [(answer(rows, 0, num_seqs), answer(rows, None, num_seqs)) for _ in range(pairs)]
    ratios = [on[0] / off[0] for off, on in runs]
    return {
        "num_seqs": num_seqs,
        "off_tokens_per_s": round(statistics.median(off[0] for off, _ in runs), 1),
        "auto_tokens_per_s": round(statistics.median(on[0] for _, on in runs), 1),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "equal_answers": all(on[2] == off[2] for off, on in runs),
        **draft_facts(runs[-1][1][1]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    pairs = parser.parse_args().pairs
    place = {"torch": torch.__version__, "cpu": platform.machine(), "seed": SEED}
    rows = prompts(SEED, 64)
    for temperature in (0.0, 1.0):
        name = {"num_seqs": 4, "temperature": temperature} | place
        _, stats, _ = answer(rows, 5, 4, temperature)
        print(json.dumps({"case": "all 5 verified"} | draft_facts(stats) | name), flush=True)
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            imagined_profile().save(Path(file.name))
            _, stats, _ = answer(rows, None, 4, temperature, Path(file.name))
        print(json.dumps({"case": "scheduled"} | draft_facts(stats) | name), flush=True)
    for num_seqs, count in ((1, 10), (64, 64)):
        result = {"case": "auto against off, greedy"} | paired(rows[:count], num_seqs, pairs)
        print(json.dumps(result | place), flush=True)


if __name__ == "__main__":
    main()
