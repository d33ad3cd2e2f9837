"""Resolves a model name to a folder: a path, or a Hub id in the local Hugging Face cache.

Path logic only; nothing here opens a network connection.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from deepinfer.errors import CheckpointError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def resolve_model_folder(model: Path | str) -> Path:
    """The checkpoint folder of ``model``: an existing folder, else a cached Hub id.

    Raises: CheckpointError that says how to download the model.
    """
    if not isinstance(model, Path | str):
        raise CheckpointError(f"model={model!r}: expected a path or a name")
    try:
        path = Path(model).expanduser()
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, RuntimeError) as error:  # too long a name; ~ of an unknown user
        raise CheckpointError(f"model {str(model)[:80]!r}: {error}"[:300]) from error
    if is_folder:
        return path
    if exists:
        raise CheckpointError(f"{path} is a file; expected the checkpoint folder that holds it")
    if not _HUB_ID.fullmatch(str(model)):
        raise CheckpointError(f"model folder {path} does not exist; check the path")
    return _cached_snapshot(str(model))


def hub_cache_folder() -> Path:
    """The cache folder by the Hugging Face rules."""
    if folder := os.environ.get("HF_HUB_CACHE"):
        return Path(folder).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "huggingface" / "hub"


def _cached_snapshot(hub_id: str) -> Path:
    repository = hub_cache_folder() / f"models--{hub_id.replace('/', '--')}"
    snapshots = repository / "snapshots"
    try:
        revision = (repository / "refs" / "main").read_text(encoding="utf-8").strip()
        candidates = [snapshots / revision] if revision else []
    except (OSError, UnicodeDecodeError):
        # Downloads of a fixed revision leave no ref; a single snapshot is still unambiguous.
        candidates = sorted(snapshots.iterdir()) if snapshots.is_dir() else []
    if len(candidates) == 1 and candidates[0].is_dir():
        return candidates[0]
    found = f"{len(candidates)} snapshots" if len(candidates) > 1 else "nothing"
    raise CheckpointError(
        f"{hub_id} is neither a folder nor in the Hugging Face cache (looked in {repository}, "
        f"found {found}); download it with `hf download {hub_id}` or give a folder"
    )
