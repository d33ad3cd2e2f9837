"""The documents of this tree, and a folder with a ``deepinfer`` command to try their commands in.

A document's commands are its fenced ``sh`` and ``bash`` blocks.  A comment before a block says how
it is taken (it is not shown to readers):

    <!-- setup: COMMAND -->       run before the block, to make what the block starts from
    <!-- slow: REASON -->         only with the real engine (``pytest -m slow``)
    <!-- not run: REASON -->      needs hardware, a cluster or a network that a test has not
    <!-- run by .ci/run -->       the two commands that CI is made of
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARKS = re.compile(r"((?:^<!-- [^\n]* -->\n)+)\Z", re.MULTILINE)
_MARK = re.compile(r"<!-- (setup|slow|not run|run by)(?:: | )([^\n]*) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block of a document.  ``marks`` are (kind, text) pairs of the comments before it."""

    document: Path
    line: int
    language: str
    text: str
    marks: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"

    def marked(self, kind: str) -> list[str]:
        return [text for found, text in self.marks if found == kind]


def documents() -> list[Path]:
    """Every Markdown file that people read; the changelog tells of the past and is left out."""
    places = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob(".github/**/*.md")]
    places += [ROOT / "training" / "README.md", ROOT / "recipes" / "tiny" / "MODEL_CARD.md"]
    return sorted(place for place in places if place.name != "CHANGELOG.md")


def blocks(document: Path) -> Iterator[Block]:
    text = document.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        before = _MARKS.search(text[: found.start()])
        marks = tuple(_MARK.findall(before[1])) if before else ()
        line = text.count("\n", 0, found.start()) + 1
        yield Block(document, line, found[1], found[2], marks)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "document" in metafunc.fixturenames:
        pages = documents()
        metafunc.parametrize("document", pages, ids=[str(p.relative_to(ROOT)) for p in pages])
    for language, names in {
        "commands": ("sh", "bash"),
        "script": ("python",),
        "json_block": ("json",),
    }.items():
        if language in metafunc.fixturenames:
            found = [b for p in documents() for b in blocks(p) if b.language in names]
            metafunc.parametrize(language, found, ids=[block.name for block in found])


@pytest.fixture
def root() -> Path:
    return ROOT


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Nothing of the user's: an empty home, and this checkout."""
    (tmp_path / "home").mkdir()
    return {
        "HOME": str(tmp_path / "home"),
        "PATH": f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.defpath}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "LANG": "C.UTF-8",
    }


@pytest.fixture
def shell(tmp_path: Path, environment: dict[str, str]) -> Callable[..., str]:
    """``shell(text, fake=True)`` runs commands in a folder with sample files, as a reader would,
    and says what went wrong: "" if they ended with 0.

    ``deepinfer`` is the real program, or the program with an engine that echoes its prompts.
    """
    work, programs = tmp_path / "work", tmp_path / "bin"
    work.mkdir()
    programs.mkdir()
    for name in ("examples", "docs", "benchmarks", "tests"):
        (work / name).symlink_to(ROOT / name)
    columns = {"question": ["Who are you?", "What color is the sky?"]}
    pq.write_table(pa.table(columns), work / "qa.parquet")
    (work / "prompts.jsonl").write_text(
        '{"prompt": "Who are you?", "max_tokens": 8}\n'
        '{"prompt": "What color is the sky?", "max_tokens": 8}\n'
        '{"prompt": "Count from 1 to 3.", "max_tokens": 8}\n'
    )

    def call(text: str, *, fake: bool) -> str:
        entry = f"{ROOT}/tests/cli/fake_engine.py" if fake else "-P -m deepinfer_cli.main"
        program = programs / "deepinfer"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {entry} "$@"\n')
        program.chmod(0o755)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=280,
        )
        if done.returncode == 0:
            return ""
        return f"{text}\nexit code {done.returncode}\n{done.stderr[-3000:]}"

    return call
