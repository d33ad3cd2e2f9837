"""``Basis``: what a run's answers depend on besides its rows, and what has changed of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Basis:
    """settings: name to value, in JSON's types.  model_files: name to digest; empty for the
    embedded model, which the package's version identifies.  verb: the verb that makes the
    output."""

    settings: Mapping[str, object]
    model_files: Mapping[str, str] = field(default_factory=dict)
    verb: str = "run"

    def changed_since(self, earlier: Basis) -> tuple[str, str] | None:
        """What has changed, and how to undo it; None if nothing has."""
        if self.verb != earlier.verb:
            return f"deepinfer {earlier.verb}", f"give deepinfer {earlier.verb} again"
        settings = settings_changed(earlier.settings, self.settings)
        if settings:
            return f"other settings ({settings})", "give the first settings"
        files = _files_changed(earlier.model_files, self.model_files)
        if files:
            return f"another model ({files})", "put the first model back"
        return None


def settings_changed(earlier: Mapping[str, object], now: Mapping[str, object]) -> str:
    """``temperature was 1.0, now 0.5; ...``; the empty string if all are equal."""
    words = [
        f"{name} was {earlier.get(name)!r}, now {now.get(name)!r}"
        for name in {**earlier, **now}
        if earlier.get(name) != now.get(name)
    ]
    return _first(words, "; ")


def _files_changed(earlier: Mapping[str, str], now: Mapping[str, str]) -> str:
    words = []
    for name in sorted({*earlier, *now}):
        if name not in now:
            words.append(f"{name} is gone")
        elif name not in earlier:
            words.append(f"{name} is new")
        elif earlier[name] != now[name]:
            words.append(f"{name} has changed")
    return _first(words, ", ")


def _first(words: Sequence[str], between: str) -> str:
    more = f"{between}and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return between.join(words[:_SHOWN]) + more
