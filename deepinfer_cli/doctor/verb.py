"""``deepinfer doctor``: runs all checks and prints them with a verdict."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TextIO

from deepinfer_cli.stdio import data_stream, print_json
from deepinfer_cli.typed_json import to_json

from .checks import NOTE, OK, PROBLEM, WARNING, Check
from .hardware import compiler_checks, disk_checks, gpu_checks, machine_checks
from .software import software_checks

SCHEMA = "deepinfer.doctor/1"
_MARKS = {OK: "✓", NOTE: "·", WARNING: "!", PROBLEM: "✗"}
_PLAIN_MARKS = {OK: "+", NOTE: "-", WARNING: "!", PROBLEM: "x"}
_COLOURS = {OK: "32", NOTE: "2", WARNING: "33", PROBLEM: "31"}


def doctor(flags: Mapping[str, object], config: str | None, *, as_json: bool) -> int:
    """Print all checks; 0 if ``deepinfer run`` with these flags would start, else 1."""
    stream = data_stream()
    checks = list(_all_checks(flags, config))
    problems = [check for check in checks if check.state == PROBLEM]
    if as_json:
        shown = {"schema": SCHEMA, "ready": not problems, "checks": to_json(checks)}
        print_json(shown)
    else:
        print_checks(checks, stream)
    return 1 if problems else 0


def _all_checks(flags: Mapping[str, object], config: str | None) -> Iterator[Check]:
    yield from _guarded("software", software_checks)
    yield from _guarded("machine", machine_checks)
    yield from _guarded("GPU", gpu_checks)
    yield from _guarded("compilers", lambda: compiler_checks(_needs_gpu(flags, config)))
    yield from _guarded("kernels", _bundles)
    yield from _guarded("disk", lambda: disk_checks(Path.cwd()))
    yield from _guarded("run", lambda: _run(flags, config))


def _needs_gpu(flags: Mapping[str, object], config: str | None) -> bool:
    """Whether the run would use a GPU.  Errors in the settings are reported elsewhere."""
    from deepinfer.errors import DeepInferError
    from deepinfer.machine import resolve_device
    from deepinfer_cli.settings.layers import resolve

    try:
        return resolve_device(resolve(flags, config=config).settings.device).startswith("cuda")
    except DeepInferError:
        return False


def _bundles() -> Iterator[Check]:
    from .readiness import bundle_checks

    return bundle_checks()


def _run(flags: Mapping[str, object], config: str | None) -> Iterator[Check]:
    from .readiness import run_checks

    return run_checks(flags, config)


def _guarded(group: str, look: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    """Report a check that raises as a problem, so that the others still run."""
    try:
        yield from look()
    except Exception as error:
        text = f"could not be looked at: {type(error).__name__}: {' '.join(str(error).split())}"
        state = PROBLEM if group == "run" else WARNING
        yield Check(group=group, name=group, state=state, text=text)


def print_checks(checks: Sequence[Check], stream: TextIO) -> None:
    """Print checks in groups, wrapped to the width of the terminal."""
    width = max(40, min(shutil.get_terminal_size((100, 24)).columns, 110))
    marks = _MARKS if "utf" in (stream.encoding or "").lower() else _PLAIN_MARKS
    is_coloured = (
        stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )
    label = min(16, max(len(check.name) for check in checks))
    for group, members in groupby(checks, key=lambda check: check.group):
        stream.write(f"{group}\n")
        for check in members:
            head = f"{check.name:<{label}}  "
            text = check.text + (f" → {check.advice}" if check.advice else "")
            lines = textwrap.wrap(
                head + text, width - 4, subsequent_indent=" " * (label + 2), break_on_hyphens=False
            )
            mark = marks[check.state]
            if is_coloured:
                mark = f"\x1b[{_COLOURS[check.state]}m{mark}\x1b[0m"
            stream.write(f"  {mark} " + "\n    ".join(lines) + "\n")
    stream.write("\n" + "\n".join(textwrap.wrap(_verdict(checks), width)) + "\n")


def _verdict(checks: Sequence[Check]) -> str:
    states = [check.state for check in checks]
    problems, warnings = states.count(PROBLEM), states.count(WARNING)
    more = f" {warnings} thing{'s' * (warnings > 1)} could be better (!)." if warnings else ""
    if problems:
        return f"Not ready: deepinfer run would fail ({problems} found).{more}"
    return f"Ready: deepinfer run would start.{more}"
