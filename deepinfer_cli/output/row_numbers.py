"""Which row a result is: said in the result itself where its place in the file does not."""

from __future__ import annotations

import dataclasses
import re

from .journal import Record

_NUMBERED = re.compile(rb'\{"row": ?(\d{1,18}), ?')


def numbered(record: Record) -> Record:
    """``record`` with ``row`` as the first field of a result; an error row has one already."""
    if record.is_error:
        return record
    payload = b'{"row": %d, %b' % (record.index, record.payload[1:])
    return dataclasses.replace(record, payload=payload)


def split_number(payload: bytes) -> tuple[int | None, bytes]:
    """The row that ``numbered`` wrote into a result, and the result without it."""
    match = _NUMBERED.match(payload)
    return (None, payload) if match is None else (int(match[1]), b"{" + payload[match.end() :])
