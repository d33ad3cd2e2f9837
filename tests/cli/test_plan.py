"""``deepinfer plan`` against what ``deepinfer run`` then does, with the embedded model."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deepinfer.engine.scheduling.answer_lengths import AnswerLengths
from deepinfer_cli.main import main
from deepinfer_cli.plan.estimate import _fitting, _spread
from deepinfer_cli.plan.plan import Plan
from deepinfer_cli.plan.table import plan_lines, print_plan
from deepinfer_cli.typed_json import from_json, to_json

_PREFIX = "Once upon a time there was a small dog who liked the sea very much indeed. " * 12
_ROWS = [
    {"prompt": "Say hello.", "max_tokens": 3, "ignore_eos": True},
    {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "ignore_eos": True},
    {"prompt_token_ids": [5, 6, 7], "max_tokens": 4, "n": 2, "ignore_eos": True},
    {"prompt": 5},
    {"prompt": "x", "temperature": -1},
    {"prompt": "x", "regex": "("},
    {"prompt": "word " * 20_000},
    {"nothing": 1},
    {"prompt": _PREFIX + "Who?", "raw": True, "max_tokens": 2, "ignore_eos": True},
    {"prompt": _PREFIX + "Where?", "raw": True, "max_tokens": 2, "ignore_eos": True},
]


@pytest.fixture
def real(in_tmp: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Any]:
    """The program with the real engine, in this process: exit code and stdout."""

    def call(*arguments: str) -> tuple[int, bytes, str]:
        capfdbinary.readouterr()
        code = main(list(arguments))
        captured = capfdbinary.readouterr()
        return code, captured.out, captured.err.decode()

    return call


def _write(rows: list[dict[str, Any]], *others: str) -> None:
    lines = [json.dumps(row) for row in rows] + list(others)
    Path("in.jsonl").write_text("\n".join(lines) + "\n")


def test_the_plan_is_what_the_run_does(real: Callable[..., Any]) -> None:
    _write(_ROWS, "bad", '{"prompt": "cut')
    code, out, _ = real("plan", "in.jsonl", "--json", "--calibrate", "0.2s")
    plan = json.loads(out)
    assert code == 3
    code, out, _ = real("run", "in.jsonl", "-o", "out.jsonl", "--json", "-q")
    report = json.loads(out)
    assert code == 3
    assert plan["errors"] == report["errors"] and plan["kinds"] == report["kinds"]
    assert (plan["rows"], plan["failing"]) == (12, report["rows"]["errors"])
    assert plan["input"] == report["input"]
    assert plan["memory"] == report["memory"]
    assert plan["prompt_lengths"] == report["lengths"]["prompt"]
    assert plan["prompt_tokens"] == report["tokens"]["prompt_tokens"]
    assert plan["estimate"]["answer_lengths"] == report["lengths"]["answer"]
    assert plan["shared_tokens"] == report["engine"]["num_cached_tokens"] > 0
    lines = Path("out.jsonl.errors.jsonl").read_text().splitlines()
    errors = [json.loads(line) for line in lines]
    for example in plan["examples"]:
        first = next(row for row in errors if row["error"]["kind"] == example["kind"])
        assert (example["line"], example["message"]) == (first["line"], first["error"]["message"])


def test_words_fit_the_terminal_and_say_what_json_says(
    real: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(_ROWS)
    _, out, _ = real("plan", "in.jsonl", "--json", "--calibrate", "0.2s")
    plan = from_json(Plan, json.loads(out))
    assert to_json(plan) == json.loads(out)
    for columns in (40, 80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        with Path("words").open("w", encoding="utf-8") as file:
            print_plan(plan, file)
        text = Path("words").read_text()
        assert max(map(len, text.splitlines())) <= columns
        words = " ".join(text.split())
        assert "will fail" in words and "unknown_kind 1, first in line 8" in words
        assert re.search(r"steps about \d+: \d+ of prefill, \d+ of decode", words)
        assert re.search(r"measured by [1-5] of 5 rows, run here for [\d.]+ m?s", words)
    assert plan.estimate is not None
    for num in (0, 1):  # lengths that are all a guess have no range
        estimate = dataclasses.replace(plan.estimate, num_lengths=num)
        told = dict(plan_lines(dataclasses.replace(plan, estimate=estimate)))
        assert ("lengths of 1 answer;" in told.get("range", "")) == ("range" in told) == (num == 1)


def test_without_calibration_nothing_is_loaded(
    real: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepinfer.rehearsal.load_model", lambda *a, **k: pytest.fail("loaded"))
    _write(_ROWS[:2])
    code, out, err = real("plan", "in.jsonl", "--json", "--calibrate", "0", "-q")
    assert code == 0 and err == ""
    plan = json.loads(out)
    assert plan["estimate"] is None and plan["answer_limits"]["max"] == 3
    code, out, _ = real("plan", "in.jsonl", "--calibrate", "0", "-q")
    assert "answers     2, of at most 3 tokens" in out.decode()


def test_an_earlier_run_serves_as_measurement(real: Callable[..., Any]) -> None:
    _write(_ROWS[:3])
    assert real("run", "in.jsonl", "-o", "out.jsonl", "-q")[0] == 0
    code, out, _ = real("plan", "in.jsonl", "--json", "--like", "out.jsonl", "-q")
    estimate = json.loads(out)["estimate"]
    assert code == 0 and estimate["basis"].startswith("the report of out.jsonl, x86_64 CPU")
    report = json.loads(Path("out.jsonl.report.json").read_bytes())
    assert estimate["answer_tokens"] == report["tokens"]["completion_tokens"]
    assert 0.2 < estimate["answer_s"] / report["throughput"]["answer_s"] < 5


def test_limit_shard_and_settings_hold_as_in_a_run(real: Callable[..., Any]) -> None:
    _write(_ROWS)
    plan = ("plan", "in.jsonl", "--json", "--calibrate", "0", "-q")
    assert json.loads(real(*plan, "--limit", "3")[1])["rows"] == 3
    shards = [json.loads(real(*plan, "--shard", f"{i}/3")[1]) for i in (1, 2, 3)]
    assert [shard["rows"] for shard in shards] == [4, 3, 3]
    assert sum(shard["failing"] for shard in shards) == 5
    small = json.loads(real(*plan, "--max-model-len", "64", "--num-blocks", "2")[1])
    assert small["errors"]["too_long"] == 3 and small["memory"]["num_blocks"] == 2
    assert small["fitting"] == 2 or small["fitting"] == 1


def test_a_report_without_steps_says_why(real: Callable[..., Any]) -> None:
    _write([{"prompt": "a", "max_tokens": 1}, {"prompt": 5}])
    assert real("run", "in.jsonl", "-o", "out.jsonl", "-q")[0] == 3
    code, _, err = real("plan", "in.jsonl", "--like", "out.jsonl")
    assert code == 2 and "no answer went on after its first token" in err


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["plan", "none.jsonl"], 4, "cannot read none.jsonl: no such file or directory"),
        (["plan", "in.jsonl", "--model", "no/such"], 2, "no/such"),
        (["plan", "in.jsonl", "--calibrate", "soon"], 2, "--calibrate soon: expected a duration"),
        (["plan", "in.jsonl", "--like", "no.jsonl"], 2, "no report of no.jsonl"),
        (["plan", "in.jsonl", "--num-blocks=1", "--max-model-len=100"], 2, "raise --num-blocks"),
        (["plan", "in.jsonl", "--top-p", "7"], 2, "expected above 0"),
        (["plan", "in.jsonl", "--ep=3"], 2, "--expert-parallel-size=3 does not divide"),
        (["plan", "in.jsonl", "--regex", "("], 2, "invalid_regex"),
    ],
)
def test_what_a_run_would_refuse_is_refused(
    real: Callable[..., Any], arguments: list[str], code: int, message: str
) -> None:
    _write(_ROWS[:1])
    found, _, err = real(*arguments)
    assert found == code and message in err and "Traceback" not in err


def test_fields_in_vain_are_told_as_a_run_tells_them(real: Callable[..., Any]) -> None:
    rows = [
        {"prompt": "a", "max_tokens": 2, "temprature": 0, "colour": "red"},
        {"prompt": "b", "max_tokens": 2, "colour": "red", "MAX_TOKEN": 1},
        {"prompt": "c", "max_tokens": 10**6, "user": "me"},
        {"messages": [{"role": "user", "content": "d"}], "max_tokens": 2, "thinking": "low",
         "temperature": 0},
        {"prompt": 5, "temprature": 1},
        {"prompt": "e", "max_tokens": 2, "parse_special": True},
    ]  # fmt: skip
    for row in rows:
        row["ignore_eos"] = True
    _write(rows)
    limit = ("--max-model-len", "40")
    plan = json.loads(real("plan", "in.jsonl", "--json", "--calibrate", "0", "-q", *limit)[1])
    report = json.loads(real("run", "in.jsonl", "-o", "out.jsonl", "--json", "-q", *limit)[1])
    assert plan["row_notes"] == report["notes"] != {}
    assert plan["other_fields"] == [
        {"name": "temprature", "rows": 1, "line": 1, "meant": "temperature"},
        {"name": "colour", "rows": 2, "line": 1, "meant": None},
        {"name": "MAX_TOKEN", "rows": 1, "line": 2, "meant": "max_tokens"},
        {"name": "parse_special", "rows": 1, "line": 6, "meant": None},  # it goes with raw
    ]
    words = " ".join(real("plan", "in.jsonl", "--calibrate", "0", "-q", *limit)[1].decode().split())
    assert "fields without effect in 3 rows: temprature in 1 row, first in line 1" in words
    assert "(did you mean temperature?) colour in 2 rows, first in line 1 MAX_TOKEN" in words
    assert "changed not as the row asks (results say why): " in words and "max_tokens in 1" in words
    carried = real("plan", "in.jsonl", "--json", "--calibrate", "0", "-q", "--carry", "colour")[1]
    assert [field["name"] for field in json.loads(carried)["other_fields"]] == [
        "temprature", "MAX_TOKEN", "parse_special",
    ]  # fmt: skip


def test_the_numbers_in_words_add_up(real: Callable[..., Any]) -> None:
    """Rows = those that can be answered + those that fail; kinds and bars sum to the former."""
    many = [{"prompt": "word " * (1 + i * i % 97), "max_tokens": 2} for i in range(60)]
    for rows in (_ROWS, many, [*many, *_ROWS[3:6]]):
        _write(rows)
        text = real("plan", "in.jsonl", "--calibrate", "0", "-q")[1].decode()
        words = " ".join(text.split())
        total = int(re.search(r"rows (\d+) in in.jsonl", words)[1])  # type: ignore[index]
        failing = int((re.search(r"will fail (\d+)", words) or [0, 0])[1])
        answerable = total - failing
        if failing:
            assert f"{total} in in.jsonl; {answerable} can be answered: " in words
        kinds = re.search(r"(?:in.jsonl|answered): ((?:\w+ \d+(?:, )?)+)", words)
        assert kinds is not None
        assert sum(map(int, re.findall(r"\d+", kinds[1]))) == answerable
        which = " that can be answered" if failing else ""
        head, _, bars = text.partition(f"\nprompt tokens of the {answerable} rows{which}\n")
        counts = [int(line.split()[-1]) for line in bars.splitlines()]
        assert head and sum(counts) == answerable


def test_the_range_of_an_estimate(real: Callable[..., Any]) -> None:
    """None where all lengths are given; else around the estimate, and narrower for more rows."""
    _write([{"prompt": f"Count to {i}.", "max_tokens": 4, "ignore_eos": True} for i in range(4)])
    calibrate = ("--calibrate", "0.3s", "-q")
    estimate = json.loads(real("plan", "in.jsonl", "--json", *calibrate)[1])["estimate"]
    assert estimate["num_lengths"] is None
    assert estimate["answer_low_s"] == estimate["answer_s"] == estimate["answer_high_s"]
    assert b"range" not in real("plan", "in.jsonl", *calibrate)[1]
    _write([{"prompt": f"Tell me about {i}.", "max_tokens": 60} for i in range(12)])
    calibrate = ("--calibrate", "1s", "-q")  # on a slow machine too some answers end
    estimate = json.loads(real("plan", "in.jsonl", "--json", *calibrate)[1])["estimate"]
    assert estimate["answer_low_s"] <= estimate["answer_s"] <= estimate["answer_high_s"]
    assert estimate["num_lengths"] is not None
    words = " ".join(real("plan", "in.jsonl", *calibrate)[1].decode().split())
    assert re.search(r"range [\w. ]+ to [\w. ]+ in 40 draws from the lengths of", words)


@pytest.mark.parametrize("measured, rows", [(12, 8), (30, 50), (100, 400)])
def test_the_range_holds_about_as_often_as_it_says(measured: int, rows: int) -> None:
    """Files and measurements of one kind: the real time is in the range about 9 times of 10."""
    chance = random.Random(rows)

    def lengths(count: int) -> list[int]:
        return [max(1, round(chance.expovariate(1 / 80))) for _ in range(count)]

    def play(answers: Sequence[int]) -> Any:
        """As long as the longest of eight at a time."""
        batches = [answers[at : at + 8] for at in range(0, len(answers), 8)]
        return SimpleNamespace(step_s=sum(map(max, batches)))

    scan: Any = SimpleNamespace(num_answers=rows, limits=lambda: iter([(10_000, False)] * rows))
    held = 0
    for _ in range(80):
        known = AnswerLengths((length, True) for length in lengths(measured))
        low, high = _spread(scan, known, play)
        middle = play(_fitting(scan, known.draw(rows))).step_s
        held += low * middle <= play(lengths(rows)).step_s <= high * middle
    assert held >= 80 * 0.8, held


def test_an_input_without_answerable_rows(real: Callable[..., Any]) -> None:
    Path("in.jsonl").write_text("")
    code, out, _ = real("plan", "in.jsonl", "-q")
    assert code == 0 and out.startswith(b"rows        0 in in.jsonl\n")
    _write([{"prompt": 5}])
    code, out, _ = real("plan", "in.jsonl", "-q")
    assert code == 3 and b"will fail   1 (100 %)" in out
