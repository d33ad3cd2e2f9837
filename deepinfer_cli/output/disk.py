"""The error for a full disk, which says how much space the run still needs."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from deepinfer.errors import EngineError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class DiskFullError(EngineError):
    """There is no space for the results.  Finished rows are kept."""


def disk_full(error: OSError, folder: Path, needed_bytes: int | None) -> DiskFullError | None:
    """The error to show if ``error`` is about a full disk, a quota or a limit on file sizes.

    needed_bytes: what the rest of the run will write, if known.
    """
    if error.errno not in _FULL:
        return None
    reason = (error.strerror or "the disk is full").lower()
    need = "" if needed_bytes is None else f", about {_mb(needed_bytes)} more are needed"
    return DiskFullError(f"{reason}: {folder} has {_free(folder)} free{need}; free some space")


def _free(folder: Path) -> str:
    try:
        return _mb(shutil.disk_usage(folder).free)
    except OSError:
        return "an unknown number of bytes"


def _mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:,.1f} MB"
