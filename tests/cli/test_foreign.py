"""Files of other kinds are refused as a whole, with what to do; rows that only begin so are not."""

from __future__ import annotations

import bz2
import io
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
_ROWS = b'{"prompt":"a"}\n' * 50


def _zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("in.jsonl", _ROWS)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "data, words",
    [
        (_zip(), "a zip archive"),
        (lzma.compress(_ROWS), "xz -dc FILE | deepinfer run -"),
        (bz2.compress(_ROWS), "bzip2 -dc FILE | deepinfer run -"),
        (_ROWS.decode().encode("utf-16"), "iconv -f UTF-16 -t UTF-8"),
        (b"%PDF-1.7\n", "a PDF"),
    ],
    ids=["zip", "xz", "bz2", "utf-16", "pdf"],
)
@pytest.mark.parametrize("name", ["in.jsonl", "in.csv"])
def test_other_kinds_of_files(cli: Cli, data: bytes, words: str, name: str) -> None:
    Path(name).write_bytes(data)
    for verb in (("run", name, "-o", "out.jsonl"), ("plan", name, "--calibrate", "0")):
        done = cli(*verb)
        assert (done.exit_code, words in done.err) == (4, True), done.err
    assert [path.name for path in Path().iterdir()] == [name]


@pytest.mark.parametrize("line", [b"BZhello", b"PK", b"%PDF", b"\xff", b"7z"])
def test_a_first_row_that_looks_a_little_like_one(cli: Cli, line: bytes) -> None:
    Path("in.jsonl").write_bytes(line + b"\n" + _ROWS)
    assert cli("run", "in.jsonl", "-o", "out.jsonl").exit_code == 3
    assert Path("out.jsonl").read_bytes().count(b"\n") == 50
