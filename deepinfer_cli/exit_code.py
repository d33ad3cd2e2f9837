"""The exit code of an error that ends a verb."""

from __future__ import annotations

import errno

# What is wrong with a file's name, its place or its rights: no second try mends it.
_WRONG_PLACE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG}
_WRONG_PLACE |= {errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EEXIST}


def exit_code(error: BaseException) -> int:
    """Its own; else 2 where a place that the user gave cannot be used, and 1 for a failure."""
    if isinstance(error, OSError) and error.errno in _WRONG_PLACE:
        return 2
    code: int = getattr(error, "exit_code", 1)
    return code
