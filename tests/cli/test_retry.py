"""``--retry-failed``: failed rows are answered again, all others stay as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from run_files import write_rows

from deepinfer_cli.output.fingerprint import model_fingerprint

Cli = Callable[..., Any]


def _write(rows: list[Any]) -> None:
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _rows(path: str = "out.jsonl") -> dict[str, Any]:
    return {r["id"]: r for r in map(json.loads, Path(path).read_bytes().splitlines())}


def _by_row(path: str) -> dict[int, Any]:
    """Results that say which row they are, by that."""
    if path.endswith(".parquet"):
        rows = pq.read_table(path).to_pylist()
    else:
        rows = [json.loads(line) for line in Path(path).read_bytes().splitlines()]
    return {row.pop("row"): row for row in rows if row.get("row") is not None}


def _report(path: str = "out.jsonl") -> dict[str, Any]:
    report: dict[str, Any] = json.loads(Path(path + ".report.json").read_bytes())
    return report


_GOOD = [{"prompt": f"p{index}", "x": index} for index in range(20)]


def _failing(*places: int) -> list[Any]:
    return [row | {"fail": "device"} if i in places else row for i, row in enumerate(_GOOD)]


class _Flaky:
    """What the fake engine calls a failure, mended or not: the rows stay the same."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, engine: type[Any]) -> None:
        self._patch, self._engine, self._answer = monkeypatch, engine, engine._answer

    def mend(self) -> None:
        def answer(engine: Any, number: int, fields: Any, sampling: Any) -> Any:
            fields = {name: value for name, value in fields.items() if name != "fail"}
            return self._answer(engine, number, fields, sampling)

        self._patch.setattr(self._engine, "_answer", answer)


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch, fake_engine: type[Any]) -> _Flaky:
    return _Flaky(monkeypatch, fake_engine)


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
@pytest.mark.parametrize("places", [(0,), (3, 4, 11), (19,), tuple(range(20))])
def test_only_failed_rows_of_a_finished_run_are_answered(
    cli: Cli, flaky: _Flaky, ending: str, places: tuple[int, ...]
) -> None:
    out = f"out{ending}"
    _write(_failing(*places))
    first = cli("run", "in.jsonl", "-o", out, "--n", "2", "--carry", "x")
    assert first.exit_code == 3
    flaky.mend()
    done = cli("run", "in.jsonl", "-o", out, "--n", "2", "--carry", "x", "--retry-failed")
    assert done.exit_code == 0, done.err
    assert sorted(done.engines[0].rows) == list(places)
    assert not Path(out + ".errors.jsonl").exists() and not Path(out + ".partial").exists()
    whole = cli("run", "in.jsonl", "-o", f"whole{ending}", "--n", "2", "--carry", "x")
    assert whole.exit_code == 0
    assert Path(out).read_bytes() == Path(f"whole{ending}").read_bytes()
    report, expected = _report(out), _report(f"whole{ending}")
    assert report["rows"] == expected["rows"] | {"resumed": 20 - len(places)}
    assert report["kinds"] == expected["kinds"]
    assert report["finish_reasons"] == expected["finish_reasons"]
    assert report["tokens"]["completion_tokens"] == expected["tokens"]["completion_tokens"]


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
@pytest.mark.parametrize("then, now", [("completion", "completion"), ("completion", "input"),
                                       ("input", "completion")])  # fmt: skip
@pytest.mark.parametrize("shard", [(), ("--shard", "2/2")])
def test_the_order_of_the_rows_does_not_matter(
    cli: Cli, flaky: _Flaky, ending: str, then: str, now: str, shard: tuple[str, ...]
) -> None:
    out, name = f"out{ending}", f"out.2-of-2{ending}" if shard else f"out{ending}"
    _write(_failing(3, 4, 11))
    run = ("run", "in.jsonl", "-o", out, *shard)
    assert cli(*run, "--order", then).exit_code == 3
    flaky.mend()
    done = cli(*run, "--order", now, "--retry-failed")
    assert done.exit_code == 0, done.err
    assert sorted(done.engines[0].rows) == ([3, 11] if shard else [3, 4, 11])
    assert cli(*run[:3], f"whole{ending}", *shard, "--order", now).exit_code == 0
    whole = name.replace("out", "whole")
    if now == "input":
        assert Path(name).read_bytes() == Path(whole).read_bytes()
    else:
        assert _by_row(name) == _by_row(whole) and len(_by_row(name)) == (10 if shard else 20)


