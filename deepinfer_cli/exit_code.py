"""The exit code of an error that ends a verb."""

from __future__ import annotations

import errno

# Errors of a file's name, place or permissions, which a retry does not fix.
_WRONG_PLACE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG}
_WRONG_PLACE |= {errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EEXIST}


def exit_code(error: BaseException) -> int:
    """The error's own code; else 2 for a path that cannot be used, and 1 for a failure."""
    if isinstance(error, OSError) and error.errno in _WRONG_PLACE:
        return 2
    code: int = getattr(error, "exit_code", 1)
    return code
