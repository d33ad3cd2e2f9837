"""Files of a run, written and read in one line each."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any


def write_rows(path: str, rows: list[Any]) -> str:
    """JSON lines; bytes are written as they are."""
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    Path(path).write_bytes(b"\n".join(lines))
    return path


def read_rows(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_bytes().splitlines()]


def read_report(path: str = "out.jsonl") -> dict[str, Any]:
    """The report beside an output."""
    report: dict[str, Any] = json.loads(Path(path + ".report.json").read_bytes())
    return report


def prompts(count: int) -> list[Any]:
    return [{"prompt": f"p{index}"} for index in range(count)]


def assert_refused(done: Any, code: int, words: str) -> None:
    """One line that says so, and nothing else."""
    assert done.exit_code == code, done.err
    assert words in done.err and "Traceback" not in done.err, done.err
    assert done.err.count("\n") == 1 and done.err.startswith("deepinfer: "), done.err
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", done.err)
    assert not done.engines


def counts(output: str = "out.jsonl") -> tuple[int, int]:
    """Results and error rows, which the report says as well."""
    errors = Path(output + ".errors.jsonl")
    found = len(read_rows(output)), len(read_rows(str(errors))) if errors.exists() else 0
    rows = read_report(output)["rows"]
    assert (rows["results"], rows["errors"]) == found and rows["input"] == sum(found)
    return found
