"""What a result row holds, up to its limits of size, depth and numbers; Parquet too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from run_files import read_report, read_rows, write_rows

Cli = Callable[..., Any]


def test_a_column_to_carry_that_no_row_has_is_named(cli: Cli) -> None:
    write_rows("in.jsonl", [{"prompt": "a", "x": 1}, {"prompt": "b", "y": 1}])
    done = cli("run", "in.jsonl", "-o", "a.jsonl", "--carry", "y", "--carry", "nope")
    assert done.exit_code == 0 and done.err.count("--carry") == 1
    assert "warning: --carry nope: no row has such a column" in done.err
    assert "--carry" not in cli("run", "in.jsonl", "-o", "b.jsonl", "--carry", "*").err


def test_ten_megabytes_in_one_answer(cli: Cli) -> None:
    write_rows("in.jsonl", [{"prompt": "x" * 10_000_000}, {"prompt": "y"}])
    assert cli("run", "in.jsonl", "-o", "out.jsonl").exit_code == 0
    assert [len(row["content"]) for row in read_rows("out.jsonl")] == [10_000_000, 1]
    assert cli("run", "in.jsonl", "-o", "out.parquet").exit_code == 0
    assert len(pq.read_table("out.parquet")["content"][0].as_py()) == 10_000_000


def test_lines_of_a_hundred_megabytes_are_refused_politely(cli: Cli) -> None:
    with Path("in.jsonl").open("wb") as file:
        for _ in range(2):
            file.write(b'{"prompt": "' + b"x" * 100_000_000 + b'"}\n{"prompt": "y"}\n')
    done = cli("run", "in.jsonl", "-o", "out.jsonl")
    assert done.exit_code == 3 and len(read_rows("out.jsonl")) == 2
    errors = read_rows("out.jsonl.errors.jsonl")
    assert [row["error"]["kind"] for row in errors] == ["line_too_long"] * 2
    assert "100,000,015 bytes, the limit is 67,108,864" in errors[0]["error"]["message"]
    assert Path("out.jsonl.errors.jsonl").stat().st_size < 10_000


def test_samples_carry_and_token_ids(cli: Cli) -> None:
    write_rows("in.jsonl", [{"prompt": "ab", "label": 4, "x": [1]}])
    cli("run", "in.jsonl", "-o", "out.jsonl", "--n", "2", "--carry", "label", "--keep-token-ids")
    [row] = read_rows("out.jsonl")
    assert [sample["content"] for sample in row["samples"]] == ["ab", "ab"]
    assert [sample["seed"] for sample in row["samples"]] == [0, 1]
    assert row["input"] == {"label": 4} and row["prompt_token_ids"] == [97, 98]
    assert row["sampling"] == {"temperature": 1.0, "top_p": 1.0, "n": 2}


@pytest.mark.parametrize("depth", [100, 300, 480, 700, 900, 960, 5_000])
def test_no_depth_of_nesting_ends_the_run(cli: Cli, depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    inner = b'{"prompt": "a", "x": ' + deep + b"}"
    outer = b'{"line": 1, "id": "e", "error": {}, "input": ' + inner + b"}"
    write_rows("in.jsonl", [inner, outer, {"prompt": "b"}])
    done = cli("run", "in.jsonl", "-o", "out.jsonl", "--carry", "*")
    assert done.exit_code in (0, 3)
    rows = read_report()["rows"]
    assert rows["input"] == rows["results"] + rows["errors"] == 3
    assert read_report()["errors"].keys() <= {"unwritable_result", "invalid_json"}


def test_numbers_that_overflow_are_null_in_carried_columns(cli: Cli) -> None:
    write_rows("in.jsonl", [b'{"prompt": "a", "x": [1e999, -1e999, 1.5]}'])
    assert cli("run", "in.jsonl", "-o", "out.jsonl", "--carry", "x").exit_code == 0
    assert read_rows("out.jsonl")[0]["input"] == {"x": [None, None, 1.5]}


def test_lone_surrogates_survive_as_escapes(cli: Cli) -> None:
    write_rows("in.jsonl", [b'{"prompt": "a\\ud800b", "id": "\\udfff"}', b'{"prompt": "\xc3\xa9"}'])
    assert cli("run", "in.jsonl", "-o", "out.jsonl").exit_code == 0
    first, second = Path("out.jsonl").read_bytes().splitlines()
    assert b"\\ud800" in first and json.loads(first)["id"] == "\udfff"
    assert "é".encode() in second
    assert cli("run", "in.jsonl", "-o", "out.parquet").exit_code == 0
    assert pq.read_table("out.parquet")["content"].to_pylist() == ["a?b", "é"]


def test_parquet_in_and_out(cli: Cli) -> None:
    write_rows(
        "in.jsonl", [{"prompt": f"p{i}", "x": {"deep": [i]}} for i in range(5_000)] + [b"bad"]
    )
    assert cli("run", "in.jsonl", "-o", "out.parquet", "--carry", "x").exit_code == 3
    table = pq.read_table("out.parquet")
    assert table["content"].to_pylist() == [f"p{i}" for i in range(5_000)]
    assert json.loads(table["input"][17].as_py()) == {"x": {"deep": [17]}}
    assert pq.ParquetFile("out.parquet").num_row_groups == 2
    again = cli("run", "out.parquet", "--map", "prompt=content", "--limit", "9")
    assert again.exit_code == 0
    assert pq.read_table("out.out.parquet")["id"].to_pylist() == [str(i) for i in range(1, 10)]


def test_parquet_output_has_one_schema_whatever_the_rows(cli: Cli) -> None:
    write_rows("a.jsonl", [])
    write_rows("b.jsonl", [{"prompt": "p", "reasoning": "r"}])
    cli("run", "a.jsonl", "-o", "a.parquet")
    cli("run", "b.jsonl", "-o", "b.parquet", "--n", "3")
    assert pq.read_schema("a.parquet") == pq.read_schema("b.parquet")
