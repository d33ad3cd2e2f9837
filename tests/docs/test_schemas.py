"""The schemas in docs/schemas say what the program reads and writes, no more and no less."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from deepinfer.engine.types import SamplingParams
from deepinfer.errors import ConfigError, RowError
from deepinfer.recipes.embedded import embedded_model_path
from deepinfer.recipes.encoding import RowEncoder
from deepinfer.recipes.tokenizer import Tokenizer
from deepinfer_cli.main import main

_USER = [{"role": "user", "content": "Hi"}]
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 1.0, 1.5, -0.5, 200, 2**64, "x", "", "off", [], [1], ["a"],
    [""], {}, {"1": 2}, {"x": 2}, {"1": 200},
)  # fmt: skip
# Fields whose meaning a schema of their form cannot judge: what is in them may still be refused.
_JUDGED_LATER = {"regex", "grammar", "response_format", "tools", "tool_choice", "messages"}
_JUDGED_LATER |= {"thinking", "reasoning_effort", "prompt_token_ids", "stop_token_ids", "raw"}


@pytest.fixture(scope="session")
def validators() -> dict[str, Any]:
    folder = Path(__file__).parents[2] / "docs" / "schemas"
    found = {}
    for path in folder.glob("*.schema.json"):
        schema = json.loads(path.read_text(encoding="utf-8"))
        jsonschema.Draft202012Validator.check_schema(schema)
        found[path.name.removesuffix(".schema.json")] = jsonschema.Draft202012Validator(schema)
    return found


@pytest.fixture(scope="session")
def accepted() -> Callable[[dict[str, Any], str], bool | None]:
    """Whether the program takes a row, by the code that a run uses; None if it does not look at
    the field."""
    tokenizer = Tokenizer.from_file(embedded_model_path() / "tokenizer.json")
    encoder = RowEncoder(tokenizer, max_model_len=8192, vocab_size=tokenizer.size)

    def call(row: dict[str, Any], name: str) -> bool | None:
        try:
            encoded = encoder.encode(0, row)
            dataclasses.replace(SamplingParams(), **encoded.sampling)
        except (RowError, ConfigError):
            return False
        return None if name in encoded.notes.get("ignored_fields", "").split(", ") else True

    return call


def _fields(validators: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    schema = validators["row"].schema
    for name in schema["$defs"]["Fields"]["properties"]:
        for value in _VALUES:
            yield name, value


@pytest.mark.parametrize(
    "base", [{"prompt": "Hi"}, {"messages": _USER}, {"prompt": "Hi", "raw": True}]
)
def test_a_row_is_taken_exactly_if_its_schema_allows_it(
    validators: dict[str, Any], accepted: Callable[..., bool], base: dict[str, Any]
) -> None:
    wrong = []
    for name, value in _fields(validators):
        row = {**base, name: value}
        is_valid, is_accepted = validators["row"].is_valid(row), accepted(row, name)
        if is_accepted is None or is_accepted == is_valid:
            continue
        if is_accepted or name not in _JUDGED_LATER:
            wrong.append((name, value, is_accepted))
    assert wrong == []


def test_every_field_that_the_program_knows_is_in_the_schema(validators: dict[str, Any]) -> None:
    known = {field.name for field in dataclasses.fields(SamplingParams)}
    assert known <= set(validators["row"].schema["$defs"]["Fields"]["properties"])
    sampling = validators["result"].schema["properties"]["sampling"]["properties"]
    assert set(sampling) == known - {"seed"}


def test_the_examples_are_valid_rows(validators: dict[str, Any], root: Path) -> None:
    for path in (root / "examples").glob("*.jsonl"):
        for row in _lines(path):
            is_wrong = row.get("custom_id") == "wrong"  # openai_batch.jsonl shows one such line
            assert validators["row"].is_valid(row) is not is_wrong, row


def test_batch_lines(validators: dict[str, Any]) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"}
    assert validators["row"].is_valid({**line, "body": {"messages": _USER}})
    assert not validators["row"].is_valid({**line, "body": {"messages": _USER, "n": 0}})
    assert not validators["row"].is_valid({**line, "url": "/v1/embeddings", "body": {}})
    assert not validators["row"].is_valid({"question": "Hi"})


_ROWS = (
    '{"id": 3, "prompt": "Hi", "note": 1}',
    '{"custom_id": "two", "prompt": "Hi", "n": 2, "logprobs": 2, "seed": 5}',
    '{"prompt": "What is 2 plus 3?", "thinking": "low", "temperature": 0.5}',
    '{"prompt": "One word.", "regex": "yes|no", "logit_bias": {"5": -1}}',
    '{"prompt_token_ids": [0, 5, 6], "stop_token_ids": [7], "min_tokens": 1, "top_k": 5}',
    '{"messages": [{"role": "user", "content": "What is the weather in Rome?"}], "thinking": "off",'
    ' "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": {"type":'
    ' "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}],'
    ' "tool_choice": "required", "temperature": 0, "max_tokens": 60}',
    '{"prompt": "Count from 1 to 9.", "temperature": 0, "stop": "4", "max_tokens": 30}',
    '{"question": "Hi"}',
    "not JSON",
    '{"prompt": "' + "x" * 5000 + '"}',
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of a real run, and with those of one that was stopped."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "in.jsonl").write_bytes("\n".join(_ROWS).encode() + b"\n\xff\n")
    source = str(folder / "in.jsonl")
    flags = ["--max-tokens", "8", "--quiet", "--timing", "--keep-token-ids", "--carry", "*"]
    flags += ["--max-row-bytes", "2000"]
    assert main(["run", source, "-o", str(folder / "out.jsonl"), *flags]) == 3
    stopped = ["--output", str(folder / "cut.jsonl"), "--quiet", "--max-errors", "1"]
    assert main(["run", source, *stopped, "--max-tokens", "4"]) == 4
    unordered = ["--output", str(folder / "unordered.jsonl"), "--quiet", "--order", "completion"]
    assert main(["run", source, *unordered, "--limit", "1", "--max-tokens", "4"]) == 0
    again = ["run", source, "--output", str(folder / "again.jsonl"), "--quiet", "--limit", "9"]
    assert main([*again, "--max-tokens", "1"]) == 3
    assert main([*again, "--max-tokens", "1", "--retry-failed", "--time-limit", "0"]) == 75
    return folder


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_result_rows(validators: dict[str, Any], written: Path) -> None:
    rows = _lines(written / "out.jsonl") + _lines(written / "unordered.jsonl")
    for row in rows:
        validators["result"].validate(row)
    seen = {name for row in rows for part in (row, *row.get("samples", ())) for name in part}
    described = validators["result"].schema
    wanted = {*described["properties"], *described["$defs"]["Answer"]["properties"]}
    assert wanted - seen <= {"warnings", "reasoning"}, "the rows above show every field"


def test_result_rows_with_other_fields_are_refused(
    validators: dict[str, Any], written: Path
) -> None:
    row = _lines(written / "out.jsonl")[0]
    for change in ({"extra": 1}, {"content": None}, {"finish_reason": "error"}, {"usage": {}}):
        assert not validators["result"].is_valid(row | change)


def test_error_rows(validators: dict[str, Any], written: Path) -> None:
    rows = _lines(written / "out.jsonl.errors.jsonl")
    for row in rows:
        validators["error"].validate(row)
    held = {name for row in rows for name in row if name.startswith("input")}
    assert held == {"input", "input_text", "input_base64", "input_start"}
    assert not validators["error"].is_valid(rows[0] | {"input_text": "twice"})


def test_the_report(validators: dict[str, Any], written: Path) -> None:
    for name, status in (("out.jsonl.report", "finished"), ("cut.jsonl.partial/report", "failed")):
        report = json.loads((written / f"{name}.json").read_bytes())
        validators["report"].validate(report)
        assert report["status"] == status


def test_the_journal_of_a_stopped_run(validators: dict[str, Any], written: Path) -> None:
    lines = (written / "cut.jsonl.partial" / "journal").read_bytes().splitlines()
    kinds = set()
    for line in lines:
        _, _, row_digest, kind, facts, payload = line.split(b"\t", 5)
        validators["journal"].validate(json.loads(facts))
        validators[kind.decode()].validate(json.loads(payload))
        assert len(row_digest) == 16
        kinds.add(kind)
    assert kinds == {b"result", b"error"}


def test_the_journal_of_a_retry(validators: dict[str, Any], written: Path) -> None:
    lines = (written / "again.jsonl.partial" / "journal").read_bytes().splitlines()
    for line in lines:
        facts = json.loads(line.split(b"\t", 5)[4])
        validators["journal"].validate(facts)
        assert facts["retold"] is True
    assert lines
