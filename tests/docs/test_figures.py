"""A figure of the README is one of docs/performance.md, where its circumstances are."""

from __future__ import annotations

import re
from pathlib import Path

_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def test_measured_figures_are_on_the_page_with_their_circumstances(root: Path) -> None:
    readme = (root / "README.md").read_text(encoding="utf-8")
    page = set(_NUMBER.findall((root / "docs" / "performance.md").read_text(encoding="utf-8")))
    table = readme.split("## Measured")[1].split("##")[0]
    rows = re.findall(r"^\|([^|]+)\|([^|]+)\|", table, re.MULTILINE)[2:]
    assert len(rows) >= 5
    for what, figures in rows:
        for figure in _NUMBER.findall(figures):
            assert figure in page, f"{what.strip()}: {figure} is not in docs/performance.md"
