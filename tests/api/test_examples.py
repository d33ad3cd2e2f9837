"""The example files are sound: every row encodes, and the script runs."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import deepinfer
from deepinfer.engine.types import SamplingParams
from deepinfer.recipes.encoding import RowEncoder

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def test_every_example_row_encodes_and_all_kinds_are_shown(tokenizer):
    encoder = RowEncoder(tokenizer, max_model_len=8192, vocab_size=tokenizer.size)
    lines = (EXAMPLES / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [encoder.encode(number, json.loads(line)) for number, line in enumerate(lines)]
    assert {row.kind for row in rows} == {
        "prompt", "raw", "messages", "batch_chat", "batch_completion",
    }  # fmt: skip
    assert len({row.row_id for row in rows}) == len(rows)
    assert all("ignored_fields" not in row.notes for row in rows)
    assert any(row.answer_format.is_thinking for row in rows)
    assert any(row.answer_format.has_tools for row in rows)


def test_the_script_runs(golden_model, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["offline_inference.py", str(golden_model)])
    short = SamplingParams(max_tokens=4)
    monkeypatch.setattr(deepinfer, "SamplingParams", lambda **_: short, raising=False)
    runpy.run_path(str(EXAMPLES / "offline_inference.py"))
    shown = capsys.readouterr().out
    assert shown.count("answer:") == 3
    assert "capital of France" in shown
