"""Pages about runs: HTML, Markdown and comparisons, from real reports and from extreme ones."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_cli.report.comparison import compare_answers
from deepinfer_cli.report.file import read_report
from deepinfer_cli.report.pages import words
from deepinfer_cli.report.pages.html import report_html
from deepinfer_cli.report.pages.markdown import report_markdown
from deepinfer_cli.report.pages.svg import area_chart, histogram_bars
from deepinfer_cli.report.report import Report
from deepinfer_cli.report.summary import Histogram

_VOID = {"meta", "line", "path"}


class _Checker(HTMLParser):
    """Notes what is open, so that every tag must be closed, and what comes from elsewhere."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert tag not in ("script", "link", "img", "iframe")
        assert not any(name in ("src", "href") or name.startswith("on") for name, _ in attrs)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


def _checked(page: str) -> _Checker:
    checker = _Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == [] and page.startswith("<!doctype html>")
    assert "url(" not in page and "@import" not in page and "://" not in page
    assert not re.search(r"\bnan\b|\binf\b|None", checker.text.replace("none", ""), re.I)
    return checker


def _run(cli: Callable[..., Any], text: str, *flags: str, output: str = "out.jsonl") -> Report:
    Path("in.jsonl").write_text(text)
    cli("run", "in.jsonl", "-o", output, "--force", *flags)
    return read_report(output).report


def test_the_page_of_a_run_is_whole_and_self_contained(cli: Callable[..., Any]) -> None:
    _run(cli, '{"prompt":"hello"}\n' * 30 + "bad\n", "--max-tokens", "77")
    done = cli("report", "out.jsonl")
    assert done.exit_code == 0
    assert done.out.decode().split() == ["out.jsonl.report.html", "out.jsonl.report.md"]
    checker = _checked(Path("out.jsonl.report.html").read_text())
    for word in ("30", "invalid_json", "max_tokens", "77", "--max-tokens", "Manifest"):
        assert word in checker.text
    assert checker.seen.count("svg") >= 2
    text = Path("out.jsonl.report.md").read_text()
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert "| answered" in text and "--max-tokens" in text and len(tables) > 30


@pytest.mark.parametrize(
    "text", ["", '{"prompt":"one"}\n', "bad\n" * 200], ids=["no rows", "one row", "all failed"]
)
def test_extreme_runs_have_pages_too(cli: Callable[..., Any], text: str) -> None:
    report = _run(cli, text)
    _checked(report_html(report))
    assert "None" not in report_markdown(report)


def test_a_run_is_found_by_the_name_of_its_input(cli: Callable[..., Any]) -> None:
    """As deepinfer status finds it, where the input has no report of its own name."""
    Path("in.jsonl").write_text('{"prompt":"a"}\n')
    assert cli("run", "in.jsonl").exit_code == 0
    assert read_report("in.jsonl").path == Path("in.out.jsonl.report.json")


def test_a_failed_run_shows_why(cli: Callable[..., Any]) -> None:
    Path("in.jsonl").write_text('{"prompt":"a"}\n' * 9 + '{"prompt":"<b>&","crash":1}\n')
    cli("run", "in.jsonl", "-o", "out.jsonl")
    stored = read_report("out.jsonl")
    assert stored.path == Path("out.jsonl.partial/report.json")
    assert read_report("out.jsonl.partial").report == stored.report
    report = dataclasses.replace(stored.report, message="<script>alert(1)</script> & more")
    checker = _checked(report_html(report))
    assert "<script>alert(1)</script> & more" in checker.text and "failed" in checker.text


