"""``Check``: the result of a single check."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

OK, NOTE, WARNING, PROBLEM = "ok", "note", "warning", "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """state: ok, note (for information), warning (works, but not well), problem (a run would fail).
    advice: what to do about it, if anything."""

    group: str
    name: str
    state: str
    text: str
    advice: str = ""


def shown_path(path: Path | str) -> str:
    """A path without the user's name: the home folder becomes ``~``."""
    text, home = str(path), os.path.expanduser("~")
    if home not in ("~", "/", "") and (text == home or text.startswith(home + "/")):
        return "~" + text.removeprefix(home)
    return text


def line_of(command: Sequence[str], word: str = "") -> str | None:
    """The first line with ``word`` that a program prints; None if there is none."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    lines = (done.stdout or done.stderr).strip().splitlines() if done.returncode == 0 else []
    return next((line.strip() for line in lines if word in line), None)
