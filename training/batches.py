"""Packs documents into rows of fixed length, with the masks that the model needs.

Documents of a row do not attend to each other.  Each starts at a multiple of ``ALIGNMENT``, so that token pairs and
candidate blocks are aligned as in a document on its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNMENT = 8
BOS, PAD, SYSTEM, USER, ASSISTANT = 0, 2, 3, 4, 5
PROMPT_WEIGHT = 0.2
DOCUMENTS_AT_ONCE = 2048

Tokens = NDArray[np.uint16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """B rows of T tokens.

    tokens    [B, T] i64
    starts    [B, T] i64  row index of the first token of each token's document
    segments  [B, T] i64  first row index that a decoder layer's window may include; the document's
                          start, or a later position at which bounded replay starts
    weights   [B, T] f32  loss weights of predicting the next token; 0 at a document's end and on padding
    """

    tokens: Tensor
    starts: Tensor
    segments: Tensor
    weights: Tensor

    def to(self, device: torch.device) -> Batch:
        return Batch(
            tokens=self.tokens.to(device, non_blocking=True),
            starts=self.starts.to(device, non_blocking=True),
            segments=self.segments.to(device, non_blocking=True),
            weights=self.weights.to(device, non_blocking=True),
        )


def split_documents(stream: Tokens) -> list[Tokens]:
    """The documents of a corpus array; each starts with BOS."""
    return np.split(stream, np.flatnonzero(stream == BOS)[1:])


def pack_rows(
    documents: list[Tokens], length: int, generator: np.random.Generator
) -> list[list[Tokens]]:
    """Pack shuffled documents into rows of at most ``length`` padded tokens; longer ones are truncated.

    First fit: a row takes the first of the next 64 documents that still fits.
    """
    order = generator.permutation(len(documents)).tolist()
    rows, waiting = [], [documents[i][:length] for i in reversed(order)]
    while waiting:
        row, room = [], length
        while True:
            window = range(len(waiting) - 1, max(-1, len(waiting) - 65), -1)
            fitting = next((i for i in window if padded_length(waiting[i]) <= room), None)
            if fitting is None:
                break
            room -= padded_length(waiting[fitting])
            row.append(waiting.pop(fitting))
        rows.append(row)
    return rows


def padded_length(document: Tokens) -> int:
    return -(-len(document) // ALIGNMENT) * ALIGNMENT


def make_batch(
    rows: list[list[Tokens]], length: int, generator: np.random.Generator, replay_share: float
) -> Batch:
    """A fraction ``replay_share`` of the documents gets a random position at which bounded replay starts."""
    shape = len(rows), length
    tokens = np.full(shape, PAD, dtype=np.int64)
    starts = np.tile(np.arange(length), (len(rows), 1))  # padding is a document of its own
    segments = starts.copy()
    weights = np.zeros(shape, dtype=np.float32)
    for i, row in enumerate(rows):
        begin = 0
        for document in row:
            part = slice(begin, begin + len(document))
            tokens[i, part] = document
            starts[i, part] = segments[i, part] = begin
            weights[i, begin : part.stop - 1] = answer_weights(document)[1:]
            if generator.random() < replay_share and len(document) > 2:
                replay = begin + int(generator.integers(1, len(document) - 1))
                segments[i, replay : part.stop] = replay
            begin += padded_length(document)
    arrays = (torch.from_numpy(a) for a in (tokens, starts, segments, weights))
    return Batch(**dict(zip(("tokens", "starts", "segments", "weights"), arrays, strict=True)))


def answer_weights(document: Tokens) -> NDArray[np.float32]:
    """[tokens] loss weight of each token as a target: prompts and user turns count less."""
    is_marker = np.isin(document, (BOS, SYSTEM, USER, ASSISTANT))
    latest = np.maximum.accumulate(np.where(is_marker, np.arange(len(document)), 0))
    asks = np.isin(document[latest], (SYSTEM, USER))
    return np.where(asks, PROMPT_WEIGHT, 1.0).astype(np.float32)


def endless_batches(
    documents: list[Tokens], *, length: int, tokens_per_batch: int, seed: int, replay_share: float
) -> Iterator[Batch]:
    """Endless batches of ``tokens_per_batch`` tokens, in a new order each epoch."""
    generator = np.random.default_rng(seed)
    num_rows = tokens_per_batch // length
    rows: list[list[Tokens]] = []
    for chunk in _endless_chunks(len(documents), generator):
        rows += pack_rows([documents[i] for i in chunk], length, generator)
        while len(rows) >= num_rows:
            yield make_batch(rows[:num_rows], length, generator, replay_share)
            rows = rows[num_rows:]


def _endless_chunks(count: int, generator: np.random.Generator) -> Iterator[list[int]]:
    """Shuffled document indices, a few thousand at a time, epoch after epoch."""
    while True:
        order = generator.permutation(count)
        for start in range(0, count, DOCUMENTS_AT_ONCE):
            yield order[start : start + DOCUMENTS_AT_ONCE].tolist()
