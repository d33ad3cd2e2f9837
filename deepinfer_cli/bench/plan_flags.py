"""Converts the flags of ``deepinfer bench`` to fields of ``BenchPlan``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import typer

from .options import count, counts, number, positive_counts

_PHASES = {"decode": ("decode",), "prefill": ("prefill",), "both": ("decode", "prefill")}


def plan_fields(preset: str | None, given: Mapping[str, str | None]) -> dict[str, Any]:
    """Fields of ``BenchPlan`` from the ``given`` flags (None: not given), which override those of
    ``preset``.  Raises: typer.BadParameter."""
    fields = _preset(preset)
    for flag, text in given.items():
        if text is not None:
            names, read = _READERS[flag]
            fields |= dict.fromkeys(names, read(flag, text))
    return fields


def origins(given: Mapping[str, str | None]) -> dict[str, str]:
    """The flag of each field, under all names that errors use for it."""
    found = {n: flag for flag in given if given[flag] is not None for n in _READERS[flag][0]}
    names = {"ep": "decode_ranks", "max_num_seqs": "requests"}
    return found | {name: found[field] for name, field in names.items() if field in found}


def _phases(flag: str, text: str) -> tuple[str, ...]:
    if text not in _PHASES:
        raise typer.BadParameter(f"{flag} {text}: expected decode, prefill or both")
    return _PHASES[text]


def _drafts(flag: str, text: str) -> tuple[int | None, ...]:
    parts = _names(flag, text)
    return tuple(None if part == "auto" else count(flag, part) for part in parts)


def _names(flag: str, text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    return () if names == ("none",) else names


def _word(flag: str, text: str) -> str:
    return text


_READERS: dict[str, tuple[tuple[str, ...], Callable[[str, str], Any]]] = {
    "--phase": (("phases",), _phases),
    "--ep": (("decode_ranks", "prefill_ranks"), positive_counts),
    "--requests": (("requests",), counts),
    "--context": (("context",), count),
    "--tokens": (("tokens",), counts),
    "--drafts": (("drafts",), _drafts),
    "--modes": (("modes",), _names),
    "--routing": (("routing",), _names),
    "--acceptance": (("acceptance",), number),
    "--expert-weights": (("expert_weights",), _word),
    "--output-projection": (("output_projection",), _word),
    "--link": (("link",), _word),
    "--device-profile": (("device_profile",), _word),
    "--steps": (("num_steps",), count),
    "--seed": (("seed",), count),
}


def _preset(name: str | None) -> dict[str, Any]:
    if name not in (None, "launch"):
        raise typer.BadParameter(f"--preset {name}: expected launch")
    if name is None:
        return {}
    from deepinfer.bench.plan import LAUNCH_REPLAY

    return {
        "decode_ranks": (64,),
        "prefill_ranks": (4,),
        "replay_tokens": LAUNCH_REPLAY,
        "output_projection": "fp8",
    }
