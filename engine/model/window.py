"""The window rows that each token attends to, and where its own row is stored.

R requests, T tokens, W keys per token, B bytes per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.engine.execution.batch import RingSave

from .ring_writes import ring_writes


@dataclass(frozen=True, kw_only=True, eq=False)
class Copies:
    """Indices for a pass that copies rows out of the ring.

    previous     [R * (W - 1)] i64 into the flat ring: the rows before this pass, which come first
                 in the copy
    own_rows     [T] i64 in the copy: the rows of this pass's tokens
    newest_rows  [n] i64 in the copy: the rows to be written to the rings
    """

    previous: Tensor
    own_rows: Tensor
    newest_rows: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Window:
    """Reads and writes of one layer's ring, the same for all layers with the same start.

    read_index    [T, W] i64 into the rows that ``begin`` returns, oldest first, -1 = no such key
    write_index   [n] i64 into the flat ring: of all tokens, or with ``copies`` of the newest rows
    copies        set for a pass that writes fewer rows than it has (they would overwrite rows that
                  are still needed) or more (``ForwardBatch.ring_saves``)

    The position of a key in its list depends only on its distance to the token, so no result
    depends on how a prompt was chunked.
    """

    read_index: Tensor
    write_index: Tensor
    copies: Copies | None = None

    def begin(self, ring: Tensor) -> tuple[Tensor, Tensor]:
        """The rows that ``read_index`` refers to, [N, B] u8, and the indices at which to store the
        rows of the T tokens, [T] i64; call ``end`` afterwards.

        Shapes: ring [num_slots, ring_size, B] u8.
        """
        flat, copies = ring.view(-1, ring.shape[-1]), self.copies
        if copies is None:
            return flat, self.write_index
        before, own = copies.previous.shape[0], copies.own_rows
        rows = flat.new_empty(before + own.shape[0], flat.shape[1])
        torch.index_select(flat, 0, copies.previous, out=rows[:before])
        return rows, own

    def end(self, ring: Tensor, rows: Tensor) -> None:
        """Store the newest rows in the rings, if they are not there already."""
        if self.copies is not None:
            newest = rows.index_select(0, self.copies.newest_rows)
            ring.view(-1, ring.shape[-1]).index_copy_(0, self.write_index, newest)


def causal_window(
    *,
    positions: Tensor,
    request_rows: Tensor,
    first: Tensor,
    start: Tensor,
    slots: Tensor,
    query_lens: Sequence[int],
    ring_saves: Sequence[RingSave] = (),
    width: int,
    ring_size: int,
) -> Window:
    """The last ``width`` positions up to and including each token's own, but not before its
    request's ``start``.

    Shapes: positions, request_rows [T]; first [R]: first position of this pass; start, slots [R];
    query_lens R ints: tokens of each request in this pass.
    A short pass writes first and then reads everything from the ring.  In a long pass new rows
    would overwrite old ones that are still needed, so the old ones are copied out first.
    """
    token_slots, token_first = slots[request_rows], first[request_rows]
    lookback = torch.arange(width - 1, -1, -1, device=positions.device)
    keys = positions[:, None] - lookback
    absent = keys < start.clamp(min=0)[request_rows][:, None]
    ring_base = token_slots * ring_size
    if not ring_saves and max(query_lens, default=0) + width - 1 <= ring_size:
        read_index = ring_base[:, None] + keys % ring_size
        return Window(
            read_index=read_index.masked_fill_(absent, -1),
            write_index=ring_base + positions % ring_size,
        )
    num_before = width - 1
    tokens = torch.arange(len(positions), device=positions.device)
    own_rows = len(slots) * num_before + tokens
    in_pass = own_rows[:, None] - lookback
    before = request_rows[:, None] * num_before + num_before + keys - token_first[:, None]
    read_index = torch.where(keys >= token_first[:, None], in_pass, before)
    old = first[:, None] - num_before + torch.arange(num_before, device=positions.device)
    newest, newest_slots = ring_writes(token_slots, query_lens, ring_saves, ring_size)
    places, newest_rows = positions % ring_size, own_rows
    if newest is not None:
        places, newest_rows = places[newest], own_rows[newest]
    return Window(
        read_index=read_index.masked_fill_(absent, -1),
        write_index=newest_slots * ring_size + places,
        copies=Copies(
            previous=(slots[:, None] * ring_size + old % ring_size).flatten(),
            own_rows=own_rows,
            newest_rows=newest_rows,
        ),
    )


def block_window(
    *, anchors: Tensor, start: Tensor, slots: Tensor, block_size: int, width: int, ring_size: int
) -> Window:
    """For drafting: every token of a block attends to ``width`` earlier positions and to the whole
    block.

    Shapes: anchors [R] position of each block's first token, start [R], slots [R]; the T tokens
    are R blocks of ``block_size``.  The block's rows are stored in the ring at their positions,
    where verified tokens will overwrite them.
    """
    reach = torch.arange(-width, block_size, device=anchors.device)
    keys = anchors[:, None] + reach
    read_index = slots[:, None] * ring_size + keys % ring_size
    read_index = read_index.masked_fill_(keys < start.clamp(min=0)[:, None], -1)
    return Window(
        read_index=read_index.repeat_interleave(block_size, dim=0),
        write_index=(slots[:, None] * ring_size + keys[:, width:] % ring_size).flatten(),
    )
