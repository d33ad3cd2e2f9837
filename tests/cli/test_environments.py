"""The same rows from a shell, from ``env -i``, from cron, and as merged shards."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]
_CHECKPOINT = _ROOT / "tests" / "goldens" / "tiny-a" / "checkpoint"
_FAKE = [sys.executable, str(Path(__file__).with_name("fake_engine.py"))]
_REAL = [sys.executable, "-m", "deepinfer_cli.main"]
_ROWS = [
    {"prompt": "Hello there", "temperature": 0},
    {"prompt": "é→ü", "seed": 7},
    {"id": "named", "prompt": "Once upon", "raw": True, "n": 2},
    {"prompt": ""},
    {"prompt": "The end", "max_tokens": 3},
]
# What a shell has that cron has not; the last two must not change an answer.
_SHELL = {"HOME": "/root", "TERM": "xterm-256color", "LANG": "en_US.UTF-8", "COLUMNS": "70",
          "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "5"}  # fmt: skip
_LOCATION = {"PATH": os.defpath, "PYTHONPATH": str(_ROOT)}


def _run(
    program: list[str], *arguments: str, env: Mapping[str, str], cron: bool = False
) -> tuple[int, str]:
    """Exit code and stderr.  ``cron``: no stdin at all, another umask, no terminal."""
    done = subprocess.run(
        [*program, *arguments],
        env=dict(env),
        capture_output=True,
        text=True,
        timeout=120,
        stdin=None if cron else subprocess.DEVNULL,
        preexec_fn=_like_cron if cron else None,
    )
    return done.returncode, done.stderr


def _like_cron() -> None:
    os.close(0)
    os.umask(0o077)
    os.setsid()


@pytest.mark.parametrize(
    "program",
    [pytest.param(_FAKE, id="fake"), pytest.param(_REAL, id="real", marks=pytest.mark.slow)],
)
def test_the_same_rows_from_everywhere(in_tmp: Path, program: list[str]) -> None:
    lines = [json.dumps(row, ensure_ascii=False) for row in _ROWS]
    Path("in.jsonl").write_text("\n".join([*lines, "bad"]), encoding="utf-8")
    options = ["--batch-invariant", "--max-tokens", "6"]
    if program is _REAL:
        options += ["--model", str(_CHECKPOINT)]
    run = ["run", "in.jsonl", *options, "-o"]
    codes = {}
    codes["shell"], _ = _run(program, *run, "shell.jsonl", env=_LOCATION | _SHELL)
    codes["bare"], _ = _run(program, *run, "bare.jsonl", env=_LOCATION)
    codes["cron"], said = _run(program, *run, "cron.jsonl", env=_LOCATION, cron=True)
    assert "\x1b" not in said and "Traceback" not in said
    for number in ("1", "2"):
        shard = ["merged.jsonl", "--shard", f"{number}/2", "--max-num-seqs", "1"]
        assert _run(program, *run, *shard, env=_LOCATION)[0] in (0, 3)
    codes["merged"], _ = _run(program, "merge", "-o", "merged.jsonl", env=_LOCATION)
    assert set(codes.values()) == {3}
    for ending in ("", ".errors.jsonl"):
        files = [Path(f"{name}.jsonl{ending}").read_bytes() for name in codes]
        assert len(set(files)) == 1
    assert files[0].count(b"\n") == (2 if program is _REAL else 1)
    assert Path("cron.jsonl").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "verb",
    [pytest.param("plan in.jsonl --calibrate 0", marks=pytest.mark.slow),
     "status in.jsonl", "doctor", "report in.out.jsonl --json",
     "config show", "config init -", "run in.jsonl --json --force", "run in.jsonl -o -",
     "merge -o m.jsonl s.1-of-1.jsonl --json"],
)  # fmt: skip
def test_a_closed_stdout_is_told_before_anything_is_done(
    cli: Callable[..., Any], command: list[str], verb: str
) -> None:
    Path("in.jsonl").write_bytes(b'{"prompt": "a"}\n')
    assert cli("run", "in.jsonl").exit_code == 0
    before = {path: path.stat().st_mtime_ns for path in Path().iterdir()}
    line = " ".join(map(shlex.quote, [*command, *verb.split()]))
    done = subprocess.run(["sh", "-c", f"{line} >&-"], capture_output=True, timeout=240)
    told = done.stderr.decode()
    assert done.returncode == 2 and "stdout is closed" in told and told.count("\n") == 1, told
    assert {path: path.stat().st_mtime_ns for path in Path().iterdir()} == before


@pytest.mark.parametrize(
    "encoding, plans",
    [("utf-8", False), ("ascii", False), pytest.param("ascii", True, marks=pytest.mark.slow)],
)
def test_names_and_settings_of_any_bytes_are_shown(
    process: Callable[..., Any], encoding: str, plans: bool
) -> None:
    """Whatever the terminal's encoding lacks; and JSON stays JSON."""
    name = os.fsdecode("n\xff\N{SNOWMAN}é".encode("utf-8") + b"\xff")
    Path(f"{name}.jsonl").write_text('{"prompt": "a"}\n')
    env = {**os.environ, "PYTHONIOENCODING": encoding, "DEEPINFER_STOP": name}
    output = f"{name}.out.jsonl"
    verbs = [["run", f"{name}.jsonl", "-o", output, "-q"], ["status", output, "--json"]]
    if encoding == "ascii":
        verbs += [
            ["status", output], ["report", output], ["config", "show"],
            ["config", "show", "--json"], ["report", output, "--json"],
        ]  # fmt: skip
    else:
        verbs += [["report", output], ["config", "show"]]
    if plans:
        verbs = [["plan", f"{name}.jsonl", "--calibrate", "0", "--json"]]
    for verb in verbs:
        done = process(*verb, env=env)
        assert done.exit_code == 0 and "Error" not in done.err, (verb, done.err)
        if verb[-1] == "--json":
            json.loads(done.out)
