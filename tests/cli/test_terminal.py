"""What people see: progress in real pseudo-terminals, help pages, plain logs."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer_cli.run.console import Snapshot, duration, progress_words
from deepinfer_cli.settings.settings import FIELDS, flag_name


def _run_in_terminal(command: list[str], columns: int, **environment: str) -> tuple[int, str]:
    """Exit code and everything the terminal was sent."""
    main_end, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    root = str(Path(__file__).parents[2])
    bare = {"PATH": os.defpath, "PYTHONPATH": root, "TERM": "xterm-256color", **environment}
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal, env=bare
    )
    os.close(terminal)
    sent = b""
    while True:
        try:
            chunk = os.read(main_end, 65_536)
        except OSError:
            break
        if not chunk:
            break
        sent += chunk
    os.close(main_end)
    return process.wait(120), sent.decode()


def _visible(sent: str) -> list[str]:
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", sent)
    return re.split(r"\r?\n|\r", text)


@pytest.mark.parametrize("columns", [40, 60, 80, 160])
def test_no_line_is_wider_than_the_terminal(in_tmp: Path, command: list[str], columns: int) -> None:
    Path("in.jsonl").write_bytes(b'{"prompt":"hello"}\n' * 60 + b"bad\n")
    code, sent = _run_in_terminal(
        [*command, "run", "in.jsonl", "-o", "out.jsonl"], columns, FAKE_SECONDS_PER_ROW="0.01"
    )
    assert code == 3
    lines = _visible(sent)
    assert max(len(line) for line in lines) <= columns
    assert any("━" in line for line in lines)
    assert any("tokens/s" in line for line in lines)
    assert any(re.match(r"errors +1 +invalid_json 1", line) for line in lines)


def test_no_color_and_dumb_terminals(in_tmp: Path, command: list[str]) -> None:
    Path("in.jsonl").write_bytes(b'{"prompt":"hello"}\nbad\n')
    run = [*command, "run", "in.jsonl", "-o", "out.jsonl", "--force"]
    _, sent = _run_in_terminal(run, 80, NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", sent)
    _, sent = _run_in_terminal(run, 80, TERM="dumb")
    assert "\x1b" not in sent and "invalid_json 1" in sent


@pytest.mark.slow
def test_plans_fit_the_terminal(in_tmp: Path, command: list[str]) -> None:
    columns = 40
    rows = ['{"prompt":"%s"}' % ("word " * (3 * i + 1)) for i in range(20)]
    Path("in.jsonl").write_text("\n".join([*rows, "bad"]))
    code, sent = _run_in_terminal([*command, "plan", "in.jsonl", "--calibrate", "0"], columns)
    lines = _visible(sent)
    assert code == 3 and max(map(len, lines)) <= columns
    assert any(line.startswith("will fail   1 (4.8 %)") for line in lines)
    assert sum("█" in line or "#" in line for line in lines) > 3


@pytest.mark.slow
def test_doctor_in_a_terminal(in_tmp: Path, command: list[str]) -> None:
    code, sent = _run_in_terminal([*command, "doctor"], 60, NO_COLOR="1")
    lines = _visible(sent)
    assert code == 0 and max(map(len, lines)) <= 60
    assert "\x1b" not in sent and "Ready: deepinfer run would start." in sent


def test_results_on_stdout_are_not_mixed_with_progress(in_tmp: Path, command: list[str]) -> None:
    Path("in.jsonl").write_bytes(b'{"prompt":"hello"}\n' * 3)
    done = subprocess.run([*command, "run", "in.jsonl", "-o", "-"], capture_output=True)
    assert done.returncode == 0 and done.stdout.count(b"\n") == 3
    assert all(line.startswith(b'{"id"') for line in done.stdout.splitlines())
    assert re.match(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", done.stderr)


@pytest.mark.parametrize(
    "verb, columns, width",
    [("run", 20, 40), ("run", 200, 80), ("run", 0, 80), ("config", 60, 60)],
)
def test_help_fits_a_narrow_terminal(
    cli: Callable[..., Any], command: list[str], verb: str, columns: int, width: int
) -> None:
    """All but the examples, which are to be copied, and options that are longer themselves."""
    code, sent = _run_in_terminal([*command, verb, "--help"], columns)
    assert code == 0
    for line in _visible(sent):
        is_kept = re.match("  (deepinfer|cat|watch|DEEPINFER|-)|Usage: ", line)
        assert len(line) <= (80 if is_kept else width), line
    piped = cli(verb, "--help").out.decode()
    assert "".join(sent.split()) == "".join(piped.split())


def test_the_bare_command_prints_its_help(cli: Callable[..., Any]) -> None:
    bare, asked = cli(), cli("--help")
    assert (bare.exit_code, bare.out.strip()) == (0, asked.out.strip())


def test_run_help_names_every_setting(cli: Callable[..., Any]) -> None:
    text = cli("run", "--help").out.decode()
    for name in FIELDS:
        assert flag_name(name)[2:] in text


@pytest.mark.parametrize("arguments", [["--version"], ["config", "show"]])
def test_small_verbs_import_nothing_slow(arguments: list[str]) -> None:
    code = (
        "import sys; from deepinfer_cli.main import main; main(sys.argv[1:]);"
        "slow = {'torch', 'triton', 'numpy', 'pyarrow', 'datasets', 'tokenizers', 'rich'};"
        "slow |= {'pydantic'};"
        "print(sorted(slow & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.stderr.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0.4, "0s"),
        (59.4, "59s"),
        (59.6, "1m 00s"),
        (185, "3m 05s"),
        (7800, "2h 10m"),
        (356400, "4d 03h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_progress_words_leave_out_what_nobody_knows() -> None:
    now = Snapshot(
        rows=3, total_rows=None, is_estimate=False, running=0, errors=0, tokens_per_s=12.4,
        acceptance=None, elapsed_s=1, eta_s=None,
    )  # fmt: skip
    assert progress_words(now) == ["3 rows", "12 tokens/s"]
    assert now.share is None
    early = dataclasses.replace(now, rows=0, total_rows=1_000, running=64, tokens_per_s=0.0)
    assert progress_words(early) == ["0 of 1,000 rows", "64 in progress"]
    late = dataclasses.replace(
        early, is_estimate=True, running=0, errors=2, acceptance=0.5, eta_s=90
    )
    assert progress_words(late) == [
        "0 of about 1,000 rows", "starting", "1m 30s left", "2 errors", "50% of drafts accepted",
    ]  # fmt: skip
    stopping = dataclasses.replace(late, running=1, errors=1, acceptance=None, is_stopping=True)
    assert progress_words(stopping) == [
        "0 of about 1,000 rows", "1 in progress", "1 row to finish before it stops", "1 error",
    ]  # fmt: skip
