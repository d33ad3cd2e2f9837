"""docs/cli.md is what the program says; a failing test leaves the right page to copy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

_PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
_VERBS = (
    ["run"],
    ["status"],
    ["merge"],
    ["plan"],
    ["doctor"],
    ["report"],
    ["bench"],
    ["bench", "run"],
    ["bench", "kernels"],
    ["build"],
    ["config", "show"],
    ["config", "init"],
)


def test_the_page_is_what_help_prints(cli: Callable[..., Any]) -> None:
    sections = [_section(cli, verb) for verb in ([], *_VERBS)]
    page = "# The command line\n\nWhat `--help` prints, verb by verb.\n" + "".join(sections)
    found = _PAGE.read_text(encoding="utf-8")
    fresh = Path("cli.md")
    fresh.write_text(page, encoding="utf-8")
    assert found == page, f"docs/cli.md is old; replace it with {fresh.resolve()}"


def _section(cli: Callable[..., Any], verb: list[str]) -> str:
    text = cli(*verb, "--help").out.decode()
    return f"\n## {' '.join(['deepinfer', *verb])}\n\n```text\n{text}```\n"
