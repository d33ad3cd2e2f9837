"""Help pages: examples first, options in groups, whole option names, 80 columns."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

from typer.core import TyperCommand, TyperGroup

_WIDTH = 80
_FLAG_WIDTH = 30


class Command(TyperCommand):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(_page(self, ctx))


class Group(TyperGroup):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        verbs = [
            (name, command.get_short_help_str(_WIDTH))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None
        ]
        formatter.write(_page(self, ctx, verbs))


def _page(command: Any, ctx: Any, verbs: list[tuple[str, str]] | None = None) -> str:
    pieces = " ".join(command.collect_usage_pieces(ctx))
    parts = [inspect.cleandoc(command.help or ""), f"Usage: {ctx.command_path} {pieces}"]
    if verbs:
        parts.append(_table("Commands", verbs))
    groups: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(ctx):
        if param.param_type_name == "argument":
            if not param.help:
                continue
            parts.append(textwrap.fill(f"{param.metavar}: {param.help}", _WIDTH))
        else:
            group = getattr(param, "rich_help_panel", None) or "Options"
            groups.setdefault(group, []).append((_flags(param), param.help or ""))
    parts += [_table(group, rows) for group, rows in groups.items()]
    return "\n\n".join(parts) + "\n"


def _flags(param: Any) -> str:
    names = sorted(param.opts, key=len)
    if param.secondary_opts:
        names = [f"--[no-]{name[2:]}" for name in names]
    value = f" {param.metavar}" if param.metavar and not param.is_flag else ""
    return ", ".join(names) + value


def _table(title: str, rows: list[tuple[str, str]]) -> str:
    lines = [f"{title}:"]
    for left, right in rows:
        wrapped = textwrap.wrap(right, _WIDTH - _FLAG_WIDTH - 2)
        head = f"  {left}"
        if len(head) <= _FLAG_WIDTH and wrapped:
            lines.append(f"{head:<{_FLAG_WIDTH + 2}}{wrapped.pop(0)}")
        else:
            lines.append(head)
        lines += [" " * (_FLAG_WIDTH + 2) + line for line in wrapped]
    return "\n".join(lines)
