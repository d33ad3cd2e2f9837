"""``deepinfer run`` with a fake engine: every row ends once, and every exit code has its reason."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepinfer_cli.run.verb import default_output

Cli = Callable[..., Any]


def _write(path: str, rows: list[Any]) -> str:
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    Path(path).write_bytes(b"\n".join(lines))
    return path


def _lines(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_bytes().splitlines()]


def _report(path: str = "out.jsonl") -> dict[str, Any]:
    report: dict[str, Any] = json.loads(Path(path + ".report.json").read_bytes())
    return report


def _prompts(count: int) -> list[Any]:
    return [{"prompt": f"p{index}"} for index in range(count)]


def test_results_come_in_input_order_with_ids(cli: Cli) -> None:
    _write(
        "in.jsonl", [{"prompt": "a"}, {"prompt": "b", "id": 7}, {"prompt": "c", "custom_id": "x"}]
    )
    done = cli("run", "in.jsonl", "-o", "out.jsonl")
    assert done.exit_code == 0
    rows = _lines("out.jsonl")
    assert [row["content"] for row in rows] == ["a", "b", "c"]
    assert [row["id"] for row in rows] == ["1", "7", "x"]
    assert [row["seed"] for row in rows] == [0, 10, 20]
    assert done.engines[0].is_closed and done.engines[0].rows == [2, 1, 0]
    assert sorted(path.name for path in Path().iterdir()) == [
        "in.jsonl", "out.jsonl", "out.jsonl.report.json",
    ]  # fmt: skip
    assert _report()["rows"] == {"input": 3, "results": 3, "errors": 0, "resumed": 0}


def test_completion_order(cli: Cli) -> None:
    _write("in.jsonl", _prompts(4))
    assert cli("run", "in.jsonl", "-o", "out.jsonl", "--order", "completion").exit_code == 0
    rows = _lines("out.jsonl")
    assert [(row["id"], row["row"]) for row in rows] == [("4", 3), ("3", 2), ("2", 1), ("1", 0)]
    printed = cli("run", "in.jsonl", "-o", "-", "--order", "completion")
    assert printed.out == Path("out.jsonl").read_bytes()


def test_bad_rows_become_error_rows_and_the_error_file_can_be_fed_back(cli: Cli) -> None:
    bad = [b"{cut", b'{"prompt": "\xff"}', b"[1]", {"prompt": "x", "fail": "too_long"}, {"no": 1}]
    _write("in.jsonl", [{"prompt": "a"}, *bad, {"prompt": "b"}])
    done = cli("run", "in.jsonl", "-o", "out.jsonl")
    assert done.exit_code == 3
    assert [row["content"] for row in _lines("out.jsonl")] == ["a", "b"]
    errors = _lines("out.jsonl.errors.jsonl")
    assert [row["line"] for row in errors] == [2, 3, 4, 5, 6]
    kinds = ["invalid_json", "invalid_utf8", "invalid_type", "too_long", "missing_field"]
    assert [row["error"]["kind"] for row in errors] == kinds
    assert errors[3]["input"] == {"prompt": "x", "fail": "too_long"}
    again = cli("run", "out.jsonl.errors.jsonl", "-o", "again.jsonl")
    assert again.exit_code == 3
    retried = _lines("again.jsonl.errors.jsonl")
    assert [row["error"]["kind"] for row in retried] == kinds
    assert [row["id"] for row in retried[3:]] == ["5", "6"]


def test_a_repaired_error_file_is_answered_under_the_first_ids(cli: Cli) -> None:
    _write("in.jsonl", [{"prompt": "a"}, {"prompt": "b", "fail": "device"}])
    cli("run", "in.jsonl", "-o", "out.jsonl")
    text = Path("out.jsonl.errors.jsonl").read_text().replace('"fail"', '"was"')
    Path("retry.jsonl").write_text(text)
    assert cli("run", "retry.jsonl", "-o", "retried.jsonl").exit_code == 0
    assert [(row["id"], row["content"]) for row in _lines("retried.jsonl")] == [("2", "b")]


def test_two_runs_give_the_same_bytes(cli: Cli) -> None:
    _write("in.jsonl", _prompts(30))
    for name, window in (("one.jsonl", 1), ("two.jsonl", 7)):
        cli("run", "in.jsonl", "-o", name, window=window)
    assert Path("one.jsonl").read_bytes() == Path("two.jsonl").read_bytes()


def test_the_same_command_again_continues_and_repeats_nothing(cli: Cli) -> None:
    _write("in.jsonl", [*_prompts(20), {"crash": 1}, *_prompts(5)])
    failed = cli("run", "in.jsonl", "-o", "out.jsonl", window=8)
    assert failed.exit_code == 1
    assert "RuntimeError: the device is gone" in failed.err and "19 finished rows" in failed.err
    assert "Traceback" not in failed.err
    assert not Path("out.jsonl").exists()
    Path("in.jsonl").write_text(Path("in.jsonl").read_text().replace('"crash"', '"prompt"'))
    done = cli("run", "in.jsonl", "-o", "out.jsonl", window=8)
    assert done.exit_code == 3  # the repaired row has a number for a prompt
    assert sorted(done.engines[0].rows) == [*range(16, 21), 24, 25]
    assert _report()["rows"] == {"input": 26, "results": 25, "errors": 1, "resumed": 19}
    whole = cli("run", "in.jsonl", "-o", "whole.jsonl", window=8)
    assert whole.exit_code == 3
    assert Path("out.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()


def test_only_rows_that_changed_since_are_answered_again(cli: Cli) -> None:
    _write("in.jsonl", [*_prompts(16), {"crash": 1}])
    cli("run", "in.jsonl", "-o", "out.jsonl", window=8)
    _write("in.jsonl", [{"prompt": "new"}, *_prompts(16)[1:]])
    done = cli("run", "in.jsonl", "-o", "out.jsonl", window=8)
    assert done.exit_code == 0 and done.engines[0].rows == [0]
    assert "warning: rows of the input that changed after they were answered: 1, " in done.err
    assert [row["content"] for row in _lines("out.jsonl")][:2] == ["new", "p1"]
    assert _report()["rows"] == {"input": 16, "results": 16, "errors": 0, "resumed": 15}


def test_other_settings_do_not_continue(cli: Cli) -> None:
    _write("in.jsonl", [*_prompts(8), {"crash": 1}])
    cli("run", "in.jsonl", "-o", "out.jsonl")
    other = cli("run", "in.jsonl", "-o", "out.jsonl", "--temperature", "0.5")
    assert other.exit_code == 2 and "temperature was 1.0, now 0.5" in other.err
    _write("in.jsonl", _prompts(9))
    faster = cli("run", "in.jsonl", "-o", "out.jsonl", "--max-num-seqs", "4")
    assert faster.exit_code == 0 and faster.engines[0].rows == [8]


def test_a_failure_before_any_answer_leaves_nothing_behind(cli: Cli) -> None:
    _write("in.jsonl", [b"nope", {"crash": 1}])
    assert cli("run", "in.jsonl", "-o", "out.jsonl").exit_code == 1
    assert [path.name for path in Path().iterdir()] == ["in.jsonl"]


def test_existing_output_is_refused_unless_forced(cli: Cli) -> None:
    _write("in.jsonl", [b"bad", {"prompt": "a"}])
    assert cli("run", "in.jsonl", "-o", "out.jsonl").exit_code == 3
    refused = cli("run", "in.jsonl", "-o", "out.jsonl")
    assert refused.exit_code == 2 and "--force" in refused.err and not refused.engines
    _write("in.jsonl", [{"prompt": "b"}])
    assert cli("run", "in.jsonl", "-o", "out.jsonl", "--force").exit_code == 0
    assert [row["content"] for row in _lines("out.jsonl")] == ["b"]
    assert not Path("out.jsonl.errors.jsonl").exists()


def test_the_input_is_never_overwritten(cli: Cli) -> None:
    _write("in.jsonl", _prompts(1))
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
        (["run", "in.jsonl", "-o", "-", "--json"], 2, "both want stdout"),
        (["run", "in.jsonl", "--temperature", "hot"], 2, "--temperature=hot: expected a number"),
        (["run", "in.jsonl", "--temperature", "200"], 2, "expected 0 to 100"),
        (["run", "in.jsonl", "--temprature", "1"], 2, "--temperature"),
        (["run", "in.jsonl", "--thinking", "hard"], 2, "one of off, low, default, max"),
        (["run"], 2, "missing argument 'INPUT'; see deepinfer run --help"),
        (["config"], 2, "missing command"),
        (["run", "in.jsonl", "-o", "/proc/x.jsonl"], 2, "cannot write /proc/x.jsonl"),
        (["run", "in.jsonl", "-o", ""], 2, "ends in .jsonl"),
        (["run", "in.jsonl", "-o", "x" * 250 + ".jsonl"], 2, "file name too long"),
        (["walk"], 2, "walk"),
        (["run", "."], 4, "not a saved dataset"),
        (["run", "in.jsonl", "--top-p", "7"], 2, "--top-p=7.0: expected"),
        (["run", "in.jsonl", "--model", "nowhere"], 2, "model folder nowhere does not exist"),
        (["run", "in.jsonl", "--model", "/proc"], 2, "/proc holds no model"),
        (["run", "in.jsonl", "--model", "a/b"], 2, "download it with `hf download a/b`"),
    ],
)
def test_wrong_use_is_one_line_and_an_exit_code(
    cli: Cli, arguments: list[str], code: int, message: str
) -> None:
    _write("in.jsonl", _prompts(1))
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
    assert len(_lines("out.jsonl")) == 3_000


def test_too_many_errors_end_the_run(cli: Cli) -> None:
    _write("in.jsonl", [*_prompts(8), b"x", b"y", b"z", *_prompts(8)])
    done = cli("run", "in.jsonl", "-o", "out.jsonl", "--max-errors", "2")
    assert done.exit_code == 4 and "line 9" in done.err
    assert cli("run", "in.jsonl", "-o", "out.jsonl", "--max-errors", "3").exit_code == 3
    _write("in.jsonl", [*_prompts(300), *[b"x"] * 20])
    assert cli("run", "in.jsonl", "-o", "p.jsonl", "--max-errors", "5%").exit_code == 4
    assert cli("run", "in.jsonl", "-o", "p.jsonl", "--max-errors", "7%").exit_code == 3


def test_limit_and_time_limit(cli: Cli) -> None:
    _write("in.jsonl", _prompts(50))
    assert cli("run", "in.jsonl", "-o", "a.jsonl", "--limit", "5").exit_code == 0
    assert len(_lines("a.jsonl")) == 5
    early = cli("run", "in.jsonl", "-o", "b.jsonl", "--time-limit", "0.3", seconds=0.03)
    assert early.exit_code == 75 and "--time-limit" in early.err
    assert cli("run", "in.jsonl", "-o", "b.jsonl").exit_code == 0
    assert len(_lines("b.jsonl")) == 50 and _report("b.jsonl")["rows"]["resumed"] > 0


def test_a_column_to_carry_that_no_row_has_is_named(cli: Cli) -> None:
    _write("in.jsonl", [{"prompt": "a", "x": 1}, {"prompt": "b", "y": 1}])
    done = cli("run", "in.jsonl", "-o", "a.jsonl", "--carry", "y", "--carry", "nope")
    assert done.exit_code == 0 and done.err.count("--carry") == 1
    assert "warning: --carry nope: no row has such a column" in done.err
    assert "--carry" not in cli("run", "in.jsonl", "-o", "b.jsonl", "--carry", "*").err


def test_ten_megabytes_in_one_answer(cli: Cli) -> None:
    _write("in.jsonl", [{"prompt": "x" * 10_000_000}, {"prompt": "y"}])
    assert cli("run", "in.jsonl", "-o", "out.jsonl").exit_code == 0
    assert [len(row["content"]) for row in _lines("out.jsonl")] == [10_000_000, 1]
    assert cli("run", "in.jsonl", "-o", "out.parquet").exit_code == 0
    assert len(pq.read_table("out.parquet")["content"][0].as_py()) == 10_000_000


def test_lines_of_a_hundred_megabytes_are_refused_politely(cli: Cli) -> None:
    with Path("in.jsonl").open("wb") as file:
        for _ in range(2):
            file.write(b'{"prompt": "' + b"x" * 100_000_000 + b'"}\n{"prompt": "y"}\n')
    done = cli("run", "in.jsonl", "-o", "out.jsonl")
    assert done.exit_code == 3 and len(_lines("out.jsonl")) == 2
    errors = _lines("out.jsonl.errors.jsonl")
    assert [row["error"]["kind"] for row in errors] == ["line_too_long"] * 2
    assert "100,000,015 bytes, the limit is 67,108,864" in errors[0]["error"]["message"]
    assert Path("out.jsonl.errors.jsonl").stat().st_size < 10_000


def test_json_prints_the_report_and_nothing_else_on_stdout(cli: Cli) -> None:
    _write("in.jsonl", _prompts(3))
    done = cli("run", "in.jsonl", "-o", "out.jsonl", "--json", "--quiet", "--seed", "5")
    assert done.err == ""
    report = json.loads(done.out)
    assert report == _report()
    assert report["schema"] == "deepinfer.report/1" and report["model"] == "embedded"
    assert report["device"] == "cpu"
    assert report["settings"]["seed"] == {"value": 5, "origin": "--seed"}
    assert report["lengths"]["answer"]["num"] == 3 and report["engine"]["num_steps"] == 3


def test_errors_do_not_count_as_throughput(cli: Cli) -> None:
    _write("in.jsonl", [b"x"] * 5)
    done = cli("run", "in.jsonl", "-o", "out.jsonl")
    assert done.exit_code == 3 and not done.engines
    report = _report()
    assert report["throughput"]["rows_per_s"] == 0 and report["tokens"]["prompt_tokens"] == 0
    assert Path("out.jsonl").read_bytes() == b""


def test_the_summary_says_which_model_answered(cli: Cli) -> None:
    _write("in.jsonl", _prompts(1))
    assert "small built-in model" in cli("run", "in.jsonl", "-o", "a.jsonl").err
    Path("big").mkdir()
    Path("big/config.json").write_text("{}")
    done = cli("run", "in.jsonl", "-o", "b.jsonl", "--model", "big")
    assert "loading big" in done.err and "built-in" not in done.err


def test_an_empty_input_gives_an_empty_output(cli: Cli) -> None:
    Path("in.jsonl").write_bytes(b"\n\n")
    assert cli("run", "in.jsonl", "-o", "out.jsonl").exit_code == 0
    assert Path("out.jsonl").read_bytes() == b""


def test_samples_carry_and_token_ids(cli: Cli) -> None:
    _write("in.jsonl", [{"prompt": "ab", "label": 4, "x": [1]}])
    cli("run", "in.jsonl", "-o", "out.jsonl", "--n", "2", "--carry", "label", "--keep-token-ids")
    [row] = _lines("out.jsonl")
    assert [sample["content"] for sample in row["samples"]] == ["ab", "ab"]
    assert [sample["seed"] for sample in row["samples"]] == [0, 1]
    assert row["input"] == {"label": 4} and row["prompt_token_ids"] == [97, 98]
    assert row["sampling"] == {"temperature": 1.0, "top_p": 1.0, "n": 2}


@pytest.mark.parametrize("depth", [100, 300, 480, 700, 900, 960, 5_000])
def test_no_depth_of_nesting_ends_the_run(cli: Cli, depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    inner = b'{"prompt": "a", "x": ' + deep + b"}"
    outer = b'{"line": 1, "id": "e", "error": {}, "input": ' + inner + b"}"
    _write("in.jsonl", [inner, outer, {"prompt": "b"}])
    done = cli("run", "in.jsonl", "-o", "out.jsonl", "--carry", "*")
    assert done.exit_code in (0, 3)
    rows = _report()["rows"]
    assert rows["input"] == rows["results"] + rows["errors"] == 3
    assert _report()["errors"].keys() <= {"unwritable_result", "invalid_json"}


def test_numbers_that_overflow_are_null_in_carried_columns(cli: Cli) -> None:
    _write("in.jsonl", [b'{"prompt": "a", "x": [1e999, -1e999, 1.5]}'])
    assert cli("run", "in.jsonl", "-o", "out.jsonl", "--carry", "x").exit_code == 0
    assert _lines("out.jsonl")[0]["input"] == {"x": [None, None, 1.5]}


def test_an_early_end_on_stdout_still_prints_what_is_finished(cli: Cli) -> None:
    _write("in.jsonl", [{"crash": 1}, *_prompts(3)])
    done = cli("run", "in.jsonl", "-o", "-", window=4)
    assert done.exit_code == 1
    assert [row["id"] for row in done.rows] == ["2", "3", "4"]


def test_lone_surrogates_survive_as_escapes(cli: Cli) -> None:
    _write("in.jsonl", [b'{"prompt": "a\\ud800b", "id": "\\udfff"}', b'{"prompt": "\xc3\xa9"}'])
    assert cli("run", "in.jsonl", "-o", "out.jsonl").exit_code == 0
    first, second = Path("out.jsonl").read_bytes().splitlines()
    assert b"\\ud800" in first and json.loads(first)["id"] == "\udfff"
    assert "é".encode() in second
    assert cli("run", "in.jsonl", "-o", "out.parquet").exit_code == 0
    assert pq.read_table("out.parquet")["content"].to_pylist() == ["a?b", "é"]


def test_parquet_in_and_out(cli: Cli) -> None:
    _write("in.jsonl", [{"prompt": f"p{i}", "x": {"deep": [i]}} for i in range(5_000)] + [b"bad"])
    assert cli("run", "in.jsonl", "-o", "out.parquet", "--carry", "x").exit_code == 3
    table = pq.read_table("out.parquet")
    assert table["content"].to_pylist() == [f"p{i}" for i in range(5_000)]
    assert json.loads(table["input"][17].as_py()) == {"x": {"deep": [17]}}
    assert pq.ParquetFile("out.parquet").num_row_groups == 2
    again = cli("run", "out.parquet", "--map", "prompt=content", "--limit", "9")
    assert again.exit_code == 0
    assert pq.read_table("out.out.parquet")["id"].to_pylist() == [str(i) for i in range(1, 10)]


def test_parquet_output_has_one_schema_whatever_the_rows(cli: Cli) -> None:
    _write("a.jsonl", [])
    _write("b.jsonl", [{"prompt": "p", "reasoning": "r"}])
    cli("run", "a.jsonl", "-o", "a.parquet")
    cli("run", "b.jsonl", "-o", "b.parquet", "--n", "3")
    assert pq.read_schema("a.parquet") == pq.read_schema("b.parquet")


@pytest.mark.parametrize(
    "source, output",
    [("p.jsonl", "p.out.jsonl"), ("d/p.jsonl.gz", "d/p.out.jsonl"), ("p.csv", "p.out.jsonl"),
     ("p.parquet", "p.out.parquet"), ("folder", "folder.out.jsonl"), ("-", "-")],
)  # fmt: skip
def test_default_output(source: str, output: str) -> None:
    assert default_output(source) == output


def test_rows_between_reader_and_engine_are_bounded(cli: Cli) -> None:
    _write("in.jsonl", _prompts(500))
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
    _write("in.jsonl", [b"first", *rows])
    done = cli("run", "in.jsonl", "-o", "out.jsonl", "--force", window=window)
    assert done.exit_code == 3
    lines = Path("in.jsonl").read_bytes().split(b"\n")
    count = sum(bool(line.removesuffix(b"\r").strip()) for line in lines)
    results, errors = _lines("out.jsonl"), _lines("out.jsonl.errors.jsonl")
    assert len(results) + len(errors) == count
    assert _report()["rows"]["input"] == count
    assert len({row["line"] for row in errors}) == len(errors)
