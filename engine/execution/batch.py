"""Input and output of one forward pass: flat tokens of many requests at absolute positions.

Prefill chunks, decode steps and draft verification all have this form; they differ in the number of
tokens per request.  All cached state is addressed by absolute position (rings by
``position % ring_size``, blocks through the block table), so rejected drafts need no rollback: the
same positions are simply written again.  For the same reason a request may be in a batch twice with
the same tokens, or a token twice in its request, which is how batches are padded.

Everything that determines shapes is known on the host, so a pass never waits for its device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from .staging import send_all


@dataclass(frozen=True, slots=True)
class RingSave:
    """Tokens ``begin`` to ``end`` (exclusive) of a pass, which are consecutive ones of a request,
    leave their state also in the rings of ``slot``: the request's state before its next token."""

    begin: int
    end: int
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """T tokens of R requests.  The tokens of a request are consecutive and ascending in position.

    token_ids      [T] i64
    positions      [T] i64    absolute position of each token
    request_rows   [T] i64    row (0..R-1) of each token's request in the tensors below
    places         [T] i64    0 to T-1; for padding, the index of the repeated token
    query_lens     R ints     tokens per request, on the host
    context_lens   R ints     at least the position after each request's last token, on the host
    decoder_lens   R ints     tokens per request, the last ones, that the decoder layers compute
    block_table    [R, B] i64 blocks of the global KV; unused entries may be any block of the pool
    state_slots    [R] i64    slot of each request in the ring pools
    first          [R] i64    position of each request's first token here
    encoder_start  [R] i64    encoder window keys before this position do not exist
    decoder_start  [R] i64    decoder layers run from this position on; their window starts there
    write_start    [R] i64    global KV before this position is already cached: read, never written
    logit_rows     [N] i64    indices into the T tokens whose logits are wanted
    may_have_images           False if it is known that no token belongs to an image
    ring_saves                what the encoder layers also store in other slots
    piece_keys                split of a query's keys: this many per program, None: no split
    logits_out     [N, V] f32 buffer for the logits, None: the model allocates it
    """

    token_ids: Tensor
    positions: Tensor
    request_rows: Tensor
    places: Tensor
    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    decoder_lens: tuple[int, ...]
    block_table: Tensor
    state_slots: Tensor
    first: Tensor
    encoder_start: Tensor
    decoder_start: Tensor
    write_start: Tensor
    logit_rows: Tensor
    may_have_images: bool = True
    ring_saves: tuple[RingSave, ...] = ()
    piece_keys: int | None = None
    logits_out: Tensor | None = None

    @staticmethod
    def of(
        *,
        token_ids: ArrayLike,
        query_lens: Sequence[int],
        first: ArrayLike,
        block_table: Tensor | ArrayLike,
        state_slots: ArrayLike,
        encoder_start: ArrayLike,
        decoder_start: ArrayLike,
        write_start: ArrayLike,
        logit_rows: ArrayLike,
        ring_saves: Sequence[RingSave] = (),
        device: torch.device | str = "cpu",
        image_token_id: int | None = None,
    ) -> ForwardBatch:
        """A batch from the host's arrays for R requests; parameters are named like the fields.

        Raises: ValueError if ``logit_rows`` has a token that does not reach the decoder layers.
        """
        ids, lens, begins = _ints(token_ids), _ints(query_lens), _ints(first)
        ends, starts, wanted = begins + lens, _ints(decoder_start), _ints(logit_rows)
        rows = np.repeat(np.arange(len(lens)), lens)
        positions = begins[rows] + np.arange(len(rows)) - np.repeat(np.cumsum(lens) - lens, lens)
        if (positions[wanted] < starts[rows[wanted]]).any():
            raise ValueError("logits are requested for a token before its request's decoder_start")
        arrays = {
            "token_ids": ids,
            "positions": positions,
            "request_rows": rows,
            "places": np.arange(len(rows)),
            "state_slots": _ints(state_slots),
            "first": begins,
            "encoder_start": _ints(encoder_start),
            "decoder_start": starts,
            "write_start": _ints(write_start),
            "logit_rows": wanted,
        }
        if not isinstance(block_table, Tensor):
            arrays["block_table"] = _ints(block_table)
        tensors: dict[str, Any] = dict(send_all(arrays, device))
        if isinstance(block_table, Tensor):
            tensors["block_table"] = block_table
        return ForwardBatch(
            **tensors,
            query_lens=tuple(lens.tolist()),
            context_lens=tuple(ends.tolist()),
            decoder_lens=tuple(np.clip(ends - np.maximum(begins, starts), 0, None).tolist()),
            ring_saves=tuple(ring_saves),
            may_have_images=image_token_id is not None and bool((ids == image_token_id).any()),
        )


def _ints(values: ArrayLike) -> NDArray[np.int64]:
    return np.asarray(values, dtype=np.int64)


def last_tokens(query_lens: Sequence[int], counts: Sequence[int]) -> NDArray[np.int64]:
    """Indices, in a pass of these lengths, of each request's last ``counts[i]`` tokens."""
    ends = np.cumsum(_ints(query_lens))
    begins = ends - np.minimum(_ints(query_lens), _ints(counts))
    return np.concatenate([np.arange(b, e) for b, e in zip(begins, ends, strict=True)] or [ends])


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOutput:
    """logits       [N, V] f32          of the tokens ``logit_rows``
    main_hidden  [M, taps * d] bf16  input of the draft stages for the M tokens that ran through the
                                     decoder layers (``decoder_lens``)
    main_rows    [M] i64             indices of these M tokens in the batch
    """

    logits: Tensor
    main_hidden: Tensor
    main_rows: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOutput:
    """The first D drafts of a block for R requests: token_ids [R, D] i64, confidence [R, D] f32
    (after the sigmoid), and logits [R, D, V] f32 (with Markov bias) if they were requested."""

    token_ids: Tensor
    logits: Tensor | None
    confidence: Tensor
