"""What one forward pass gets and returns: flat tokens of many requests at absolute positions.

Prefill chunks, decode steps and draft verification are all this one thing; they differ in how many
tokens a request brings.  Every cached state is addressed by absolute position (rings by
``position % ring_size``, blocks through the block table), so nothing has to be undone when drafts
are rejected: the same positions are simply written again.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """T tokens of R requests.  The tokens of a request are consecutive and ascending in position.

    token_ids      [T] i64
    positions      [T] i64    absolute position of each token
    request_rows   [T] i64    row (0..R-1) of each token's request in the tensors below
    query_lens     R ints     tokens per request, on the host
    context_lens   R ints     position after each request's last token here, on the host
    block_table    [R, B] i32 blocks of the global KV; entries past a request's need are unspecified
    state_slots    [R] i64    slot of each request in the ring pools
    encoder_start  [R] i64    encoder window keys before this position do not exist
    decoder_start  [R] i64    decoder layers run from this position on; their window starts there
    write_start    [R] i64    global KV before this position is already cached: read, never written
    logit_rows     [N] i64    indices into the T tokens whose logits are wanted
    """

    token_ids: Tensor
    positions: Tensor
    request_rows: Tensor
    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    block_table: Tensor
    state_slots: Tensor
    encoder_start: Tensor
    decoder_start: Tensor
    write_start: Tensor
    logit_rows: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOutput:
    """logits [N, V] f32 for ``logit_rows``.

    main_hidden [M, taps * d] bf16 and main_rows [M] i64: the draft stages' input for the M tokens
    that went through the decoder layers, and their indices into the T tokens.
    """

    logits: Tensor
    main_hidden: Tensor
    main_rows: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOutput:
    """token_ids [R, B] i64, logits [R, B, V] f32 (Markov bias included), confidence [R, B] f32
    (after the sigmoid): the drafts of one block for R requests."""

    token_ids: Tensor
    logits: Tensor
    confidence: Tensor
