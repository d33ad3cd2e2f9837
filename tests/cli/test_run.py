"""``deepinfer run`` with a fake engine: every row ends once, and nothing is done twice."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from run_files import prompts, read_report, read_rows, write_rows

from deepinfer_cli.output.paths import default_output
from deepinfer_cli.report.file import read_report as report_of_run
from deepinfer_cli.report.summary_table import summary_lines

Cli = Callable[..., Any]
_SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"


def test_results_come_in_input_order_with_ids(cli: Cli) -> None:
    write_rows(
        "in.jsonl", [{"prompt": "a"}, {"prompt": "b", "id": 7}, {"prompt": "c", "custom_id": "x"}]
    )
    done = cli("run", "in.jsonl", "-o", "out.jsonl")
    assert done.exit_code == 0
    rows = read_rows("out.jsonl")
    assert [row["content"] for row in rows] == ["a", "b", "c"]
    assert [row["id"] for row in rows] == ["1", "7", "x"]
    assert [row["seed"] for row in rows] == [0, 10, 20]
    assert done.engines[0].is_closed and done.engines[0].rows == [2, 1, 0]
    assert sorted(path.name for path in Path().iterdir()) == [
        "in.jsonl", "out.jsonl", "out.jsonl.report.json",
    ]  # fmt: skip
    assert read_report()["rows"] == {"input": 3, "results": 3, "errors": 0, "resumed": 0}


def test_completion_order(cli: Cli) -> None:
    write_rows("in.jsonl", prompts(4))
    assert cli("run", "in.jsonl", "-o", "out.jsonl", "--order", "completion").exit_code == 0
    rows = read_rows("out.jsonl")
    assert [(row["id"], row["row"]) for row in rows] == [("4", 3), ("3", 2), ("2", 1), ("1", 0)]
    schema = json.loads((_SCHEMAS / "result.schema.json").read_bytes())
    assert all(Draft202012Validator(schema).is_valid(row) for row in rows)
    printed = cli("run", "in.jsonl", "-o", "-", "--order", "completion")
    assert printed.out == Path("out.jsonl").read_bytes()


def test_bad_rows_become_error_rows_and_the_error_file_can_be_fed_back(cli: Cli) -> None:
    bad = [b"{cut", b'{"prompt": "\xff"}', b"[1]", {"prompt": "x", "fail": "too_long"}, {"no": 1}]
    write_rows("in.jsonl", [{"prompt": "a"}, *bad, {"prompt": "b"}])
    done = cli("run", "in.jsonl", "-o", "out.jsonl")
    assert done.exit_code == 3
    assert [row["content"] for row in read_rows("out.jsonl")] == ["a", "b"]
    errors = read_rows("out.jsonl.errors.jsonl")
    assert [row["line"] for row in errors] == [2, 3, 4, 5, 6]
    kinds = ["invalid_json", "invalid_utf8", "invalid_type", "too_long", "missing_field"]
    assert [row["error"]["kind"] for row in errors] == kinds
    assert errors[3]["input"] == {"prompt": "x", "fail": "too_long"}
    again = cli("run", "out.jsonl.errors.jsonl", "-o", "again.jsonl")
    assert again.exit_code == 3
    retried = read_rows("again.jsonl.errors.jsonl")
    assert [row["error"]["kind"] for row in retried] == kinds
    assert [row["id"] for row in retried[3:]] == ["5", "6"]


def test_a_repaired_error_file_is_answered_under_the_first_ids(cli: Cli) -> None:
    write_rows("in.jsonl", [{"prompt": "a"}, {"prompt": "b", "fail": "device"}])
    cli("run", "in.jsonl", "-o", "out.jsonl")
    text = Path("out.jsonl.errors.jsonl").read_text().replace('"fail"', '"was"')
    Path("retry.jsonl").write_text(text)
    assert cli("run", "retry.jsonl", "-o", "retried.jsonl").exit_code == 0
    assert [(row["id"], row["content"]) for row in read_rows("retried.jsonl")] == [("2", "b")]


def test_two_runs_give_the_same_bytes(cli: Cli) -> None:
    write_rows("in.jsonl", prompts(30))
    for name, window in (("one.jsonl", 1), ("two.jsonl", 7)):
        cli("run", "in.jsonl", "-o", name, window=window)
    assert Path("one.jsonl").read_bytes() == Path("two.jsonl").read_bytes()


def test_the_same_command_again_continues_and_repeats_nothing(cli: Cli) -> None:
    write_rows("in.jsonl", [*prompts(20), {"crash": 1}, *prompts(5)])
    failed = cli("run", "in.jsonl", "-o", "out.jsonl", window=8)
    assert failed.exit_code == 1
    assert "RuntimeError: the device is gone" in failed.err and "19 finished rows" in failed.err
    assert "Traceback" not in failed.err
    assert not Path("out.jsonl").exists()
    Path("in.jsonl").write_text(Path("in.jsonl").read_text().replace('"crash"', '"prompt"'))
    done = cli("run", "in.jsonl", "-o", "out.jsonl", window=8)
    assert done.exit_code == 3  # the repaired row has a number for a prompt
    assert sorted(done.engines[0].rows) == [*range(16, 21), 24, 25]
    assert read_report()["rows"] == {"input": 26, "results": 25, "errors": 1, "resumed": 19}
    whole = cli("run", "in.jsonl", "-o", "whole.jsonl", window=8)
    assert whole.exit_code == 3
    assert Path("out.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()


def test_only_rows_that_changed_since_are_answered_again(cli: Cli) -> None:
    write_rows("in.jsonl", [*prompts(16), {"crash": 1}])
    cli("run", "in.jsonl", "-o", "out.jsonl", window=8)
    write_rows("in.jsonl", [{"prompt": "new"}, *prompts(16)[1:]])
    done = cli("run", "in.jsonl", "-o", "out.jsonl", window=8)
    assert done.exit_code == 0 and done.engines[0].rows == [0]
    assert "warning: rows of the input that changed after they were answered: 1, " in done.err
    assert [row["content"] for row in read_rows("out.jsonl")][:2] == ["new", "p1"]
    assert read_report()["rows"] == {"input": 16, "results": 16, "errors": 0, "resumed": 15}


def test_other_settings_do_not_continue(cli: Cli) -> None:
    write_rows("in.jsonl", [*prompts(8), {"crash": 1}])
    cli("run", "in.jsonl", "-o", "out.jsonl")
    other = cli("run", "in.jsonl", "-o", "out.jsonl", "--temperature", "0.5")
    assert other.exit_code == 2 and "temperature was 1.0, now 0.5" in other.err
    write_rows("in.jsonl", prompts(9))
    faster = cli("run", "in.jsonl", "-o", "out.jsonl", "--max-num-seqs", "4")
    assert faster.exit_code == 0 and faster.engines[0].rows == [8]


def test_json_prints_the_report_and_nothing_else_on_stdout(cli: Cli) -> None:
    write_rows("in.jsonl", prompts(3))
    done = cli("run", "in.jsonl", "-o", "out.jsonl", "--json", "--quiet", "--seed", "5")
    assert done.err == ""
    report = json.loads(done.out)
    assert report == read_report()
    assert report["schema"] == "deepinfer.report/1" and report["model"] == "embedded"
    assert report["device"] == "cpu"
    assert report["settings"]["seed"] == {"value": 5, "origin": "--seed"}
    assert report["lengths"]["answer"]["num"] == 3 and report["engine"]["num_steps"] == 3


def test_errors_do_not_count_as_throughput(cli: Cli) -> None:
    write_rows("in.jsonl", [b"x"] * 5)
    done = cli("run", "in.jsonl", "-o", "out.jsonl")
    assert done.exit_code == 3 and not done.engines
    report = read_report()
    assert report["throughput"]["rows_per_s"] == 0 and report["tokens"]["prompt_tokens"] == 0
    assert Path("out.jsonl").read_bytes() == b""


def test_what_is_wrong_is_said_once_for_each_kind(cli: Cli) -> None:
    write_rows("in.jsonl", [b"{", b"5", *prompts(1), b"{", b"6"])
    err = cli("run", "in.jsonl", "-o", "out.jsonl").err
    found = re.findall(r"warning: (\w+), first in line (\d): ", err)
    assert found == [("invalid_json", "1"), ("invalid_type", "2")]
    assert "not a number" in err
    assert "first in line" not in cli("run", "in.jsonl", "-o", "b.jsonl", "-q").err


def test_the_summary_says_which_model_answered(cli: Cli) -> None:
    write_rows("in.jsonl", prompts(1))
    assert "embedded model" in cli("run", "in.jsonl", "-o", "a.jsonl").err
    Path("big").mkdir()
    Path("big/config.json").write_text("{}")
    done = cli("run", "in.jsonl", "-o", "b.jsonl", "--model", "big")
    assert "loading big" in done.err and "built-in" not in done.err


def test_the_summary_tells_answers_from_rows(cli: Cli) -> None:
    write_rows("in.jsonl", prompts(2))
    assert "results 2 stop 2 " in " ".join(cli("run", "in.jsonl", "-o", "out.jsonl").err.split())
    report = report_of_run("out.jsonl").report
    of_three = dataclasses.replace(report, finish_reasons={"stop": 2, "length": 1})
    assert dict(summary_lines(of_three))["results"] == "2 with 3 answers  stop 2, length 1"


def test_an_empty_input_gives_an_empty_output(cli: Cli) -> None:
    Path("in.jsonl").write_bytes(b"\n\n")
    assert cli("run", "in.jsonl", "-o", "out.jsonl").exit_code == 0
    assert Path("out.jsonl").read_bytes() == b""


@pytest.mark.parametrize(
    "source, output",
    [("p.jsonl", "p.out.jsonl"), ("d/p.jsonl.gz", "d/p.out.jsonl"), ("p.csv", "p.out.jsonl"),
     ("p.parquet", "p.out.parquet"), ("folder", "folder.out.jsonl"), ("-", "-"),
     ("/dev/stdin", "-"), ("/dev/fd/63", "-"), ("/proc/self/fd/0", "-"),
     ("/dev/shm/p.jsonl", "/dev/shm/p.out.jsonl")],
)  # fmt: skip
def test_default_output(source: str, output: str) -> None:
    assert default_output(source) == output


def test_rows_between_reader_and_engine_are_bounded(cli: Cli) -> None:
    write_rows("in.jsonl", prompts(500))
    done = cli("run", "in.jsonl", "-o", "out.jsonl", window=8)
    assert done.engines[0].max_in_flight == 8


_HOSTILE = st.one_of(
    st.binary(max_size=30).map(lambda raw: raw.replace(b"\n", b" ")),
    st.fixed_dictionaries(
        {"prompt": st.text(max_size=8) | st.none() | st.integers()},
        optional={
            "id": st.text(max_size=4) | st.integers() | st.none() | st.lists(st.integers()),
            "custom_id": st.text(max_size=4),
            "fail": st.sampled_from(["too_long", "unsupported"]),
            "error": st.just({"kind": "x"}), "line": st.just(3), "input": st.text(max_size=4),
            "input_base64": st.text(max_size=4), "input_text": st.text(max_size=4),
        },
    ),
)  # fmt: skip


@given(rows=st.lists(_HOSTILE, max_size=40), window=st.integers(1, 5))
@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_the_rows_the_counts_add_up(cli: Cli, rows: list[Any], window: int) -> None:
    write_rows("in.jsonl", [b"first", *rows])
    done = cli("run", "in.jsonl", "-o", "out.jsonl", "--force", window=window)
    assert done.exit_code == 3
    lines = Path("in.jsonl").read_bytes().split(b"\n")
    count = sum(bool(line.removesuffix(b"\r").strip()) for line in lines)
    results, errors = read_rows("out.jsonl"), read_rows("out.jsonl.errors.jsonl")
    assert len(results) + len(errors) == count
    assert read_report()["rows"]["input"] == count
    assert len({row["line"] for row in errors}) == len(errors)
