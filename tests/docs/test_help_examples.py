"""The examples of help pages work as they are written, one after the other."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

_NEEDS = (
    (r"/models/|cuda", "needs the released checkpoint, or a GPU"),
    (r"^watch ", "needs somebody who stops it"),
    (r"^deepinfer build", "needs minutes of compiling; tests/build has shorter ones"),
    (r"^deepinfer bench", "needs minutes; tests/cli/test_bench.py has shorter ones"),
    (r"/var/lib/", "needs a folder of node_exporter"),
)
_REAL = r"^deepinfer (plan|doctor)"
_VERBS = ("", "run", "status", "merge", "plan", "doctor", "report", "config show", "config init")
# What the examples of a verb begin with.
_BEFORE = {
    "": "deepinfer run prompts.jsonl && rm prompts.out.jsonl*",
    "status": "for name in prompts.out answers; do"
    " deepinfer run prompts.jsonl -o $name.jsonl; done",
    "plan": "deepinfer run prompts.jsonl -o yesterday.jsonl",
    "report": "for name in answers monday tuesday; do"
    " deepinfer run prompts.jsonl -o $name.jsonl; done",
}


def _examples(page: str, verb: str) -> list[str]:
    title = f"## deepinfer {verb}".strip()
    section = page.split(f"{title}\n", 1)[1].split("\n## ", 1)[0]
    block = section.split("Examples:\n", 1)[1].split("\n\n", 1)[0]
    return [line.strip() for line in block.splitlines()]


def _faults(verb: str, root: Path, shell: Callable[..., str], work: Path, *, fake: bool) -> str:
    """What went wrong in those examples of the verb that can be run here."""
    (work / "qa.csv").write_text("question,answer\nWho are you?,an owl\n")
    shutil.copy(work / "prompts.jsonl", work / "in.jsonl")
    pq.write_table(pa.table({"prompt": ["Hi"]}), work / "prompts.parquet")
    examples = _examples((root / "docs" / "cli.md").read_text(encoding="utf-8"), verb)
    assert len(examples) >= 2
    faults = shell(before, fake=fake) if (before := _BEFORE.get(verb)) else ""
    for line in examples:
        is_left_out = any(re.search(pattern, line) for pattern, _ in _NEEDS)
        program = re.search(r"\| (jq|less)", line)
        has_programs = program is None or shutil.which(program[1]) is not None
        if not is_left_out and has_programs and not (fake and re.search(_REAL, line)):
            faults += shell(line, fake=fake)
    return faults


@pytest.mark.parametrize("verb", _VERBS)
def test_examples_with_an_engine_that_echoes(
    verb: str, root: Path, shell: Callable[..., str], tmp_path: Path
) -> None:
    assert _faults(verb, root, shell, tmp_path / "work", fake=True) == ""


@pytest.mark.slow
@pytest.mark.parametrize("verb", _VERBS)
def test_examples_with_the_real_engine(
    verb: str, root: Path, shell: Callable[..., str], tmp_path: Path
) -> None:
    assert _faults(verb, root, shell, tmp_path / "work", fake=False) == ""
