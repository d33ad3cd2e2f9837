"""Identifies a model by digests of its files, without reading hundreds of gigabytes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

_WHOLE_BYTES = 64 * 2**20
_END_BYTES = 2**20
_SUFFIXES = {".json", ".safetensors"}


def model_files(folder: Path) -> dict[str, str]:
    """16 hex digits for each weight and JSON file, from its size and content.

    Of files above 64 MiB only the first and last MiB are read, which includes the header with all
    names and offsets.  Raises: OSError if the folder cannot be read.
    """
    paths = sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES)
    return {path.name: _digest(path) for path in paths}


def model_fingerprint(folder: Path) -> str | None:
    """16 hex digits over all of ``model_files``; None if the folder cannot be read."""
    try:
        return fingerprint(model_files(folder))
    except OSError:
        return None


def fingerprint(files: Mapping[str, str]) -> str:
    """16 hex digits over names and digests."""
    digest = hashlib.blake2b(digest_size=8)
    for name, file_digest in files.items():
        digest.update(f"{name}\0{file_digest}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _digest(path: Path) -> str:
    size = path.stat().st_size
    digest = hashlib.blake2b(f"{size}\0".encode(), digest_size=8)
    with path.open("rb") as file:
        digest.update(file.read(size if size <= _WHOLE_BYTES else _END_BYTES))
        if size > _WHOLE_BYTES:
            file.seek(-_END_BYTES, os.SEEK_END)
            digest.update(file.read())
    return digest.hexdigest()
