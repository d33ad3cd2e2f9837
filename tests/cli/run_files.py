"""Files of a run, written and read in one line each."""

from __future__ import annotations

import json
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
