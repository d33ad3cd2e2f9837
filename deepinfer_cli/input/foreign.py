"""Refuses files of other formats, recognized by their first bytes."""

from __future__ import annotations

import re

from deepinfer.errors import InputError

LONGEST_MAGIC = 10
_KINDS = (
    (rb"PK\x03\x04", "a zip archive (so are .xlsx and .npz)", "unpack it, or export it as CSV"),
    (rb"\xfd7zXZ\x00", "compressed by xz", "give it through a pipe: xz -dc FILE | deepinfer run -"),
    (rb"BZh[1-9]1AY&SY", "compressed by bzip2", "give it through a pipe: bzip2 -dc FILE | "
     "deepinfer run -"),
    (rb"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it"),
    (rb"%PDF-", "a PDF", "take its text out first"),
    (rb"\xff\xfe\x00\x00", "text in UTF-32", "convert it: iconv -f UTF-32 -t UTF-8"),
    (rb"\xff\xfe|\xfe\xff", "text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"),
)  # fmt: skip


def refuse_foreign(head: bytes, name: str) -> None:
    """Raise InputError if ``head``, the first bytes of ``name``, belong to another format."""
    for magic, what, remedy in _KINDS:
        if re.match(magic, head):
            raise InputError(f"{name} is {what}; {remedy}")
