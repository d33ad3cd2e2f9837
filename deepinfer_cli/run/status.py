"""``deepinfer status``: the progress of a run, whether it is alive, and how to resume it."""

from __future__ import annotations

import shlex
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from deepinfer.errors import ConfigError, on_one_line
from deepinfer_cli.input.sharding import shards_beside
from deepinfer_cli.output.journal import count_rows
from deepinfer_cli.output.manifest import is_begun, read_manifest
from deepinfer_cli.output.partial import is_locked
from deepinfer_cli.output.paths import OutputPaths, default_output
from deepinfer_cli.report.file import read_report
from deepinfer_cli.stdio import data_stream, print_json

from .console import duration
from .status_file import current_folder, read_status

_PASSING = {"engine_error"}  # kinds of errors that may not occur again
_ENDINGS = (".partial", ".report.json", ".errors.jsonl")


def show_status(target: str, *, as_json: bool) -> None:
    """Print the state of a run.  ``target``: its output, its input, or one of its files.

    Raises: ConfigError if there is no such run, or it cannot be resumed.
    """
    stream = data_stream()
    state = run_state(find_run(target))
    if as_json:
        print_json(state)
        return
    for label, text in _lines(state):
        print(on_one_line(f"{label:<8}  {text}".rstrip()), file=stream)


def find_run(target: str) -> OutputPaths:
    """The output of the run.  Raises: ConfigError."""
    name = target.rstrip("/")
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    tried = list(dict.fromkeys([name, default_output(name)])) if Path(name).name else []
    for output in tried:
        paths = OutputPaths(Path(output))
        if paths.partial.is_dir() or paths.report.is_file():
            return paths
    shown = " or ".join(tried) or repr(target)
    shards = [str(path) for output in tried for path in shards_beside(Path(output))]
    if shards:
        raise ConfigError(f"{shown} has no run of its own, only shards: {', '.join(shards[:8])}")
    raise ConfigError(
        f"no run of {shown} found (no .partial folder and no .report.json); give the run's output"
    )


def run_state(paths: OutputPaths) -> dict[str, Any]:
    """The state of the run, in JSON's types.

    state: running, finished, stopped, failed, or killed (the process ended without a report).
    Rows of a run that is not running are counted in its journal.
    Raises: ConfigError if the run cannot be resumed.
    """
    is_finished = paths.results.is_file() and paths.report.is_file()
    if not paths.partial.is_dir() or (is_finished and not is_begun(paths.partial)):
        return _finished(paths)
    status = read_status(paths.partial) or {}
    state: dict[str, Any] = {
        "state": "running" if is_locked(paths.partial) else "killed",
        "output": str(paths.results),
        "input": status.get("input"),
        "process": status.get("process"),
        "host": status.get("host"),
        "seconds": None,
        "phase": None,
        "exit_code": None,
        "message": None,
    }
    if state["state"] == "running":
        done, errors = status.get("rows", 0), status.get("errors", 0)
        # Advance times that were written a moment ago.
        silent_s = max(0.0, time.time() - status["updated"]) if status else 0.0
        eta_s = status.get("eta_s")
        state |= {
            "phase": status.get("phase", "starting"),
            "seconds": status["elapsed_s"] + silent_s if status else None,
            "silent_s": silent_s,
            "tokens_per_s": status.get("tokens_per_s"),
            "rows_per_s": status.get("rows_per_s"),
            "eta_s": None if eta_s is None else max(0.0, eta_s - silent_s),
        }
    else:
        read_manifest(paths.partial)  # raises the same error as a run would
        done = errors = 0
        with suppress(FileNotFoundError):
            done, errors = count_rows(paths.partial)
        state |= _last_words(paths)
    total = status.get("total_rows")
    if total is not None and total < done:  # the input has become shorter
        total = None
    state["rows"] = {
        "done": done,
        "failed": errors,
        "total": total,
        "is_estimate": status.get("is_estimate", True),
        "left": None if total is None else max(0, total - done),
    }
    state["resume"] = _resume(status)
    return state


def _finished(paths: OutputPaths) -> dict[str, Any]:
    report = read_report(str(paths.report)).report
    done, errors = report.rows.input, report.rows.errors
    return {
        "state": "finished",
        "output": str(paths.results),
        "input": report.input.name,
        "exit_code": report.exit_code,
        "rows": {"done": done, "failed": errors, "total": done, "is_estimate": False, "left": 0},
        "errors": dict(report.errors),
        "is_merged": "shard" not in report.settings,  # merge removes this setting
    }


def _last_words(paths: OutputPaths) -> dict[str, Any]:
    """How the last part ended, from its report; one that was killed has none."""
    with suppress(OSError, ConfigError):  # ignore a damaged one
        report = read_report(str(paths.partial / "report.json")).report
        return {
            "state": report.status,
            "exit_code": report.exit_code,
            "message": report.message,
        }
    return {}


def _resume(status: dict[str, Any]) -> str | None:
    """The shell command that resumes the run."""
    if not status:
        return None
    folder = status["folder"]
    here = "" if folder in (None, current_folder()) else f"cd {shlex.quote(folder)} && "
    same_input = "THE SAME INPUT | " if status["input"] == "-" else ""
    return f"{here}{same_input}{status['command']}"


def _lines(state: dict[str, Any]) -> list[tuple[str, str]]:
    """(label, text) lines."""
    rows = state["rows"]
    lines = [("run", state["output"]), ("state", _state_words(state))]
    total = ""
    if rows["total"] is not None:
        total = f" of {'about ' if rows['is_estimate'] else ''}{rows['total']:,}"
    failed = f", {rows['failed']:,} of them failed" if rows["failed"] else ""
    lines.append(("rows", f"{rows['done']:,}{total} done{failed}"))
    if state["state"] == "running":
        if state["tokens_per_s"]:
            speed = f"{state['tokens_per_s']:,.0f} tokens/s, {state['rows_per_s'] or 0:,.1f} rows/s"
            lines.append(("speed", speed))
        if state["eta_s"] is not None and state["phase"] == "answering":
            lines.append(("left", f"about {duration(state['eta_s'])}"))
    elif state["state"] == "finished":
        if rows["failed"]:
            kinds = ", ".join(f"{kind} {count:,}" for kind, count in state["errors"].items())
            lines.append(("failed", kinds))
            if state["errors"].keys() - _PASSING:
                mended = "correct the rows in its .errors.jsonl and give that file to deepinfer run"
                lines.append(("fix", mended))
            if state["errors"].keys() & _PASSING:
                again = "the same command again with --retry-failed"
                if state["is_merged"]:
                    command = ["deepinfer", "run", state["input"], "-o", state["output"]]
                    again = f"{shlex.join(command)} --retry-failed, and the shards' other flags"
                lines.append(("retry", again))
    else:
        resume = state["resume"]
        lines.append(("resume", resume or "run the same command again"))
    return lines


def _state_words(state: dict[str, Any]) -> str:
    who = f"process {state.get('process')} on {state.get('host')}"
    if state["state"] == "running":
        since = f", for {duration(state['seconds'])}" if state["seconds"] is not None else ""
        silent = state["silent_s"]
        still = f"; no update for {duration(silent)}" if silent > 15 else ""
        return f"running, {state['phase']} ({who}{since}{still})"
    if state["state"] == "finished":
        return f"finished, exit code {state['exit_code']}"
    if state["state"] == "killed":
        return f"killed: {who} is gone; its finished rows are kept" if state["process"] else (
            "started, and ended before the first row"
        )  # fmt: skip
    return f"{state['state']}, exit code {state['exit_code']}: {state['message']}"
