"""Commands inside of sentences, tables and help pages: verbs, flags and files exist."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from deepinfer_cli.main import main

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROGRAMS = ("deepinfer", "python", "pytest", "pip", "torchrun", "srun", "./build.sh")
_VERBS = ("run", "status", "merge", "plan", "doctor", "report", "bench", "build", "config")
# Why a command in a sentence is run by no test, or what runs it.
_NOT_RUN = {
    r"pip install": "a package index",
    r"pytest": "it is a test itself",
    r"\./build\.sh": ".ci/run has the two that need no hardware",
    r"python docs/make_recording\.py": "minutes, and a font",
    r"python benchmarks/(two_gpus|eight_gpus|warm_start|constraint_gpu)\.py": "GPUs",
    r"python -m benchmarks\.constraint_gpu": "a GPU",
    r"python (-m |-P )?benchmarks[./](speculation|plan_accuracy|scaling_sim)": "a quiet half hour",
    r"python -P benchmarks/constraint_masks\.py": "a quiet machine",
    r"OMP_WAIT_POLICY|python -m benchmarks\.constraint_step": "a quiet machine",
    r"python benchmarks/(cpu_batching|engine_overhead|pipeline_overhead)": "test_benchmarks.py",
    r"python -P benchmarks/json_schema": "test_json_schema_conformance.py",
    r"deepinfer run examples/": "it writes beside the examples; ./build.sh --demo runs them",
    r"deepinfer bench": "tests/cli/test_bench.py has shorter ones",
    r"deepinfer build": "tests/build/test_build_verb.py has shorter ones",
    r"torchrun|srun": "a cluster",
}
_OF_SHELLS = re.compile(r"[|;&<>]|\$\(")


def _inline(document: Path) -> list[str]:
    """Commands in back quotes, and the examples of help pages."""
    text = document.read_text(encoding="utf-8")
    found = re.findall(r"`([^`\n]+)`", _FENCE.sub("", text))
    for language, block in _FENCE.findall(text):
        if language == "text":
            found += re.findall(r"^  (deepinfer .*)$", block, re.MULTILINE)
    return [code for code in found if code.split()[:1] and code.split()[0] in _PROGRAMS]


def _words(command: str) -> list[str]:
    """The words of its first program; what a comment or a pipe adds is left out."""
    first = _OF_SHELLS.split(command.split(" #")[0])[0]
    try:
        return shlex.split(first)
    except ValueError:  # a quote that the pipe cut
        return first.split()


@cache
def _help(*verb: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*verb, "--help"]) == 0
    return out.getvalue()


def _wrong(words: list[str], root: Path) -> str | None:
    program, rest = words[0], words[1:]
    if program == "deepinfer":
        return _wrong_verb(rest)
    files = [word for word in rest if re.fullmatch(r"[\w./-]+\.py|(?:tests|docs)/[\w./-]+", word)]
    if program == "python" and rest[:1] == ["-m"] and rest[1].startswith("benchmarks."):
        files.append(rest[1].replace(".", "/") + ".py")
    return next((f"no file {name}" for name in files if not (root / name).exists()), None)


def _wrong_verb(rest: list[str]) -> str | None:
    verb = [word for word in rest[:2] if re.fullmatch("[a-z]+", word)]
    if not verb:
        return None if not rest or rest[0].startswith("-") else f"no verb in {rest}"
    if verb[0] not in _VERBS:
        return f"no verb {verb[0]}"
    if verb[0] not in ("bench", "config"):
        verb = verb[:1]
    elif len(verb) == 2 and f"{verb[1]} " not in _help(verb[0]):
        return f"no verb {' '.join(verb)}"
    flags = re.findall(r"--?[\w-]+", _help(*verb).replace("[no-]", ""))
    asked = [word.split("=")[0] for word in rest if re.match(r"--?[a-z]", word)]
    known = {*flags, *(flag.replace("--", "--no-") for flag in flags)}
    return next((f"no flag {flag} of {verb}" for flag in asked if flag not in known), None)


def test_commands_in_sentences(document: Path, root: Path) -> None:
    for command in _inline(document):
        if "…" in command or " ... " in command:
            continue
        assert (wrong := _wrong(_words(command), root)) is None, f"`{command}`: {wrong}"


def _elsewhere(root: Path) -> str:
    """All blocks, whose commands other tests run, and the examples of help pages."""
    pages = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("training/*.md")]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    return "\n".join(block for text in texts for _, block in _FENCE.findall(text))


def test_each_is_run_or_says_what_it_needs(
    document: Path, root: Path, shell: Callable[..., str]
) -> None:
    elsewhere = _elsewhere(root)
    left = [
        command
        for command in dict.fromkeys(_inline(document))
        if len(command.split()) > 1 and command not in elsewhere
        if "…" not in command and " ... " not in command
        if not any(re.match(pattern, command) for pattern in _NOT_RUN)
        if command not in _VERBS and command.removeprefix("deepinfer ") not in _VERBS
    ]
    if left:
        # A run with an error row, for what is said about finished runs.
        shell("echo bad >> prompts.jsonl; deepinfer run prompts.jsonl -o answers.jsonl || true",
              fake=True)  # fmt: skip
    for command in left:
        named = re.sub(r"\b(RUN|FILE)(?!\.)\b", "answers.jsonl", command)
        assert shell(f"{named} || [ $? = 3 ]", fake=True) == ""


def test_blocks_with_commands_say_so(document: Path) -> None:
    """A block without a language is not run, so no command hides in one."""
    for language, block in _FENCE.findall(document.read_text(encoding="utf-8")):
        if language in ("", "text") and document.name != "cli.md":
            lines = [line for line in block.splitlines() if line.split()[:1] != []]
            assert not any(line.split()[0] in _PROGRAMS for line in lines), block
    for line in document.read_text(encoding="utf-8").splitlines():
        assert not re.match(rf"    (?:{'|'.join(map(re.escape, _PROGRAMS))}) ", line), line


@pytest.mark.parametrize(
    "command", ["deepinfer answer x", "deepinfer run x --colour", "pytest tests/none.py"]
)
def test_wrong_commands_are_found(command: str, root: Path) -> None:
    assert _wrong(_words(command), root) is not None
