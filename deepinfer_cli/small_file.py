"""Reads small files with a size limit: a device, or data given by mistake, must not fill memory."""

from __future__ import annotations

import errno
from pathlib import Path

_MOST_BYTES = 64 * 2**20


def read_small(path: Path) -> bytes:
    """The content of ``path``, which may be a pipe.  Raises: OSError, also above 64 MiB."""
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise OSError(errno.EFBIG, f"more than {_MOST_BYTES // 2**20} MiB", str(path))
    return data
