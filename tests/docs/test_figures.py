"""Figures are told with their circumstances: in the sections of docs/performance.md."""

from __future__ import annotations

import re
from pathlib import Path

_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_ROW = re.compile(r"^\|([^|]+)\|([^|]+)\|", re.MULTILINE)


def _numbers(text: str) -> set[str]:
    return {number.rstrip(",") for number in _NUMBER.findall(text)}


def _summary_and_sections(root: Path) -> tuple[str, str]:
    page = (root / "docs" / "performance.md").read_text(encoding="utf-8")
    summary, sections = page.split("## Targets and results")[1].split("## Whole steps", 1)
    return summary, sections


def _figures(table: str) -> list[tuple[str, str]]:
    """First and second cell of each row, without headers and rulers."""
    rows = [(what.strip(), figures.strip()) for what, figures in _ROW.findall(table)]
    return [row for row in rows if _NUMBER.search(row[1])]


def test_figures_of_the_readme_are_in_a_section(root: Path) -> None:
    readme = (root / "README.md").read_text(encoding="utf-8")
    known = _numbers(_summary_and_sections(root)[1])
    rows = _figures(readme.split("## Measured")[1].split("##")[0])
    assert len(rows) >= 5
    for what, figures in rows:
        assert _numbers(figures) <= known, f"{what} is not in docs/performance.md"


def test_figures_of_the_summary_are_in_a_section(root: Path) -> None:
    summary, sections = _summary_and_sections(root)
    known, rows = _numbers(sections), _figures(summary)
    assert len(rows) >= 30
    for what, figures in rows:
        assert _numbers(figures) <= known, f"{what} is in no section of docs/performance.md"


def test_what_was_missed_is_said_in_every_row_of_the_summary(root: Path) -> None:
    """The last cell of a row says whether the target is reached."""
    summary, _ = _summary_and_sections(root)
    for line in summary.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and any(map(_NUMBER.search, cells[1:])):
            assert "reached" in cells[-1], line


def test_each_log_is_linked_from_the_list(root: Path) -> None:
    page = (root / "docs" / "performance.md").read_text(encoding="utf-8")
    listed = re.findall(r"\(tuning/(\w+)\.md\)", page.split("## Logs")[1])
    assert sorted(listed) == sorted(path.stem for path in (root / "docs" / "tuning").glob("*.md"))
