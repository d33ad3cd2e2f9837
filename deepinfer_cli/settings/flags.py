"""Generates command-line options from the settings, so that each is defined once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from .settings import FIELDS, flag_name
from .values import Kind


def with_settings(verb: Callable[..., None]) -> Callable[..., None]:
    """Give ``verb``, whose last parameter is ``flags``, one option per setting.

    Options that are not given are None, so that other layers apply.
    """

    def command(**given: Any) -> None:
        flags = {name: given.pop(name) for name in FIELDS}
        verb(
            **given, flags={name: value for name, value in flags.items() if value not in (None, [])}
        )

    own = [
        p for p in inspect.signature(verb, eval_str=True).parameters.values() if p.name != "flags"
    ]
    parameters = own + [_parameter(name) for name in FIELDS]
    command.__doc__ = verb.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _parameter(name: str) -> inspect.Parameter:
    metadata = FIELDS[name].metadata
    kind: Kind = metadata["kind"]
    flag = flag_name(name)
    if kind.form == "switch":
        value_type: Any = bool
        flag = f"{flag}/--no-{flag[2:]}"
    else:
        value_type = list[str] if kind.form == "many" else str
    names = [name for name in (flag, metadata["alias"]) if name is not None]
    option = typer.Option(
        *names, help=metadata["help"], metavar=kind.metavar if value_type is not bool else None,
        rich_help_panel=metadata["group"], show_default=False,
    )  # fmt: skip
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[value_type | None, option],
    )