@pytest.mark.parametrize(
    "edit, reason",
    [
        (lambda lines: [*lines, lines[0]], "occurs twice"),
        (lambda lines: [lines[0].replace(b'{"row"', b'{"rwo"'), *lines[1:]], "does not say which"),
        (lambda lines: [b'{"row": 999999999999999, "id": "x"}', *lines[1:]], "is not one of its"),
        (lambda lines: [line for line in lines if not line.startswith(b'{"row": 5,')], "row 5 is"),
    ],
)
def test_a_damaged_file_in_order_of_completion_is_refused(
    cli: Cli, edit: Callable[[list[bytes]], list[bytes]], reason: str
) -> None:
    _write(_failing(2, 7))
    run = ("run", "in.jsonl", "-o", "out.jsonl", "--order", "completion")
    cli(*run)
    path = Path("out.jsonl")
    path.write_bytes(b"\n".join(edit(path.read_bytes().splitlines())) + b"\n")
    before = _files()
    done = cli(*run, "--retry-failed")
    assert (done.exit_code, reason in done.err) == (4, True), done.err
    assert _files() == before


def test_rows_that_fail_again_stay_in_the_errors_file(cli: Cli) -> None:
    _write(_failing(2, 7))
    cli("run", "in.jsonl", "-o", "out.jsonl")
    errors = Path("out.jsonl.errors.jsonl").read_bytes()
    before = Path("out.jsonl").read_bytes()
    done = cli("run", "in.jsonl", "-o", "out.jsonl", "--retry-failed")
    assert done.exit_code == 3 and sorted(done.engines[0].rows) == [2, 7]
    assert Path("out.jsonl.errors.jsonl").read_bytes() == errors
    assert Path("out.jsonl").read_bytes() == before


def test_an_unfinished_run_is_retried_too(cli: Cli, flaky: _Flaky) -> None:
    _write([*_failing(1, 5), {"crash": 1}])
    assert cli("run", "in.jsonl", "-o", "out.jsonl", window=7).exit_code == 1
    _write([*_failing(1, 5), {"prompt": "z"}])
    flaky.mend()
    done = cli("run", "in.jsonl", "-o", "out.jsonl", "--retry-failed", window=7)
    assert done.exit_code == 0 and "failed rows to answer again: 2" in done.err
    assert {1, 5} < set(done.engines[0].rows)
    assert len(_rows()) == 21


def test_a_retry_that_is_broken_off_loses_no_result(cli: Cli, flaky: _Flaky) -> None:
    _write(_failing(2, 7, 9))
    cli("run", "in.jsonl", "-o", "out.jsonl")
    before = Path("out.jsonl").read_bytes()
    flaky.mend()
    stopped = cli("run", "in.jsonl", "-o", "out.jsonl", "--retry-failed", "--time-limit", "0")
    assert stopped.exit_code == 75
    assert Path("out.jsonl").read_bytes() == before
    assert cli("run", "in.jsonl", "-o", "out.jsonl").exit_code == 0
    assert len(_rows()) == 20


def test_nothing_to_retry(cli: Cli) -> None:
    _write(_GOOD)
    cli("run", "in.jsonl", "-o", "out.jsonl")
    before = Path("out.jsonl").read_bytes()
    done = cli("run", "in.jsonl", "-o", "out.jsonl", "--retry-failed")
    assert done.exit_code == 0 and "nothing to retry" in done.err and not done.engines
    assert Path("out.jsonl").read_bytes() == before and not Path("out.jsonl.partial").exists()
    fresh = cli("run", "in.jsonl", "-o", "new.jsonl", "--retry-failed")
    assert fresh.exit_code == 0 and len(_rows("new.jsonl")) == 20


