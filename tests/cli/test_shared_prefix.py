"""Prompts that begin alike compute the beginning once, and no answer changes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from deepinfer_cli.main import main

_CHECKPOINT = Path(__file__).parents[1] / "goldens" / "tiny-a" / "checkpoint"
_WORDS = ("the", "fox", "and", "a", "bear", "went", "to", "see", "an", "old", "by", "river")


def _text(chance: random.Random, num_words: int) -> str:
    return " ".join(chance.choice(_WORDS) for _ in range(num_words))


def _rows(num_rows: int, system_prompts: list[str]) -> list[dict[str, Any]]:
    """Short questions under long system prompts, taken in turn."""
    chance = random.Random(3)
    return [
        {
            "messages": [
                {"role": "system", "content": system_prompts[index % len(system_prompts)]},
                {"role": "user", "content": _text(chance, 1 + index % 8)},
            ],
            "thinking": "off",
            "temperature": index % 2,
        }
        for index in range(num_rows)
    ]


def _run(output: str, *options: str) -> dict[str, Any]:
    common = ["--batch-invariant", "--speculative", "0", "-q"]
    assert main(["run", "in.jsonl", "-o", output, *common, *options]) == 0
    report: dict[str, Any] = json.loads(Path(output + ".report.json").read_bytes())
    return report


def _saved_share(*options: str) -> float:
    """The share of prefill tokens that sharing saves; answers must be the same bytes."""
    shared = _run("shared.jsonl", *options)
    alone = _run("alone.jsonl", *options, "--no-enable-prefix-caching")
    assert Path("shared.jsonl").read_bytes() == Path("alone.jsonl").read_bytes()
    total = alone["engine"]["num_prefill_tokens"]
    assert total == alone["tokens"]["prompt_tokens"] and alone["tokens"]["cached_tokens"] == 0
    # The report says what was saved, and it is what was not computed.
    saved = total - shared["engine"]["num_prefill_tokens"]
    assert shared["tokens"]["cached_tokens"] == saved
    return float(saved / total)


def test_interleaved_system_prompts_are_computed_once_each(
    in_tmp: Path,
) -> None:
    chance = random.Random(1)
    rows = _rows(16, [_text(chance, 150), _text(chance, 150)])
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    share = _saved_share("--model", str(_CHECKPOINT), "--max-tokens", "4", "--max-num-seqs", "4")
    assert share > 0.5


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_two_hundred_rows_under_a_system_prompt_of_two_thousand_tokens(
    in_tmp: Path,
) -> None:
    rows = _rows(200, [_text(random.Random(2), 2_000)])
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    share = _saved_share("--max-tokens", "8")
    report = json.loads(Path("shared.jsonl.report.json").read_bytes())
    assert report["lengths"]["prompt"]["min"] >= 2_000
    assert share >= 0.9
