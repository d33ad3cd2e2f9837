"""Token arrays on disk: compressed numpy arrays of documents."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
from training.batches import Tokens, split_documents

TOKEN_MAP = "token_map.npy"  # Engram's compressed ids, so that training needs no tokenizer


def save_tokens(path: Path, tokens: Tokens) -> None:
    with lzma.open(path, "wb", preset=1) as file:
        np.save(file, tokens)
    print(f"{path}: {len(tokens)} tokens, {path.stat().st_size / 1e6:.1f} MB", flush=True)


def load_documents(folder: Path, pattern: str) -> list[Tokens]:
    """The documents of all arrays ``<pattern>.npy.xz``, in name order."""
    paths = sorted(folder.glob(f"{pattern}.npy.xz"))
    if not paths:
        raise FileNotFoundError(f"{folder}: no {pattern}.npy.xz; create it with training.corpus")
    documents = []
    for path in paths:
        with lzma.open(path, "rb") as file:
            documents += split_documents(np.load(file))
    return documents
