"""Options of the bench verbs, and parsers of their values; errors name the flag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from deepinfer_cli.settings.values import parse_count, parse_number


def option(flag: str, help: str, metavar: str, *short: str) -> Any:
    """An option with one value; ``help`` states its default."""
    return typer.Option(flag, *short, metavar=metavar, help=help, show_default=False)


def check_file(flag: str, path: Path | None) -> None:
    """Refuse a file that cannot be written, before measuring.  Raises: typer.BadParameter."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        reason = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise typer.BadParameter(f"{flag} {path}: {reason}")


def counts(flag: str, text: str) -> tuple[int, ...]:
    """Whole numbers separated by commas: ``256,64k``.  Raises: typer.BadParameter."""
    return tuple(count(flag, part) for part in text.split(","))


def positive_counts(flag: str, text: str) -> tuple[int, ...]:
    """The same, each at least 1.  Raises: typer.BadParameter."""
    found = counts(flag, text)
    if min(found) < 1:
        raise typer.BadParameter(f"{flag} {text}: expected whole numbers of 1 or more")
    return found


def count(flag: str, text: str) -> int:
    """One whole number: ``256``, ``64k``.  Raises: typer.BadParameter."""
    try:
        return parse_count(text.strip())
    except ValueError:
        raise typer.BadParameter(
            f"{flag} {text}: expected whole numbers, like 256 or 64k"
        ) from None


def number(flag: str, text: str) -> float:
    """``0.75`` or ``75%``.  Raises: typer.BadParameter."""
    try:
        return parse_number(text)
    except ValueError:
        raise typer.BadParameter(f"{flag} {text}: expected a number, like 0.75 or 75%") from None


def amount(flag: str, text: str) -> float:
    """The same, 0 or more.  Raises: typer.BadParameter."""
    found = number(flag, text)
    if found < 0:
        raise typer.BadParameter(f"{flag} {text}: expected a number, 0 or more")
    return found
