"""Runs that are refused, stopped or end badly: an exit code, one line why, nothing lost."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_files import prompts, read_report, read_rows, write_rows

Cli = Callable[..., Any]


def test_a_failure_before_any_answer_leaves_nothing_behind(cli: Cli) -> None:
    write_rows("in.jsonl", [b"nope", {"crash": 1}])
    assert cli("run", "in.jsonl", "-o", "out.jsonl").exit_code == 1
    assert [path.name for path in Path().iterdir()] == ["in.jsonl"]


def test_existing_output_is_refused_unless_forced(cli: Cli) -> None:
    write_rows("in.jsonl", [b"bad", {"prompt": "a"}])
    assert cli("run", "in.jsonl", "-o", "out.jsonl").exit_code == 3
    refused = cli("run", "in.jsonl", "-o", "out.jsonl")
    assert refused.exit_code == 2 and "--force" in refused.err and not refused.engines
    write_rows("in.jsonl", [{"prompt": "b"}])
    assert cli("run", "in.jsonl", "-o", "out.jsonl", "--force").exit_code == 0
    assert [row["content"] for row in read_rows("out.jsonl")] == ["b"]
    assert not Path("out.jsonl.errors.jsonl").exists()


def test_the_input_is_never_overwritten(cli: Cli) -> None:
    write_rows("in.jsonl", prompts(1))
    Path("link.jsonl").symlink_to("in.jsonl")
    Path("hard.jsonl.errors.jsonl").hardlink_to("in.jsonl")
    before = Path("in.jsonl").read_bytes()
    for output in ("in.jsonl", "link.jsonl", "hard.jsonl"):
        done = cli("run", "in.jsonl", "-o", output, "--force")
        assert done.exit_code == 2 and "input" in done.err
    assert Path("in.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["run", "none.jsonl"], 4, "cannot read none.jsonl: no such file"),
        (["run", "in.jsonl", "-o", "out.txt"], 2, "ends in .jsonl"),
        (["run", "in.jsonl", "-o", "no/out.jsonl"], 2, "there is no folder no"),
        (["run", "in.jsonl", "-o", "-", "--json"], 2, "both use stdout"),
        (["run", "in.jsonl", "--temperature", "hot"], 2, "--temperature=hot: expected a number"),
        (["run", "in.jsonl", "--temperature", "200"], 2, "expected 0 to 100"),
        (["run", "in.jsonl", "--temprature", "1"], 2, "--temperature"),
        (["run", "in.jsonl", "--thinking", "hard"], 2, "one of off, low, default, max"),
        (["run"], 2, "missing argument 'INPUT'; see deepinfer run --help"),
        (["config"], 2, "missing command"),
        (["run", "in.jsonl", "-o", "/proc/x.jsonl"], 2, "cannot write /proc/x.jsonl"),
        (["run", "in.jsonl", "-o", ""], 2, "the value after -o is empty"),
        (["run", "in.jsonl", "-o", "x" * 250 + ".jsonl"], 2, "file name too long"),
        (["run", "in.jsonl", "--max-row-bytes", "9999999TiB"], 2, "=9999999TiB: expected a size"),
        (["run", ""], 2, "an argument is empty"),
        (["walk"], 2, "walk"),
        (["run", "."], 4, "not a saved dataset"),
        (["run", "in.jsonl", "--top-p", "7"], 2, "--top-p=7.0: expected"),
        (["run", "in.jsonl", "--model", "nowhere"], 2, "model folder nowhere does not exist"),
        (["run", "in.jsonl", "--model", "/proc"], 2, "/proc is not a model"),
        (["run", "in.jsonl", "--model", "a/b"], 2, "download it with `hf download a/b`"),
    ],
)
def test_wrong_use_is_one_line_and_an_exit_code(
    cli: Cli, arguments: list[str], code: int, message: str
) -> None:
    write_rows("in.jsonl", prompts(1))
    done = cli(*arguments)
    assert done.exit_code == code
    assert message in done.err and done.out == b""
    assert "Traceback" not in done.err and not done.engines
    assert done.err.count("\n") == 1 and done.err.startswith("deepinfer: ")
    assert [path.name for path in Path().iterdir()] == ["in.jsonl"]


def test_a_cut_input_keeps_its_answers_and_says_so(cli: Cli) -> None:
    lines = b"".join(b'{"prompt":"%d"}\n' % (index * 7919) for index in range(3_000))
    Path("in.jsonl.gz").write_bytes(gzip.compress(lines)[:-2_000])
    done = cli("run", "in.jsonl.gz", "-o", "out.jsonl")
    assert done.exit_code == 4
    assert "the rest cannot be read" in done.err and "finished rows are kept" in done.err
    assert not Path("out.jsonl").exists()
    stopped = json.loads(Path("out.jsonl.partial/report.json").read_bytes())
    assert stopped["status"] == "failed" and stopped["rows"]["results"] == len(done.engines[0].rows)
    Path("in.jsonl.gz").write_bytes(gzip.compress(lines))
    again = cli("run", "in.jsonl.gz", "-o", "out.jsonl")
    assert again.exit_code == 0
    assert len(again.engines[0].rows) + len(done.engines[0].rows) <= 3_001
    assert len(read_rows("out.jsonl")) == 3_000


def test_too_many_errors_end_the_run(cli: Cli) -> None:
    write_rows("in.jsonl", [*prompts(8), b"x", b"y", b"z", *prompts(8)])
    done = cli("run", "in.jsonl", "-o", "out.jsonl", "--max-errors", "2")
    assert done.exit_code == 4 and "line 9" in done.err
    assert cli("run", "in.jsonl", "-o", "out.jsonl", "--max-errors", "3").exit_code == 3
    write_rows("in.jsonl", [*prompts(300), *[b"x"] * 20])
    assert cli("run", "in.jsonl", "-o", "p.jsonl", "--max-errors", "5%").exit_code == 4
    assert cli("run", "in.jsonl", "-o", "p.jsonl", "--max-errors", "7%").exit_code == 3


@pytest.mark.parametrize("share, code", [("0%", 4), ("16%", 4), ("17%", 3), ("100%", 3)])
def test_a_share_of_errors_counts_at_the_end_of_a_small_file(
    cli: Cli, share: str, code: int
) -> None:
    """Not before: the first row may be the only bad one."""
    write_rows("in.jsonl", [b"x", *prompts(5)])
    done = cli("run", "in.jsonl", "-o", "out.jsonl", "--max-errors", share)
    assert done.exit_code == code and len(done.engines[0].rows) == 5
    if code == 4:
        assert f"1 of 6 rows failed, more than --max-errors={float(share[:-1]):.1f}%" in done.err
        assert "6 finished rows are kept in out.jsonl.partial\n" in done.err
        assert cli("run", "in.jsonl", "-o", "out.jsonl", "--max-errors", "1").exit_code == 3


def test_limit_and_time_limit(cli: Cli) -> None:
    write_rows("in.jsonl", prompts(50))
    assert cli("run", "in.jsonl", "-o", "a.jsonl", "--limit", "5").exit_code == 0
    assert len(read_rows("a.jsonl")) == 5
    early = cli("run", "in.jsonl", "-o", "b.jsonl", "--time-limit", "0.3", seconds=0.03)
    assert early.exit_code == 75 and "--time-limit" in early.err
    assert cli("run", "in.jsonl", "-o", "b.jsonl").exit_code == 0
    assert len(read_rows("b.jsonl")) == 50 and read_report("b.jsonl")["rows"]["resumed"] > 0


def test_an_early_end_on_stdout_still_prints_what_is_finished(cli: Cli) -> None:
    write_rows("in.jsonl", [{"crash": 1}, *prompts(3)])
    done = cli("run", "in.jsonl", "-o", "-", window=4)
    assert done.exit_code == 1
    assert [row["id"] for row in done.rows] == ["2", "3", "4"]
