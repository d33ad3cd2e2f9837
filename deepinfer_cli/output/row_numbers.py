"""Row numbers in results, for files that are not in input order."""

from __future__ import annotations

import dataclasses
import re

from .journal import Record

_NUMBERED = re.compile(rb'\{"row": ?(\d{1,18}), ?')


def numbered(record: Record) -> Record:
    """``record`` with ``row`` as the first field of a result; error rows have it already."""
    if record.is_error:
        return record
    payload = b'{"row": %d, %b' % (record.index, record.payload[1:])
    return dataclasses.replace(record, payload=payload)


def split_number(payload: bytes) -> tuple[int | None, bytes]:
    """The row number that ``numbered`` added to a result, and the result without it."""
    match = _NUMBERED.match(payload)
    return (None, payload) if match is None else (int(match[1]), b"{" + payload[match.end() :])
