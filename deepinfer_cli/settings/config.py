"""``deepinfer config``: shows the settings in effect, or writes an example file."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from deepinfer.errors import ConfigError, on_one_line
from deepinfer_cli.stdio import data_stream, print_json, say

from .layers import Resolved
from .settings import FIELDS, Settings, plain
from .values import Kind

_HEAD = """\
# Settings of deepinfer.  Copy this to deepinfer.yaml, or name it with --config.
# Each key is also a flag (--top-p) and an environment variable (DEEPINFER_TOP_P).
# A flag beats the environment, the environment beats this file.
"""


def show(resolved: Resolved, *, origin: bool, as_json: bool) -> None:
    """Print every setting on stdout as YAML or JSON, optionally with its origin."""
    data_stream()
    if as_json:
        rows = resolved.report()
        shown: Any = rows if origin else {name: entry["value"] for name, entry in rows.items()}
        print_json(shown)
        return
    for name in FIELDS:
        line = f"{name}: {_yaml(getattr(resolved.settings, name))}"
        print(f"{line:<44} # {resolved.origins[name]}" if origin else line)


def example() -> str:
    """The text of deepinfer.yaml.example: every key with its default, help and format."""
    settings = Settings()
    parts = [_HEAD]
    group = None
    for name, definition in FIELDS.items():
        if definition.metadata["group"] != group:
            group = definition.metadata["group"]
            parts.append(f"\n\n# ---- {group} ----\n")
        kind: Kind = definition.metadata["kind"]
        note = f"{definition.metadata['help']} [{kind.expects}]"
        comment = textwrap.fill(note, 80, initial_indent="# ", subsequent_indent="# ")
        parts.append(f"\n{comment}\n")
        parts.append(f"{name}: {_yaml(getattr(settings, name))}\n")
    return "".join(parts)


def init(path: Path, *, force: bool) -> None:
    """Write the example to ``path``; ``-`` is stdout.  Raises: ConfigError if it exists."""
    if str(path) == "-":
        data_stream().write(example())
        return
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(example())
    except FileExistsError:
        raise ConfigError(f"{path} already exists; --force replaces it") from None
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {(error.strerror or str(error)).lower()}"
        ) from error
    say(on_one_line(f"wrote {path}"))


def _yaml(value: object) -> str:
    if value is None:
        return "none"
    import yaml  # imported here: a run does not need it

    text: str = yaml.safe_dump(plain(value), default_flow_style=True, width=10_000)
    return text.removesuffix("\n...\n").strip()
