"""Which model answered: a digest of its files that does not read hundreds of gigabytes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_WHOLE_BYTES = 64 * 2**20
_END_BYTES = 2**20
_SUFFIXES = {".json", ".safetensors"}


def model_fingerprint(folder: Path) -> str | None:
    """16 hex digits over name and size of each weight and JSON file, and its bytes.

    Of a file above 64 MiB only the first and last MiB count, where the header with all names and
    places is.  None if the folder cannot be read.
    """
    digest = hashlib.blake2b(digest_size=8)
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES)
        for path in paths:
            size = path.stat().st_size
            digest.update(f"{path.name}\0{size}\0".encode())
            with path.open("rb") as file:
                digest.update(file.read(size if size <= _WHOLE_BYTES else _END_BYTES))
                if size > _WHOLE_BYTES:
                    file.seek(-_END_BYTES, os.SEEK_END)
                    digest.update(file.read())
    except OSError:
        return None
    return digest.hexdigest()
