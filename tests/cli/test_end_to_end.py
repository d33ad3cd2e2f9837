"""The real program and engine on a real checkpoint: every format in and out, the same answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deepinfer.recipes.embedded import embedded_model_path
from deepinfer_cli.main import main

_ROOT = Path(__file__).parents[2]
_CHECKPOINT = _ROOT / "tests" / "goldens" / "tiny-a" / "checkpoint"
_CHAT = [{"role": "user", "content": "Hi"}]
_ROWS: list[dict[str, Any]] = [
    {"id": "turn", "prompt": "Hello there", "temperature": 0},
    {"id": "text", "prompt": "Once upon", "raw": True, "seed": 5},
    {"id": "ids", "prompt_token_ids": [0, 5, 6, 7]},
    {"id": "chat", "messages": _CHAT, "n": 2},
    {
        "custom_id": "line", "method": "POST", "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": _CHAT, "max_tokens": 2},
    },
    {"id": "empty", "prompt": ""},
    {"id": "kind", "question": "?"},
    {"id": "long", "prompt_token_ids": [5] * 100_000},
]  # fmt: skip
_ERRORS = {"empty", "kind", "long"}


def _run(source: str, output: str, *more: str) -> dict[str, dict[str, Any]]:
    arguments = ["run", source, "-o", output, "--quiet", "--model", str(_CHECKPOINT)]
    assert main([*arguments, "--max-tokens", "4", "--batch-invariant", *more]) == 3
    if output.endswith(".parquet"):
        rows = pq.read_table(output).to_pylist()
    else:
        rows = [json.loads(line) for line in Path(output).read_bytes().splitlines()]
    errors = Path(output + ".errors.jsonl").read_bytes().splitlines()
    assert {json.loads(line)["id"] for line in errors} == _ERRORS
    return {row["id"]: row for row in rows}


def test_the_same_rows_in_every_format(in_tmp: Path) -> None:
    Path("in.jsonl").write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in _ROWS))
    pq.write_table(
        pa.Table.from_pylist([{**dict.fromkeys(_keys()), **row} for row in _ROWS]), "in.parquet"
    )
    plain = _run("in.jsonl", "plain.jsonl")
    assert list(plain) == ["turn", "text", "ids", "chat", "line"]
    assert plain["text"]["seed"] == 5 and len(plain["chat"]["samples"]) == 2
    assert plain["line"]["usage"]["completion_tokens"] <= 2
    _run("in.parquet", "columns.jsonl", "--max-num-seqs", "2")
    assert Path("columns.jsonl").read_bytes() == Path("plain.jsonl").read_bytes()
    table = _run("in.jsonl", "out.parquet")
    assert {name: row["content"] for name, row in table.items() if name != "chat"} == {
        name: row["content"] for name, row in plain.items() if name != "chat"
    }


def _keys() -> list[str]:
    return list(dict.fromkeys(key for row in _ROWS for key in row))


@pytest.mark.parametrize("model", ["missing-folder", "someone/some-model"])
def test_a_model_that_is_not_there(
    in_tmp: Path, capfd: pytest.CaptureFixture[str], model: str
) -> None:
    Path("in.jsonl").write_text('{"prompt": "a"}\n')
    assert main(["run", "in.jsonl", "--model", model]) == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("deepinfer: ") and model in last
    assert [path.name for path in Path().iterdir()] == ["in.jsonl"]


@pytest.mark.skipif(
    not (embedded_model_path() / "model.safetensors").exists(),
    reason="the model is not trained yet",
)
def test_the_example_prompts_with_the_model_inside_the_package(in_tmp: Path) -> None:
    source = _ROOT / "examples" / "prompts.jsonl"
    assert main(["run", str(source), "-o", "out.jsonl", "--max-tokens", "8"]) == 0
    assert Path("out.jsonl").read_bytes().count(b"\n") == source.read_bytes().count(b"\n")