def test_other_inputs_and_settings_are_refused(cli: Cli) -> None:
    _write(_failing(2, 7))
    cli("run", "in.jsonl", "-o", "out.jsonl")
    files = _files()

    def refused(code: int, reason: str, *more: str) -> None:
        done = cli("run", "in.jsonl", "-o", "out.jsonl", "--retry-failed", *more)
        assert (done.exit_code, reason in done.err) == (code, True), done.err
        assert _files() == files and not Path("out.jsonl.partial").exists()

    refused(2, "temperature was 1.0, now 0.5", "--temperature", "0.5")
    _write(_failing(2, 7)[:12])
    refused(4, "the input ends before")
    _write([row | {"id": f"i{index}"} for index, row in enumerate(_failing(2, 7))])
    refused(4, "row 0 is i0, and there 1")
    _write([row | {"x": "new"} for row in _failing(2, 7)])
    refused(4, "another content")
    _write(_failing(2, 7))
    done = cli("run", "in.jsonl", "-o", "-", "--retry-failed")
    assert done.exit_code == 2 and "--retry-failed" in done.err
    refused(2, "keep one", "--force")


def _files() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path().glob("out.jsonl*") if path.is_file()}


def test_a_shard_is_retried(cli: Cli, flaky: _Flaky) -> None:
    _write(_failing(2, 7, 8))
    cli("run", "in.jsonl", "-o", "out.jsonl", "--shard", "1/2")
    flaky.mend()
    shard = ("--shard", "1/2")
    done = cli("run", "in.jsonl", "-o", "out.jsonl", *shard, "--retry-failed")
    assert done.exit_code == 0 and sorted(done.engines[0].rows) == [2, 8]
    assert [row["content"] for row in _rows("out.1-of-2.jsonl").values()] == [
        f"p{index}" for index in range(0, 20, 2)
    ]


@pytest.mark.parametrize("output", ["out.jsonl", "out.parquet"])
def test_ids_that_parquet_cannot_hold(cli: Cli, output: str) -> None:
    rows = [{"prompt": "a", "fail": "device"}, {"id": "\ud800", "prompt": "b"}]
    write_rows("in.jsonl", rows)
    assert cli("run", "in.jsonl", "-o", output).exit_code == 3
    again = cli("run", "in.jsonl", "-o", output, "--retry-failed")
    assert again.exit_code == 3, again.err
    assert again.engines[0].rows == [0]


def test_an_int_stop_reason_survives_in_parquet(cli: Cli, flaky: _Flaky) -> None:
    _write(_failing(0))
    cli("run", "in.jsonl", "-o", "out.parquet", "--keep-token-ids", "--timing")
    flaky.mend()
    options = ("--keep-token-ids", "--timing", "--retry-failed")
    assert cli("run", "in.jsonl", "-o", "out.parquet", *options).exit_code == 0
    table = pq.read_table("out.parquet")
    assert table["prompt_token_ids"].to_pylist() == [list(f"p{i}".encode()) for i in range(20)]


def test_another_model_is_refused(cli: Cli, flaky: _Flaky) -> None:
    """Neither an unfinished run nor a finished one goes on with files that answered otherwise."""
    model = Path("model")
    model.mkdir()
    (model / "config.json").write_text("{}")
    _write([*_failing(2), {"crash": 1}])
    run = ("run", "in.jsonl", "-o", "out.jsonl", "--model", "model")
    assert cli(*run, window=7).exit_code == 1
    (model / "config.json").write_text("{ }")
    refused = cli(*run)
    assert refused.exit_code == 2 and not refused.engines
    assert "another model (config.json has changed); put the first model back" in refused.err
    (model / "config.json").write_text("{}")
    _write([*_failing(2), {"prompt": "z"}])
    assert cli(*run).exit_code == 3

    report = json.loads(Path("out.jsonl.report.json").read_bytes())
    report["model_fingerprint"] = model_fingerprint(model)  # the fake engine has no files
    Path("out.jsonl.report.json").write_text(json.dumps(report))
    (model / "new.safetensors").write_bytes(b"1")
    before = _files()
    refused = cli(*run, "--retry-failed")
    assert refused.exit_code == 2 and "another model (fingerprint " in refused.err
    assert _files() == before
    (model / "new.safetensors").unlink()
    flaky.mend()
    assert cli(*run, "--retry-failed").exit_code == 0


