"""One definition of the report: JSON and back, its schema, the Prometheus file, what is counted."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_files import assert_refused

from deepinfer_cli.host import source_commit
from deepinfer_cli.output.fingerprint import model_fingerprint
from deepinfer_cli.output.journal import Record
from deepinfer_cli.report.pages.tables import cost as cost_table
from deepinfer_cli.report.parts import with_earlier
from deepinfer_cli.report.prometheus import prometheus_text
from deepinfer_cli.report.report import Cost, Report
from deepinfer_cli.report.timeline import Timeline
from deepinfer_cli.run.energy import EnergyMeter
from deepinfer_cli.typed_json import WrongForm, from_json, json_schema, to_json

_SCHEMA = Path(__file__).parents[2] / "docs" / "schemas" / "report.schema.json"


@pytest.fixture
def finished(cli: Callable[..., Any]) -> dict[str, Any]:
    """The report of three answered rows and one bad one."""
    Path("in.jsonl").write_text('{"prompt":"hello"}\n' * 3 + "bad\n")
    cli("run", "in.jsonl", "-o", "out.jsonl", "--cost-per-hour", "36")
    report: dict[str, Any] = json.loads(Path("out.jsonl.report.json").read_bytes())
    return report


def test_a_report_comes_back_as_it_was(finished: dict[str, Any]) -> None:
    assert json.loads(json.dumps(to_json(from_json(Report, finished)))) == finished


def test_the_schema_in_docs_is_the_definition_and_holds(
    finished: dict[str, Any], tmp_path: Path
) -> None:
    schema = json_schema(Report, "deepinfer.report/1")
    fresh = tmp_path / "report.schema.json"
    fresh.write_text(json.dumps(schema, indent=1) + "\n", encoding="utf-8")
    assert _SCHEMA.read_text(encoding="utf-8") == fresh.read_text(), f"copy {fresh} there"
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(finished, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(finished | {"rows": {"input": "many"}}, schema)


@pytest.mark.parametrize(
    "change, where",
    [
        ({"rows": None}, "rows"),
        ({"exit_code": "0"}, "exit_code"),
        ({"preemptions": True}, "preemptions"),
        ({"errors": {"too_long": 1.5}}, "errors.too_long"),
        ({"timeline": {"rows": [1, "x"]}}, r"timeline.rows\[1\]"),
        ({"preemptions": 10**400}, "preemptions"),
    ],
)
def test_wrong_reports_are_refused_with_the_place(
    finished: dict[str, Any], change: dict[str, Any], where: str
) -> None:
    with pytest.raises(WrongForm, match=f"^{where}: expected"):
        from_json(Report, finished | change)
    del finished["tokens"]
    with pytest.raises(WrongForm, match="^tokens: expected to be there"):
        from_json(Report, finished)


@pytest.mark.parametrize("number", [b"NaN", b"-Infinity", b"1e999", b"1" * 5_000])
def test_a_report_with_a_number_that_is_none_is_refused(cli: Any, number: bytes) -> None:
    Path("in.jsonl").write_text('{"prompt": "a"}\n')
    assert cli("run", "in.jsonl", "-o", "out.jsonl", "-q").exit_code == 0
    path = Path("out.jsonl.report.json")
    path.write_bytes(re.sub(rb'"answer_s": [\d.e-]+', b'"answer_s": ' + number, path.read_bytes()))
    for verb in ("report", "status"):
        assert_refused(cli(verb, "out.jsonl"), 2, "out.jsonl.report.json is not a")
    assert_refused(cli("merge", "-o", "all.jsonl", "out.jsonl"), 4, "is not a report of this")


def test_every_number_is_defined_and_every_definition_is_of_a_number(
    finished: dict[str, Any],
) -> None:
    def lookup(place: str) -> bool:
        value: Any = finished
        for name in place.split("."):
            value = value[name]
        return True

    assert len(finished["definitions"]) > 25
    assert all(lookup(place) for place in finished["definitions"])


def test_counts_times_and_cost(finished: dict[str, Any]) -> None:
    assert finished["rows"] == {"input": 4, "results": 3, "errors": 1, "resumed": 0}
    timeline, split, speed = (finished[name] for name in ("timeline", "time_s", "throughput"))
    assert sum(timeline["rows"]) == 4 and sum(timeline["errors"]) == 1
    assert sum(timeline["completion_tokens"]) == finished["tokens"]["completion_tokens"] == 15
    parts = sum(seconds for name, seconds in split.items() if name != "cpu")
    assert parts == pytest.approx(speed["answer_s"], abs=0.01)
    cost = finished["cost"]
    assert cost["total"] == pytest.approx((speed["load_s"] + speed["answer_s"]) / 100, abs=1e-4)
    assert cost["per_million_tokens"] == pytest.approx(cost["total"] / 15 * 1e6, abs=0.1)


def test_energy_is_told_per_answer_token(finished: dict[str, Any]) -> None:
    """In the file, the page and the Prometheus file; of parts, of their sum."""
    counted = Cost.of(num_tokens=15, energy_j=30.0, gpu_energy_j=600.0)
    assert (counted.energy_per_token_j, counted.gpu_energy_per_token_j) == (2, 40)
    assert counted.per_million_tokens is None
    nothing = Cost.of(num_tokens=0, energy_j=30.0, total=1.0)
    assert nothing.energy_per_token_j is None and nothing.per_million_tokens is None
    report = dataclasses.replace(from_json(Report, finished), cost=counted)
    rows = dict(cost_table(report).rows)
    assert rows["energy of the processor, per answer token"] == "2 J"
    assert rows["energy of the GPUs, per answer token"] == "40 J"
    assert re.search(r'_energy_per_token_joules\{.*of="gpus"\} 40', prometheus_text(report))
    unlike = dataclasses.replace(report.throughput, completion_tokens=45)
    earlier = dataclasses.replace(report, throughput=unlike)
    both = with_earlier(report, earlier).cost
    assert both.energy_j == 60 and both.energy_per_token_j == 1


def test_equal_inputs_have_equal_digests(cli: Callable[..., Any]) -> None:
    def digest_of(text: str) -> str:
        Path("in.jsonl").write_text(text)
        done = cli("run", "in.jsonl", "-o", "out.jsonl", "--force", "--json")
        found: str = json.loads(done.out)["input"]["digest"]
        return found

    first = digest_of('{"prompt":"a"}\n{"prompt":"b"}\n')
    assert first == digest_of('{"prompt":"a"}\n{"prompt":"b"}\n')
    assert first != digest_of('{"prompt":"b"}\n{"prompt":"a"}\n')


# Prometheus ------------------------------------------------------------------------------------

_SAMPLE = re.compile(r'(deepinfer_run_[a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)+)\} (\S+)')


def test_the_prometheus_file_follows_the_exposition_format(finished: dict[str, Any]) -> None:
    report = dataclasses.replace(from_json(Report, finished), output='odd "name"\\\n.jsonl')
    text = prometheus_text(report)
    assert text.endswith("\n")
    family, seen, families = "", set(), []
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split()[2]
            families.append(family)
        elif line.startswith("# TYPE "):
            assert line == f"# TYPE {family} gauge"
        else:
            match = _SAMPLE.fullmatch(line)
            assert match is not None and match[1] == family, line
            assert (match[1], match[2]) not in seen and match[2].startswith("output=")
            seen.add((match[1], match[2]))
            float(match[3])
    assert len(families) == len(set(families)) > 10
    assert not any(name.endswith("_total") for name in families)  # these are counters
    assert re.search(r'deepinfer_run_rows\{.*result="failed"\} 1$', text, re.M)


def test_runs_write_the_prometheus_file_however_they_end(cli: Callable[..., Any]) -> None:
    Path("in.jsonl").write_text('{"prompt":"hello"}\n' * 3 + '{"prompt":"x","crash":1}\n')
    run = ("run", "in.jsonl", "-o", "out.jsonl", "--prometheus", "run.prom")
    assert cli(*run).exit_code == 1
    assert 'status="failed"' in Path("run.prom").read_text()
    Path("in.jsonl").write_text('{"prompt":"hello"}\n' * 3)
    assert cli(*run, "--force").exit_code == 0
    assert 'status="finished"' in Path("run.prom").read_text()
    assert sorted(path.name for path in Path().glob("*prom*")) == ["run.prom"]


def test_a_prometheus_file_that_cannot_be_written_is_a_warning(cli: Callable[..., Any]) -> None:
    Path("in.jsonl").write_text('{"prompt":"hello"}\n')
    done = cli("run", "in.jsonl", "-o", "out.jsonl", "--prometheus", "no/such/place.prom")
    assert done.exit_code == 0 and Path("out.jsonl").exists()
    assert "warning: cannot write no/such/place.prom for Prometheus: no such file" in done.err


# Parts -----------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 50), min_size=1, max_size=300), st.booleans())
def test_timelines_are_bounded_and_lose_nothing(steps: list[float], is_error: bool) -> None:
    now = 0.0
    timeline = Timeline(clock=lambda: now)
    facts = {"tokens": {"prompt_tokens": 3, "completion_tokens": 2}}
    for step in steps:
        now += step
        timeline.add(Record(0, b"", is_error, facts, b""))
    report = timeline.report()
    assert sum(report.rows) == len(steps) and len(report.rows) <= 96
    assert sum(report.completion_tokens) == (0 if is_error else 2 * len(steps))
    assert sum(report.errors) == is_error * len(steps)
    assert (len(report.rows) - 1) * report.stretch_s <= now


def test_energy_is_counted_by_package_and_over_a_restart(tmp_path: Path) -> None:
    for name, joules in (("intel-rapl:0", 5), ("intel-rapl:0:0", 1), ("intel-rapl:1", 90)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{joules}000000\n")
        (tmp_path / name / "max_energy_range_uj").write_text("100000000\n")
    meter = EnergyMeter(tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("7000000")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("10000000")
    assert meter.joules() == 2 + 20
    assert EnergyMeter(tmp_path / "nothing").joules() is None


def test_fingerprints_tell_models_apart(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 1000)
    first = model_fingerprint(tmp_path)
    (tmp_path / "notes.md").write_text("not a part of the model")
    assert first == model_fingerprint(tmp_path) and first is not None and len(first) == 16
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 999 + b"\1")
    assert model_fingerprint(tmp_path) != first
    assert model_fingerprint(tmp_path / "missing") is None


def test_the_commit_is_found_in_every_form_of_head(tmp_path: Path) -> None:
    git = tmp_path / ".git"
    assert source_commit(tmp_path) is None
    (git / "refs/heads").mkdir(parents=True)
    (git / "HEAD").write_text("a" * 40 + "\n")
    assert source_commit(tmp_path) == "a" * 12
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "packed-refs").write_text("# pack\n" + "b" * 40 + " refs/heads/main\n")
    assert source_commit(tmp_path) == "b" * 12
    (git / "refs/heads/main").write_text("c" * 40 + "\n")
    assert source_commit(tmp_path) == "c" * 12
