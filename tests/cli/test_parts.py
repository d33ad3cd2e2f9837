"""Runs in parts: the report has what all of them measured, and counts that add up."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_files import prompts, read_report, read_rows, write_rows

from deepinfer.engine.types import EngineStats, RequestTiming
from deepinfer_cli.output.partial import PartialFolder
from deepinfer_cli.plan.estimate import from_report
from deepinfer_cli.report.file import read_report as stored_report
from deepinfer_cli.report.parts import earlier_report, with_earlier
from deepinfer_cli.report.report import encode_report
from deepinfer_cli.report.summary import Summary
from deepinfer_cli.report.timeline import TimelineReport, joined
from deepinfer_cli.run import verb

Cli = Callable[..., Any]
_RUN = ("run", "in.jsonl", "-o", "out.jsonl")
_OF_RESULTS = ("tokens", "lengths", "latency_ms", "answer_tokens_per_s", "preemptions", "kinds")
_OF_RESULTS += ("finish_reasons", "device", "device_name")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, fake_engine: type[Any]) -> None:
    """The fake engine tells of each row what a real one would, and rows with ``fail`` fail."""
    answer = fake_engine._answer

    def answered(engine: Any, number: int, fields: Any, sampling: Any) -> Any:
        output = answer(engine, number, fields, sampling)
        timing = RequestTiming(arrived_s=0.0, scheduled_s=0.1, first_token_s=0.3, finished_s=1.0)
        samples = tuple(
            dataclasses.replace(
                sample, timing=timing, num_preemptions=1, num_draft_tokens=5, num_accepted_tokens=3
            )
            for sample in output.samples
        )
        return dataclasses.replace(output, samples=samples)

    def stats(engine: Any) -> EngineStats:
        num = len(engine.rows)
        return EngineStats(
            num_steps=2 * num, num_decode_steps=num, num_decode_rows=num, num_decode_tokens=num,
            num_prefill_tokens=num, num_draft_blocks=num, num_draft_tokens=5 * num,
            num_accepted_tokens=3 * num, accepted_per_position=(2 * num, num),
            verified_per_position=(3 * num, 2 * num), decode_s=0.001 * num, prefill_s=0.002 * num,
            decode_batches=(1.0,), num_blocks=9, peak_blocks=num,
        )  # fmt: skip

    monkeypatch.setattr(fake_engine, "_answer", answered)
    monkeypatch.setattr(fake_engine, "stats", stats)


def _of_rows(report: dict[str, Any]) -> dict[str, Any]:
    """What a report tells of rows and steps, but not of the clock."""
    engine, speed = report["engine"], report["throughput"]
    return {
        "engine": {name: value for name, value in engine.items() if name != "peak_blocks"},
        "measured": [speed[n] for n in ("results", "prompt_tokens", "completion_tokens")],
        "finished": sum(report["timeline"]["completion_tokens"]),
        "phases": [report["time_s"][name] for name in ("prefill", "decode")],
        "speculation": report["speculation"],
        **{name: report[name] for name in _OF_RESULTS},
    }


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("options", [(), ("--n", "3"), ("--timing", "--keep-token-ids")])
def test_a_retry_that_answers_nothing_changes_no_measurement(cli: Cli, options: Any) -> None:
    write_rows("in.jsonl", [*prompts(5), {"prompt": "x", "fail": "device"}, b"no row"])
    assert cli(*_RUN, *options).exit_code == 3
    first = read_report()
    assert first["engine"]["num_steps"] == 12 and first["throughput"]["results"] == 5
    for _ in range(2):
        done = cli(*_RUN, *options, "--retry-failed")
        assert done.exit_code == 3 and [len(engine.rows) for engine in done.engines] == [1]
    again = read_report()
    assert again["rows"] == first["rows"] | {"resumed": 5}
    then, now = _of_rows(first), _of_rows(again)
    for name in _OF_RESULTS:
        assert now[name] == then[name], name
    assert now["measured"] == then["measured"] and now["engine"]["num_steps"] == 12 + 2 * 2
    assert again["throughput"]["answer_s"] >= first["throughput"]["answer_s"]
    assert again["throughput"]["num_loads"] == 3


@pytest.mark.usefixtures("measured")
def test_a_retry_without_an_engine_keeps_all_that_was_measured(cli: Cli) -> None:
    """Rows that no engine sees: what the finished run measured stays, but for the clock."""
    write_rows("in.jsonl", [*prompts(5), b"no row", [1]])
    assert cli(*_RUN).exit_code == 3
    first, results = read_report(), Path("out.jsonl").read_bytes()
    done = cli(*_RUN, "--retry-failed")
    assert done.exit_code == 3 and not done.engines
    again = read_report()
    assert Path("out.jsonl").read_bytes() == results
    assert _of_rows(again) == _of_rows(first)
    assert again["engine"] == first["engine"] and again["started"] == first["started"]
    assert 0 <= again["throughput"]["answer_s"] - first["throughput"]["answer_s"] < 5
    measured = from_report(stored_report("out.jsonl").report)
    assert measured.load_s == first["throughput"]["load_s"] and measured.times.decode_step_s[0] > 0
    Path("old").mkdir()
    Path("old/out.jsonl.report.json").write_text(json.dumps(first))
    compared = json.loads(cli("report", "old/out.jsonl.report.json", "out.jsonl", "--json").out)
    ratios = {metric["name"]: metric["ratio"] for metric in compared["metrics"]}
    assert ratios["tokens per answer and step"] == ratios["ms to the last token, median"] == 1


@pytest.mark.usefixtures("measured")
def test_a_retry_adds_to_what_was_measured(cli: Cli, monkeypatch: Any, fake_engine: Any) -> None:
    write_rows("in.jsonl", [{"prompt": f"p{i}", "fail": "x"} if i < 3 else {"prompt": f"p{i}"}
                            for i in range(9)])  # fmt: skip
    assert cli(*_RUN, "--n", "2", "--timing").exit_code == 3
    answer = fake_engine._answer

    def mended(engine: Any, number: int, fields: Any, sampling: Any) -> Any:
        return answer(engine, number, {"prompt": fields["prompt"], "id": fields["id"]}, sampling)

    monkeypatch.setattr(fake_engine, "_answer", mended)
    # Broken off once in between: the parts of a retry are added up as well.
    assert cli(*_RUN, "--n", "2", "--timing", "--retry-failed", "--time-limit", "0").exit_code == 75
    assert cli(*_RUN, "--n", "2", "--timing", window=2).exit_code == 0
    parts = read_report()
    assert cli("run", "in.jsonl", "-o", "whole.jsonl", "--n", "2", "--timing").exit_code == 0
    whole = read_report("whole.jsonl")
    same = _of_rows(parts) | {"engine": None, "phases": None, "speculation": None}
    expected = _of_rows(whole) | {"engine": None, "phases": None, "speculation": None}
    assert same == expected
    assert parts["speculation"]["drafted_tokens"] == whole["speculation"]["drafted_tokens"]
    assert parts["engine"]["num_steps"] == 2 * (9 + 3)  # the failed rows took theirs too


@pytest.mark.usefixtures("measured")
def test_parts_of_a_run_add_up(cli: Cli) -> None:
    """Each part answers some rows and then meets one that ends the program."""
    rows = prompts(30)
    known = resumed = 0
    for part in range(1, 4):
        write_rows("in.jsonl", [*rows[: 8 * part], {"crash": 1}, *rows[8 * part + 1 :]])
        assert cli(*_RUN, window=4).exit_code == 1
        report = json.loads(Path("out.jsonl.partial/report.json").read_bytes())
        counted = report["rows"]
        done = counted["results"] + counted["errors"]
        assert resumed <= counted["resumed"] <= known <= done <= counted["input"] <= 30
        assert report["throughput"]["results"] == counted["results"]
        assert report["throughput"]["num_loads"] == part
        known, resumed = done, counted["resumed"]
    write_rows("in.jsonl", rows)
    assert cli(*_RUN).exit_code == 0
    parts = read_report()
    assert cli("run", "in.jsonl", "-o", "whole.jsonl").exit_code == 0
    whole = read_report("whole.jsonl")
    assert parts["throughput"]["results"] == parts["rows"]["results"] == 30
    assert sum(parts["timeline"]["rows"]) == 30 and parts["tokens"] == whole["tokens"]
    speed = parts["throughput"]
    assert speed["rows_per_s"] == pytest.approx(30 / speed["answer_s"], rel=0.2)


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("left", [b"", b"{", b"[]", b'{"schema": "x"}', None])
def test_what_a_killed_part_measured_is_not_made_up(cli: Cli, left: bytes | None) -> None:
    write_rows("in.jsonl", [*prompts(8), {"crash": 1}])
    assert cli(*_RUN, window=4).exit_code == 1
    words = Path("out.jsonl.partial/report.json")
    words.unlink() if left is None else words.write_bytes(left)
    write_rows("in.jsonl", prompts(10))
    assert cli(*_RUN, window=4).exit_code == 0
    report = read_report()
    assert report["rows"]["results"] == 10
    assert report["throughput"]["results"] == 2 == report["engine"]["num_decode_steps"]
    assert report["throughput"]["num_loads"] == 1


@pytest.mark.usefixtures("measured")
def test_a_killed_part_tells_what_it_had_measured_shortly_before(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if it had been killed at that moment: what it kept until then is all that is there."""
    kept: list[bytes] = []
    keep = PartialFolder.keep_report

    def keeping(folder: PartialFolder, report: bytes, *, is_last: bool = False) -> None:
        keep(folder, report, is_last=is_last)
        if not is_last:
            kept.append(folder.earlier_report.read_bytes())

    monkeypatch.setattr(PartialFolder, "keep_report", keeping)
    monkeypatch.setattr("deepinfer_cli.run.job._KEEP_SECONDS", 0.0)
    write_rows("in.jsonl", prompts(9))
    assert cli(*_RUN, window=3).exit_code == 0
    told = [json.loads(report) for report in kept]
    assert [report["throughput"]["results"] for report in told] == [*range(1, 10), 9]
    assert told[-1]["engine"] == read_report()["engine"]
    assert [report["rows"]["results"] for report in told] == [*range(1, 10), 9]

    # Killed after five rows of six were kept: nothing more is made up, nothing else is lost.
    write_rows("in.jsonl", [*prompts(6), {"crash": 1}])
    run = ("run", "in.jsonl", "-o", "killed.jsonl")
    assert cli(*run, window=3).exit_code == 1
    Path("killed.jsonl.partial/report.json").unlink()
    Path("killed.jsonl.partial/earlier.json").write_bytes(kept[4])
    write_rows("in.jsonl", prompts(9))
    assert cli(*run).exit_code == 0
    report = read_report("killed.jsonl")
    assert report["rows"] == {"input": 9, "results": 9, "errors": 0, "resumed": 6}
    assert report["throughput"]["results"] == 5 + 3 == report["engine"]["num_decode_steps"]
    assert Path("killed.jsonl").read_bytes() == Path("out.jsonl").read_bytes()