def test_a_retry_that_a_limit_cuts_says_so(cli: Cli) -> None:
    _write(_failing(2))
    cli("run", "in.jsonl", "-o", "out.jsonl")
    done = cli("run", "in.jsonl", "-o", "out.jsonl", "--retry-failed", "--limit", "3")
    assert done.exit_code == 4 and "it has a row 3, --limit 3 ends before" in done.err


def test_a_limit_throws_no_answers_away(cli: Cli) -> None:
    """Neither those of an unfinished run, nor the results that a retry has taken over."""
    _write([*_failing(2, 7), {"crash": 1}])
    run = ("run", "in.jsonl", "-o", "out.jsonl")
    assert cli(*run, window=10).exit_code == 1
    done = cli(*run, "--limit", "4")
    assert done.exit_code == 4 and not Path("out.jsonl").exists()
    assert "--limit 4 ends before 16 rows that were answered before" in done.err
    _write([*_failing(2, 7), {"prompt": "z"}])
    assert cli(*run).exit_code == 3
    before = _files()
    assert cli(*run, "--retry-failed", "--time-limit", "0").exit_code == 75
    assert cli(*run, "--limit", "4").exit_code == 4
    assert _files() == before
    assert cli(*run, "--limit", "4", "--force").exit_code == 3
    assert len(Path("out.jsonl").read_bytes().splitlines()) == 3


def test_a_form_whose_file_changed_is_refused(cli: Cli) -> None:
    """The flag is the same; what it says is not.  Shards held to two forms are no run either."""
    _write(_failing(2))
    form = ("--grammar", "form.gbnf")
    Path("form.gbnf").write_text('root ::= "a"')
    assert cli("run", "in.jsonl", "-o", "out.jsonl", *form).exit_code == 3
    shard = ("run", "in.jsonl", "-o", "s.jsonl", *form, "--shard")
    assert cli(*shard, "1/2").exit_code == 3
    Path("form.gbnf").write_text('root ::= "b"')
    before = _files()
    done = cli("run", "in.jsonl", "-o", "out.jsonl", *form, "--retry-failed")
    assert done.exit_code == 2 and "(constraint was " in done.err and not done.engines
    assert _files() == before
    assert cli(*shard, "2/2").exit_code == 0
    merged = cli("merge", "-o", "s.jsonl")
    assert merged.exit_code == 4 and "different constraints" in merged.err
    Path("form.gbnf").write_text('root ::= "a"')
    assert cli("run", "in.jsonl", "-o", "out.jsonl", *form, "--retry-failed").exit_code == 3


@pytest.mark.parametrize("place", [0, 9, 19])
def test_lost_error_rows_are_told(cli: Cli, place: int) -> None:
    _write(_failing(place))
    run = ("run", "in.jsonl", "-o", "out.jsonl")
    assert cli(*run).exit_code == 3
    kept = Path("out.jsonl").read_bytes()
    Path("out.jsonl.errors.jsonl").unlink()
    done = cli(*run, "--retry-failed")
    assert done.exit_code == 4 and "out.jsonl.errors.jsonl is missing" in done.err
    Path("out.jsonl").write_bytes(kept[: kept.index(b"\n") + 1])
    Path("out.jsonl.errors.jsonl").write_bytes(b"")
    done = cli(*run, "--retry-failed")
    assert done.exit_code == 4 and not done.engines, done.err
    assert not Path("out.jsonl.partial").exists()
