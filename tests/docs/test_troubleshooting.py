"""Each message in docs/troubleshooting.md is one that the program can give."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_FOLDERS = ("deepinfer", "deepinfer_cli", "engine", "kernels", "recipes")
_ANY = "\0"


def _texts(root: Path) -> Iterator[str]:
    """Every string of the source, parts that are filled in as one NUL."""
    for path in (p for folder in _FOLDERS for p in (root / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.JoinedStr):
                parts = (
                    part.value if isinstance(part, ast.Constant) else _ANY for part in node.values
                )
                yield "".join(map(str, parts))


def _messages(root: Path) -> list[str]:
    text = (root / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


def test_every_message_is_in_the_source(root: Path) -> None:
    said = "\n".join(text.replace("\n", " ") for text in _texts(root))
    messages = _messages(root)
    unknown = []
    for message in messages:
        # What is filled in may be anything within one text.
        pattern = r"[^\n]*?".join(map(re.escape, message.strip("…").split("…")))
        if not re.search(pattern, said):
            unknown.append(message)
    assert len(messages) > 35 and unknown == []


def test_a_message_that_nobody_gives_is_found() -> None:
    assert not re.search("no such message at all", "\n".join(_texts(Path(__file__).parents[2])))
