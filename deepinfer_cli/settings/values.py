"""Parsers of setting values such as ``32k``, ``24GiB``, ``90%``, ``2h``, ``on``.

A ``Kind`` converts a value from a YAML file, an environment variable or a flag to its type.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A type of value.  ``parse`` raises ValueError; ``expects`` completes "expected ...".

    ``form``: whether the flag takes one value, is an on/off switch, or is repeatable.
    """

    expects: str
    parse: Callable[[object], object]
    form: str = "value"
    metavar: str = "TEXT"


def _scaled(text: str, scales: Mapping[str, int]) -> float:
    match = re.fullmatch(r"([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-z]*)", text.lower())
    if match is None or match[2] not in scales:
        raise ValueError(text)
    return float(match[1]) * scales[match[2]]


def parse_count(value: object) -> int:
    """An integer; k, M, G, T are decimal, Ki, Mi, Gi, Ti binary: ``32k`` is 32,000."""
    if isinstance(value, bool):
        raise ValueError(value)
    if isinstance(value, int):
        return value
    text = str(value).strip()
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    number = _scaled(text, _DECIMAL | _BINARY)
    if not math.isfinite(number) or number != int(number):
        raise ValueError(value)
    return int(number)


def parse_bytes(value: object) -> int:
    """A size in bytes: ``24GiB``, ``10 MB``, ``4096``; at most what a file can have."""
    size = parse_count(re.sub(r"(?i)b$", "", value.strip()) if isinstance(value, str) else value)
    if size >= 2**60:
        raise ValueError(value)
    return size


def parse_number(value: object) -> float:
    """A finite number, or a percentage: ``90%`` is 0.9."""
    if isinstance(value, bool):
        raise ValueError(value)
    if isinstance(value, int | float):
        number = float(value)
    else:
        text = str(value).strip()
        number = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def parse_seconds(value: object) -> float:
    """A duration in seconds: ``90``, ``90s``, ``1h30m``, ``2d``; at most 68 years."""
    seconds = _seconds(value)
    if not abs(seconds) < 2**31:
        raise ValueError(value)
    return seconds


def _seconds(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    text = str(value).strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(value)
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def parse_error_limit(value: object) -> int | float:
    """A number of rows (int), or a fraction of all rows (``5%`` is the float 0.05)."""
    if isinstance(value, str) and value.strip().endswith("%"):
        limit: int | float = parse_number(value)
        is_possible = 0 <= limit <= 1
    else:
        limit = parse_count(value)
        is_possible = limit >= 0
    if not is_possible:
        raise ValueError(value)
    return limit


def parse_switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(value)
    return word in _TRUE


def parse_text(value: object) -> str:
    if isinstance(value, bool | dict | list | set | bytes) or value == "":
        raise ValueError(value)
    return str(value)


def parse_prom_file(value: object) -> str:
    """A file name with the extension that node_exporter's collector requires."""
    text = parse_text(value)
    if not text.endswith(".prom"):
        raise ValueError(value)
    return text


def choice(*names: str) -> Kind:
    """One of ``names``.  YAML 1.1 reads a bare ``off`` as false, so false means ``off``."""

    def parse(value: object) -> str:
        word = "off" if value is False else str(value)
        if word not in names:
            raise ValueError(value)
        return word

    return Kind(expects="one of " + ", ".join(names), parse=parse, metavar="|".join(names))


def parse_drafts(value: object) -> str:
    """``auto``, a number of drafts, or ``auto:3``: as many as pay off, at most 3.  ``off`` is 0."""
    word = "0" if value is False or value == "off" else str(value).strip().lower()
    if not re.fullmatch(r"auto|\d{1,9}|auto:[1-9]\d{0,8}", word):
        raise ValueError(value)
    return word


def parse_shard(value: object) -> str:
    """``2/8``: the second of eight shards."""
    text = str(value).strip()
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    if match is None or int(match[1]) > int(match[2]):
        raise ValueError(value)
    return text


def many(item: Kind) -> Kind:
    """Several values: a YAML list, a repeated flag, or a single value."""

    def parse(value: object) -> tuple[object, ...]:
        if isinstance(value, str) and value.lstrip().startswith("["):
            with contextlib.suppress(ValueError):
                value = json.loads(value)
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(item.parse(entry) for entry in items)

    return Kind(
        expects=f"{item.expects}, or a list", parse=parse, form="many", metavar=item.metavar
    )


def pairs(key: Kind, item: Kind, expects: str, metavar: str) -> Kind:
    """A mapping: a YAML mapping, or one or more ``KEY=VALUE``; keys must be unique."""

    def parse(value: object) -> dict[object, object]:
        if isinstance(value, Mapping):
            entries = list(value.items())
        else:
            texts = value if isinstance(value, list | tuple) else str(value).split(",")
            halves = [str(text).partition("=") for text in texts]
            if not all(equals for _, equals, _ in halves):
                raise ValueError(value)
            entries = [(name, text) for name, _, text in halves]
        found = {key.parse(name): item.parse(text) for name, text in entries}
        if len(found) < len(entries):  # 1 and 01 are the same token
            raise ValueError(value)
        return found

    return Kind(expects=expects, parse=parse, form="many", metavar=metavar)


def at_least(low: int, kind: Kind) -> Kind:
    """Numbers of ``kind`` that are at least ``low``."""

    def parse(value: object) -> object:
        number = kind.parse(value)
        if not isinstance(number, int | float) or not number >= low:
            raise ValueError(value)
        return number

    return dataclasses.replace(kind, expects=f"{kind.expects}, {low} or more", parse=parse)


def optional(kind: Kind) -> Kind:
    """``kind`` or None: an empty YAML value, or the word ``none``."""

    def parse(value: object) -> object:
        return None if value is None or value in ("none", "null") else kind.parse(value)

    return Kind(expects=kind.expects, parse=parse, form=kind.form, metavar=kind.metavar)


COUNT = Kind(expects="a whole number such as 64, 32k or 1M", parse=parse_count, metavar="N")
BYTES = Kind(expects="a size such as 64MiB or 24GiB", parse=parse_bytes, metavar="SIZE")
NUMBER = Kind(expects="a number such as 0.7 or 90%", parse=parse_number, metavar="X")
SECONDS = Kind(expects="a duration such as 90s, 30m or 2h", parse=parse_seconds, metavar="TIME")
ERROR_LIMIT = Kind(expects="a number of rows or 5%", parse=parse_error_limit, metavar="N|P%")
SWITCH = Kind(expects="true or false", parse=parse_switch, form="switch")
DRAFTS = Kind(
    expects="auto, a number of drafts such as 5 (0 is off), or auto:3 for at most 3",
    parse=parse_drafts,
    metavar="auto|N",
)
SHARD = Kind(expects="I/N such as 2/8, part 2 of 8", parse=parse_shard, metavar="I/N")
TEXT = Kind(expects="text", parse=parse_text)
PROM_FILE = Kind(expects="a file name that ends in .prom", parse=parse_prom_file, metavar="FILE")
