"""``run.json`` of an unfinished run that is damaged, of another version, or gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_files import assert_refused, prompts, write_rows

Cli = Callable[..., Any]
MANIFEST = Path("out.jsonl.partial/run.json")


@pytest.fixture
def stopped(cli: Cli) -> Cli:
    """A run that failed after some of its rows."""
    write_rows("in.jsonl", [*prompts(3), {"crash": 1}])
    assert cli("run", "in.jsonl", "-o", "out.jsonl", "-q", window=1).exit_code == 1
    return cli


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "expecting value"),
        (None, "expecting property name"),  # its first half
        ("[1]", "it is not deepinfer.partial/1"),
        ('{"schema": "deepinfer.partial/99"}', "it is not deepinfer.partial/1"),
        ('{"schema": "deepinfer.partial/1", "settings": []}', "settings: expected an object"),
        ('{"schema": "deepinfer.partial/1", "settings": {}, "model_files": {"a": 5}}', "a: exp"),
        ("[" * 100_000, "recursion"),
        ("\udcff", "can't decode byte"),
    ],
)
def test_run_and_status_say_the_same(stopped: Cli, text: str | None, reason: str) -> None:
    whole = MANIFEST.read_text()
    damaged = whole[:2] if text is None else text
    MANIFEST.write_bytes(damaged.encode("utf-8", "surrogateescape"))
    refused = [
        stopped("status", "out.jsonl"),
        stopped("run", "in.jsonl", "-o", "out.jsonl"),
        stopped("run", "in.jsonl", "-o", "out.jsonl", "--force"),
        stopped("run", "in.jsonl", "-o", "out.jsonl", "--retry-failed"),
    ]
    for done in refused:
        assert_refused(done, 2, "move out.jsonl.partial away to start over")
        assert done.err == refused[0].err and reason in done.err.lower()
    MANIFEST.write_text(whole)  # nothing was touched
    assert stopped("status", "out.jsonl").exit_code == 0


def test_rows_without_it_are_not_thrown_away(stopped: Cli) -> None:
    MANIFEST.unlink()
    for done in (stopped("status", "out.jsonl"), stopped("run", "in.jsonl", "-o", "out.jsonl")):
        assert_refused(done, 2, "run.json is unusable (it is gone), so that the rows")


def test_what_a_finish_could_not_remove_is_no_run(stopped: Cli) -> None:
    """Nor is what a retry had taken over when it was killed."""
    write_rows("in.jsonl", prompts(3))
    assert stopped("run", "in.jsonl", "-o", "out.jsonl", "--force", "-q").exit_code == 0
    MANIFEST.parent.mkdir()
    for name in ("journal", "lock"):
        (MANIFEST.parent / name).write_text("")
    assert b"finished" in stopped("status", "out.jsonl").out
    assert_refused(stopped("run", "in.jsonl", "-o", "out.jsonl"), 2, "out.jsonl already exists")
