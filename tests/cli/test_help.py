"""Help pages, completion, and what cron gets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deepinfer_cli.helptext import UsageError
from deepinfer_cli.main import _usage_message, main, make_program

_SLOW = ("torch", "triton", "numpy", "pyarrow", "tokenizers", "rich", "deepseek_recipe",
         "datasets", "zstandard")  # fmt: skip


def _verbs(group: Any = None, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every verb of the program, groups included."""
    group = group or make_program()
    found = [path]
    for name, command in group.commands.items():
        is_group = hasattr(command, "commands")
        found += _verbs(command, (*path, name)) if is_group else [(*path, name)]
    return found


@pytest.mark.parametrize("verb", _verbs(), ids=" ".join)
def test_every_page_has_examples_fits_and_is_light(verb: tuple[str, ...]) -> None:
    code = (
        "import sys; from deepinfer_cli.main import main; code = main(sys.argv[1:]);"
        f"print(code, [name for name in {_SLOW} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *verb, "--help"], capture_output=True, text=True
    )
    assert done.stderr == "0 []\n"
    lines = done.stdout.splitlines()
    assert lines[0] and "…" not in done.stdout
    assert max(map(len, lines)) <= 80
    examples = lines.index("Examples:")
    assert examples <= 8 and lines[examples + 1].startswith("  ")
    assert "deepinfer" in lines[examples + 1]


def _options() -> list[tuple[tuple[str, ...], str]]:
    """Every option that takes a value, by its verb."""
    found = []
    for verb in _verbs():
        command: Any = make_program()
        for name in verb:
            command = command.commands[name]
        found += [
            (verb, name)
            for param in command.params
            if param.param_type_name == "option" and not param.is_flag
            for name in param.opts
        ]
    return found


def _usage_error(program: Any, words: list[str]) -> str:
    with pytest.raises(UsageError) as caught:
        program(words, prog_name="deepinfer", standalone_mode=False)
    return _usage_message(caught.value)


def test_an_option_without_its_value_names_its_own_page() -> None:
    """Likewise one whose value is empty, as that of a variable that is not set: as a path it would
    be the current folder."""
    program, options = make_program(), _options()
    assert len(options) > 100
    for verb, name in options:
        page = " ".join(["deepinfer", *verb, "--help"])
        message = f"option '{name}' requires an argument; see {page}"
        assert _usage_error(program, [*verb, name]) == message
        message = f"the value after {name} is empty; see {page}"
        assert _usage_error(program, [*verb, name, ""]) == message
        if name.startswith("--"):
            message = f"the value after {name}= is empty; see {page}"
            assert _usage_error(program, [*verb, f"{name}="]) == message


def test_an_empty_argument_is_told() -> None:
    program = make_program()
    for verb in ("run", "plan", "status", "report", "config init"):
        message = f"an argument is empty; see deepinfer {verb} --help"
        assert _usage_error(program, [*verb.split(), ""]) == message


def test_a_usage_error_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--model"]) == 2
    error = "deepinfer: option '--model' requires an argument; see deepinfer run --help\n"
    assert capfd.readouterr().err == error


@pytest.mark.parametrize(
    "arguments, advice",
    [
        (["run", "in.jsonl", "--dry-run"], "; deepinfer plan says what a run would do; see"),
        (["run", "a.jsonl", "b.jsonl"], "; join the inputs: cat A B | deepinfer run -; see"),
        (
            ["plan", "a.jsonl", "b.jsonl"],
            "; join the inputs: cat A B | deepinfer plan -; see",
        ),
        (["resume", "in.jsonl"], "; to resume a run, give its command again; see deepinfer --help"),
        (["statsu"], "; did you mean 'status'? See deepinfer --help"),
    ],
)
def test_a_usage_error_says_what_to_do_instead(
    capfd: pytest.CaptureFixture[str], arguments: list[str], advice: str
) -> None:
    assert main(arguments) == 2
    assert advice in capfd.readouterr().err


@pytest.mark.parametrize(
    "words, expected",
    [("deepinfer re", ["report"]), ("deepinfer plan --top-", ["--top-p", "--top-k"])],
)
def test_completion(command: list[str], words: str, expected: list[str]) -> None:
    environment = {
        **os.environ,
        "_DEEPINFER_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and set(expected) <= set(done.stdout.split())


def test_cron_gets_plain_lines(in_tmp: Path, command: list[str]) -> None:
    """No terminal, no HOME, no TERM: words on stdout, talk with a time on stderr."""
    Path("in.jsonl").write_text('{"prompt":"hello"}\n')
    done = subprocess.run(
        [*command, "report", "in.jsonl"],
        stdin=subprocess.DEVNULL, capture_output=True, env={"PATH": os.defpath},
    )  # fmt: skip
    assert done.returncode == 2 and done.stdout == b""
    assert done.stderr.startswith(b"deepinfer: no report of in.jsonl")
    run = subprocess.run(
        [*command, "run", "in.jsonl", "-o", "-"],
        stdin=subprocess.DEVNULL, capture_output=True, env={"PATH": os.defpath, "LC_ALL": "C"},
    )  # fmt: skip
    assert run.returncode == 0 and b"\x1b" not in run.stdout + run.stderr
    assert run.stdout.startswith(b'{"id"') and run.stderr[4:5] == b"-"


@pytest.mark.slow
def test_cron_gets_plain_lines_of_a_plan(in_tmp: Path, command: list[str]) -> None:
    Path("in.jsonl").write_text('{"prompt":"hello"}\n')
    plan = subprocess.run(
        [*command, "plan", "in.jsonl", "--calibrate", "0.1s"],
        stdin=subprocess.DEVNULL, capture_output=True, env={"PATH": os.defpath, "LC_ALL": "C"},
    )  # fmt: skip
    assert plan.returncode == 0 and b"\x1b" not in plan.stdout + plan.stderr
    assert plan.stdout.startswith(b"rows        1 in in.jsonl: prompt 1\n")
    assert plan.stderr[4:5] == b"-" and b"answering some rows" in plan.stderr
