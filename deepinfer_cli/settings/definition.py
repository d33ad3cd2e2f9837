"""Definition of a setting: default, kind of value, group and help."""

from __future__ import annotations

import dataclasses
from dataclasses import field
from typing import Any

from deepinfer.engine.types import SamplingParams

from .values import Kind


def setting(
    default: Any,
    kind: Kind,
    group: str,
    help: str,
    *,
    answers: bool = False,
    alias: str | None = None,
) -> Any:
    """A field of ``Settings``.  ``answers``: the value affects answers, so a run can only be
    resumed with the same one.  ``alias``: a shorter flag."""
    metadata = {"kind": kind, "group": group, "help": help, "answers": answers, "alias": alias}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def param(name: str, kind: Kind, help: str) -> Any:
    """A field with the name and default of the ``SamplingParams`` field ``name``."""
    definition = SamplingParams.__dataclass_fields__[name]
    default = {} if definition.default is dataclasses.MISSING else definition.default
    return setting(default, kind, "Sampling", help, answers=True)