@pytest.mark.usefixtures("measured")
def test_a_kill_inside_the_finish_loses_no_measurement(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next part has nothing to answer; what the killed one left there is a copy of here."""
    publish = verb.publish

    def copying(folder: Path, *arguments: Any, **options: Any) -> None:
        shutil.copytree(folder, "again.jsonl.partial", dirs_exist_ok=True)
        publish(folder, *arguments, **options)

    monkeypatch.setattr(verb, "publish", copying)
    write_rows("in.jsonl", prompts(9))
    assert cli(*_RUN).exit_code == 0
    monkeypatch.setattr(verb, "publish", publish)
    done = cli("run", "in.jsonl", "-o", "again.jsonl")
    assert done.exit_code == 0 and not done.engines
    assert _of_rows(read_report("again.jsonl")) == _of_rows(read_report())
    assert read_report("again.jsonl")["engine"] == read_report()["engine"]
    assert Path("again.jsonl").read_bytes() == Path("out.jsonl").read_bytes()


@pytest.mark.usefixtures("measured")
def test_no_damage_to_what_was_measured_stops_a_run(cli: Cli) -> None:
    """Each number replaced by odd ones, and bytes flipped: a report is made all the same."""
    write_rows("in.jsonl", [*prompts(5), b"bad"])
    assert cli(*_RUN, "--timing").exit_code == 3
    part, data = stored_report("out.jsonl").report, Path("out.jsonl.report.json").read_bytes()
    numbers = list(re.finditer(rb"(?<=[ \[])-?\d+(\.\d+)?(?=[,\n\]])", data))
    damaged = [
        data[: found.start()] + odd + data[found.end() :]
        for found in random.Random(1).sample(numbers, 30)
        for odd in (b"0", b"-1", b"1e999", b"NaN", b"1" * 400, b"0.5", b'"x"', b"null")
    ]
    chance = random.Random(0)
    for _ in range(100):
        place = chance.randrange(len(data))
        flipped = bytes([data[place] ^ 1 << chance.randrange(8)])
        damaged.append(data[:place] + flipped + data[place + 1 :])
    num_used = 0
    for text in damaged:
        Path("earlier.json").write_bytes(text)
        earlier = earlier_report(Path("earlier.json"))
        num_used += earlier is not None
        encode_report(with_earlier(earlier, part))  # strict JSON: no NaN
        if earlier is not None:
            total = Summary()
            total.num_retold = earlier.rows.results
            total.add_untold(earlier)
            total.answer_lengths.report()
    assert len(numbers) > 100 and 0 < num_used < len(damaged)


@pytest.mark.parametrize("stop", range(0, 12, 3))
def test_rows_read_so_far_are_never_fewer_than_the_finished(cli: Cli, stop: int) -> None:
    """A second part that ends before it comes to where the first was."""
    write_rows("in.jsonl", [*prompts(8), {"crash": 1}])
    assert cli(*_RUN, window=4).exit_code == 1
    done = cli(*_RUN, "--time-limit", "0", "--limit", str(stop))
    report = json.loads(Path("out.jsonl.partial/report.json").read_bytes())
    rows = report["rows"]
    assert done.exit_code == 75, done.err
    assert (rows["results"], rows["errors"], rows["resumed"]) == (8, 0, 8)
    assert rows["input"] == 8
    assert "8 done so far, 8 of them by an earlier part of this run" in done.err


def test_rows_that_changed_are_counted_once(cli: Cli) -> None:
    write_rows("in.jsonl", [*prompts(8), {"crash": 1}])
    assert cli(*_RUN, window=4).exit_code == 1
    write_rows("in.jsonl", [{"prompt": "new"} for _ in range(8)] + [{"crash": 1}])
    assert cli(*_RUN, window=4).exit_code == 1
    rows = json.loads(Path("out.jsonl.partial/report.json").read_bytes())["rows"]
    assert rows == {"input": 9, "results": 8, "errors": 0, "resumed": 0}
    assert len(read_rows("in.jsonl")) == 9


_COUNT = st.integers(0, 10**6)
_WIDTHS = st.sampled_from([0.25, 0.5, 1.0, 4.0, 64.0])


@st.composite
def _timelines(draw: st.DrawFn) -> TimelineReport:
    num = draw(st.integers(0, 96))
    columns = {
        name: tuple(draw(st.lists(_COUNT, min_size=num, max_size=num)))
        for name in ("rows", "errors", "prompt_tokens", "completion_tokens")
    }
    return TimelineReport(stretch_s=draw(_WIDTHS), **columns)


@given(_timelines(), _timelines())
def test_joined_timelines_keep_their_sums_and_their_bound(
    a: TimelineReport, b: TimelineReport
) -> None:
    both = joined(a, b)
    for name in ("rows", "errors", "prompt_tokens", "completion_tokens"):
        assert sum(getattr(both, name)) == sum(getattr(a, name)) + sum(getattr(b, name))
        assert len(getattr(both, name)) <= 96
    seconds = len(both.rows) * both.stretch_s
    least = len(a.rows) * a.stretch_s + len(b.rows) * b.stretch_s
    assert least <= seconds <= least + 3 * both.stretch_s


def test_every_counter_of_engines_that_ran_one_after_the_other(cli: Cli) -> None:
    """Each field by its kind; a new one that fits none of them must be thought about."""
    write_rows("in.jsonl", prompts(2))
    assert cli(*_RUN).exit_code == 0
    report = stored_report("out.jsonl").report
    latest = {"most_running", "num_blocks", "num_graphs", "expert_imbalance_after"}
    highest = {"peak_blocks", "expert_imbalance_before"}
    stretches = {"decode_batches", "verify_lengths"}
    numbers = count(1)
    values: list[dict[str, Any]] = [{}, {}]
    for field in dataclasses.fields(EngineStats):
        for made in values:
            is_many = isinstance(field.default, tuple)
            made[field.name] = (next(numbers), next(numbers)) if is_many else next(numbers)
    first, second = (EngineStats(**made) for made in values)
    a, b = (dataclasses.replace(report, engine=stats) for stats in (first, second))
    whole = with_earlier(a, b).engine
    assert whole is not None
    for field in dataclasses.fields(EngineStats):
        one, two, both = (getattr(s, field.name) for s in (first, second, whole))
        if field.name in latest:
            assert both == two
        elif field.name in highest:
            assert both == max(one, two)
        elif field.name == "calibration_error":
            assert one < both < two
        elif field.name in stretches:
            assert one[0] <= both[0] < both[1] <= two[1] and len(both) == 2
        elif isinstance(one, tuple):
            assert both == tuple(map(sum, zip(one, two, strict=True)))
        else:
            assert both == one + two, field.name
    nothing = dataclasses.replace(report, engine=None)
    assert with_earlier(a, nothing).engine == first
    with_none = dataclasses.replace(
        nothing, throughput=dataclasses.replace(report.throughput, results=0)
    )
    assert with_earlier(with_none, b).engine == second
    assert with_earlier(nothing, b).engine is None  # half of it would look like the whole
