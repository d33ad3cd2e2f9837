"""Resolves settings from four layers: default < YAML file < environment < flag.

The origin of each value is recorded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deepinfer.errors import ConfigError

from .as_given import errors_as_given
from .environment import CONFIG, environment_layer
from .settings import FIELDS, Settings, flag_name, plain
from .values import Kind
from .yaml_file import yaml_layer


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings, and the origin of each value by name."""

    settings: Settings
    origins: Mapping[str, str]

    def answers(self) -> dict[str, Any]:
        """The settings that affect answers, in JSON's types."""
        return {
            n: plain(getattr(self.settings, n)) for n in FIELDS if FIELDS[n].metadata["answers"]
        }

    def report(self) -> dict[str, dict[str, Any]]:
        """Every setting with value and origin, in JSON's types."""
        return {
            name: {"value": plain(getattr(self.settings, name)), "origin": self.origins[name]}
            for name in FIELDS
        }


def resolve(
    flags: Mapping[str, object],
    environment: Mapping[str, str] | None = None,
    config: str | None = None,
) -> Resolved:
    """Combine the four layers.

    flags: by setting name, None if not given.  config: a YAML file; without it
    ``DEEPINFER_CONFIG``, then ``deepinfer.yaml`` in the current folder if there is one.
    Raises: ConfigError that names the layer, the value and what was expected.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    origins = dict.fromkeys(FIELDS, "default")
    config = config or environment.get(CONFIG)
    if config == "":
        raise ConfigError(f"{CONFIG} is empty: unset it, or name a settings file")
    for name, value, origin in [
        *yaml_layer(config),
        *environment_layer(environment),
        *((name, value, flag_name(name)) for name, value in flags.items() if value is not None),
    ]:
        values[name] = _parse(name, value, origin)
        origins[name] = origin
    settings = Settings(**values)
    with errors_as_given(origins):
        settings.sampling()
    return Resolved(settings, origins)


def _parse(name: str, value: object, origin: str) -> object:
    kind: Kind = FIELDS[name].metadata["kind"]
    try:
        return kind.parse(value)
    except (ValueError, TypeError, OverflowError):
        shown = value[0] if isinstance(value, list) and len(value) == 1 else value
        shown = str(shown) if isinstance(shown, str) else repr(shown)
        shown = shown if len(shown) <= 80 else f"{shown[:80]}…"
        subject = f"{origin}={shown}" if origin.isupper() or origin.startswith("--") else (
            f"{origin}: {name}: {shown}"
        )  # fmt: skip
        raise ConfigError(f"{subject}: expected {kind.expects}") from None
