"""Layout of help pages: examples first, options in groups, at most 80 columns."""

from __future__ import annotations

import inspect
import os
import sys
import textwrap
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_WIDTH, _NARROWEST = 80, 40
# Width of the column of option names; on narrower terminals descriptions go below the names.
_FLAG_WIDTH, _INDENT = 30, 6


# The base of all usage errors; typer exports only its children.
UsageError: Any = typer.BadParameter.__mro__[1]


class _NamesItself:
    """Attributes usage errors to this command, which the parser does not always do.  An empty
    argument, such as from a variable that is not set, is an error: as a path it would mean the
    current folder."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            self._refuse_empty(args)
            left: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
            return left
        except UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def _refuse_empty(self: Any, args: list[str]) -> None:
        if set(args) & set(getattr(self, "commands", ())):
            return  # that subcommand will check
        options = {f"{name}=" for param in self.params for name in param.opts}
        for before, word in zip(["", *args], args, strict=False):
            if not word:
                what = f"the value after {before}" if before.startswith("-") else "an argument"
                raise UsageError(f"{what} is empty")
            if word in options:
                raise UsageError(f"the value after {word} is empty")


class Command(_NamesItself, TyperCommand):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(_page(self, ctx, _width()))


class Group(_NamesItself, TyperGroup):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        verbs = [
            (name, command.get_short_help_str(_WIDTH))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None
        ]
        formatter.write(_page(self, ctx, _width(), verbs))


def _width() -> int:
    """80 columns, or fewer on a narrow terminal."""
    try:
        columns = os.get_terminal_size(sys.stdout.fileno()).columns
    except (AttributeError, OSError, ValueError):  # not a terminal, or closed
        return _WIDTH
    return min(_WIDTH, max(_NARROWEST, columns or _WIDTH))


def _page(command: Any, ctx: Any, width: int, verbs: list[tuple[str, str]] | None = None) -> str:
    pieces = " ".join(command.collect_usage_pieces(ctx))
    help_text = inspect.cleandoc(command.help or "")
    parts = [_prose(part, width) for part in help_text.split("\n\n")]
    parts.append(f"Usage: {ctx.command_path} {pieces}")
    if verbs:
        parts.append(_table("Commands", verbs, width))
    groups: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(ctx):
        if param.param_type_name == "argument":
            if not param.help:
                continue
            parts.append(textwrap.fill(f"{param.metavar}: {param.help}", width))
        else:
            group = getattr(param, "rich_help_panel", None) or "Options"
            groups.setdefault(group, []).append((_flags(param), param.help or ""))
    parts += [_table(group, rows, width) for group, rows in groups.items()]
    return "\n\n".join(parts) + "\n"


def _prose(part: str, width: int) -> str:
    """Rewrap text on narrow terminals, except for examples, which are meant to be copied."""
    return part if width == _WIDTH or "\n  " in part else textwrap.fill(part, width)


def _flags(param: Any) -> str:
    names = sorted(param.opts, key=len)
    if param.secondary_opts:
        names = [f"--[no-]{name[2:]}" for name in names]
    value = f" {param.metavar}" if param.metavar and not param.is_flag else ""
    return ", ".join(names) + value


def _table(title: str, rows: list[tuple[str, str]], width: int) -> str:
    lines = [f"{title}:"]
    indent = _FLAG_WIDTH + 2 if width == _WIDTH else _INDENT
    for left, right in rows:
        wrapped = textwrap.wrap(right, width - indent)
        head = f"  {left}"
        if len(head) <= indent - 2 and wrapped:
            lines.append(f"{head:<{indent}}{wrapped.pop(0)}")
        else:
            lines.append(head)
        lines += [" " * indent + line for line in wrapped]
    return "\n".join(lines)