def test_a_full_report_shows_all_charts(cli: Callable[..., Any]) -> None:
    """With the numbers of a real engine, which the fake one does not give."""
    report = _run(cli, '{"prompt":"hello"}\n' * 5)
    assert report.engine is not None
    times = Histogram()
    for value in (1, 20, 300, 100_000):
        times.add(value)
    spread = times.report()
    full = dataclasses.replace(
        report,
        latency_ms=dataclasses.replace(
            report.latency_ms, queued=spread, prefill=spread, decode=spread, first_token=spread,
            finished=spread,
        ),
        timeline=dataclasses.replace(
            report.timeline, rows=(1, 4), errors=(0, 0), completion_tokens=(5, 20)
        ),
        engine=dataclasses.replace(
            report.engine, num_steps=9, num_decode_steps=7, num_decode_rows=30, num_blocks=10,
            decode_batches=(5.0, 3.0), peak_blocks=4,
        ),
        speculation=dataclasses.replace(
            report.speculation, drafted_tokens=10, accepted_tokens=6, acceptance=0.6,
            accepted_length=2.5, verified_per_position=(6, 4), verify_lengths=(1.0, 2.0),
            acceptance_per_position=(0.75, None), proposed_tokens=10, mean_verify_length=2.0,
        ),
    )  # fmt: skip
    checker = _checked(report_html(full))
    assert checker.seen.count("svg") == 7
    for title in ("Answers computed at a time", "Drafts accepted, by position", "Latency"):
        assert title in checker.text
    assert "1m 40s" in checker.text


def test_where_reports_are_looked_for(cli: Callable[..., Any]) -> None:
    done = cli("report", "nothing.jsonl")
    assert done.exit_code == 2
    assert "expected nothing.jsonl.report.json or nothing.jsonl.partial/report.json" in done.err
    Path("x.report.json").write_text('{"schema": "deepinfer.report/99"}')
    assert "is not a report of this version" in cli("report", "x.report.json").err
    Path("x.report.json").write_text('{"schema": "deepinfer.report/1"}')
    assert "is not a complete report: status: expected to be there" in cli("report", "x").err
    Path("x.report.json").write_text("{")
    done = cli("report", "x")
    assert done.exit_code == 2 and "x.report.json is not a report: " in done.err


def test_outputs_are_chosen_by_their_ending(cli: Callable[..., Any]) -> None:
    _run(cli, '{"prompt":"hello"}\n')
    done = cli("report", "out.jsonl", "-o", "a.html", "-o", "a.prom", "-o", "a.json", "-o", "-")
    assert done.exit_code == 0 and done.out.startswith(b"# out.jsonl: finished\n")
    assert Path("a.json").read_bytes() == Path("out.jsonl.report.json").read_bytes()
    assert Path("a.prom").read_text().startswith("# HELP deepinfer_run_info ")
    again = cli("report", "out.jsonl", "-o", "a.html")
    assert again.exit_code == 2 and "a.html already exists; --force replaces it" in again.err
    assert cli("report", "out.jsonl", "-o", "a.html", "--force").exit_code == 0
    assert (
        "expected a name that ends in .html, .md, .json"
        in cli("report", "out.jsonl", "-o", "a.pdf").err
    )
    assert "no such file" in cli("report", "out.jsonl", "-o", "no/where.html").err
    assert json.loads(cli("report", "out.jsonl", "--json").out)["schema"] == "deepinfer.report/1"
    assert not list(Path().glob(".*new"))


# Comparison ------------------------------------------------------------------------------------


def test_two_runs_are_compared(cli: Callable[..., Any]) -> None:
    rows = "".join(f'{{"id":"r{i}","prompt":"row {i}"}}\n' for i in range(20))
    _run(cli, rows, output="a.jsonl")
    _run(cli, rows.replace("row 7", "row seven"), "--seed", "5", output="b.jsonl")
    done = cli("report", "a.jsonl", "b.jsonl", "-o", "both.html", "-o", "-")
    assert done.exit_code == 0
    text = done.out.decode()
    assert "1 of 20 common rows (5.0 %) have different answers." in text
    assert re.search(r"\| r7 +\| content, character 5 +\| row 7 +\| row seven +\|", text)
    assert re.search(r"\| seed +\| 0 +\| 5 ", text) and "digest of the rows" in text
    _checked(Path("both.html").read_text())
    found = json.loads(cli("report", "a.jsonl", "b.jsonl", "--json").out)
    assert found["schema"] == "deepinfer.comparison/1"
    assert found["answers"]["equal"] == 19 and found["settings"] == [
        {"name": "seed", "a": 0, "b": 5}
    ]


def test_a_run_equals_itself(cli: Callable[..., Any]) -> None:
    _run(cli, '{"prompt":"hello"}\n' * 3)
    text = cli("report", "out.jsonl", "out.jsonl").out.decode()
    assert "All 3 common rows have the same answers." in text
    assert "differ\n" not in text.replace("differently", "")
    Path("out.jsonl").unlink()
    assert "a result file does not exist" in cli("report", "out.jsonl", "out.jsonl").out.decode()


def test_formats_do_not_matter(cli: Callable[..., Any]) -> None:
    rows = '{"prompt":"hello"}\n{"prompt":"x","reasoning":"well"}\n'
    _run(cli, rows, output="a.jsonl")
    _run(cli, rows, output="b.parquet")
    found = json.loads(cli("report", "a.jsonl", "b.parquet", "--json").out)
    assert (found["answers"]["in_both"], found["answers"]["equal"]) == (2, 2)


def _row(row_id: str, content: str, tokens: int = 2) -> Mapping[str, Any]:
    usage = {"completion_tokens": tokens}
    return {"id": row_id, "content": content, "finish_reason": "stop", "usage": usage}


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("xy")), max_size=12), st.data())
def test_answers_are_paired_in_any_order(rows: list[tuple[str, str]], data: st.DataObject) -> None:
    """A run against a shuffled one: rows of one id stay in order, so all are equal."""
    order = data.draw(st.permutations(range(len(rows))))
    queues: dict[str, list[str]] = {}
    for row_id, content in rows:
        queues.setdefault(row_id, []).append(content)
    shuffled = [(rows[place][0], queues[rows[place][0]].pop(0)) for place in order]
    found = compare_answers((_row(*row) for row in rows), (_row(*row) for row in shuffled))
    assert (found.in_both, found.equal, found.only_in_a, found.only_in_b) == (
        len(rows), len(rows), 0, 0,
    )  # fmt: skip


def test_what_counts_as_a_difference() -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
    a = [
        _row("1", "same"),
        _row("2", "abc", 4),
        _row("3", "x"),
        _row("4", "t") | {"tool_calls": [call]},
    ]
    b = [
        _row("4", "t") | {"tool_calls": [call | {"id": "another"}]},
        _row("2", "abd", 8),
        _row("1", "same") | {"finish_reason": "length"},
        _row("5", "y"),
    ]
    found = compare_answers(iter(a), iter(b))
    assert (found.in_both, found.equal, found.different) == (3, 1, 2)
    assert (found.only_in_a, found.only_in_b) == (1, 1)
    assert {(e.id, e.field, e.at) for e in found.examples} == {
        ("2", "content", 2), ("1", "finish_reason", 0),
    }  # fmt: skip
    assert found.completion_tokens_ratio == 1.0 and found.total_s_ratio is None


# Parts -----------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10_000_000), min_size=1, max_size=100))
def test_histogram_bars_lose_nothing(values: list[int]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    bars = histogram_bars(histogram.report().buckets, "tokens")
    assert sum(bar.value for bar in bars) == len(values) and len(bars) <= 27


@given(st.lists(st.floats(0, 1e15), min_size=1, max_size=100))
def test_area_charts_stay_inside(values: list[float]) -> None:
    drawn = area_chart(values, ("0", "1"), "hint")
    for x, y in re.findall(r"([\d.]+),([\d.]+)", re.findall(r'class="line" d="([^"]+)"', drawn)[0]):
        assert 44 <= float(x) <= 392.1 and 9.9 <= float(y) <= 156.1


@pytest.mark.parametrize(
    "shown, text",
    [
        (words.short(1_234_567), "1.23 M"),
        (words.short(999.96), "1.00 k"),
        (words.short(0.4), "0.40"),
        (words.count(1234.0), "1,234"),
        (words.count(8.64), "8.64"),
        (words.seconds(0.0123), "12 ms"),
        (words.seconds(0.9999), "1.00 s"),
        (words.seconds(59.4), "59.4 s"),
        (words.seconds(7_800), "2h 10m"),
        (words.milliseconds(None), "–"),
        (words.size(19.1 * 2**20), "19.1 MiB"),
        (words.percent(0.0002), "< 0.1 %"),
        (words.percent(0.9999), "> 99.9 %"),
        (words.percent(0.074), "7.4 %"),
        (words.percent(1.0), "100 %"),
        (words.counted(1, "row"), "1 row"),
        (words.counted(1234, "row"), "1,234 rows"),
    ],
)
def test_numbers_as_words(shown: str, text: str) -> None:
    assert shown == text
