"""A pass's view of the global KV: the entries it writes, and the rows its queries may select."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from deepinfer.engine.cache.kv_cache import KVCache
from deepinfer.engine.execution.batch import ForwardBatch
from deepinfer.engine.execution.staging import send

from .rotary import Rotary, rope_key
from .schedule import LayerPlan

# A pass with this many tokens of a request copies its requests' entries out of the pool, if there
# are at most this many per token: they are then used many times, and kernels decode them once.
_LEAST_TOKENS = 128
_MOST_ROWS_PER_TOKEN = 32


@dataclass(frozen=True, kw_only=True, eq=False)
class NewEntries:
    """The compressed entries of one ratio that the T tokens of a pass complete.

    rows       [T] i64 in the flat pool; -1 if a token completes none, or its entry is cached
    positions  [T] i64 of the group's first token, whose rotary position the entry gets
    """

    rows: Tensor
    positions: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """The entries that later indexers may select from, for each of T tokens.

    blocks      [T, L] i64 blocks of entries, ascending, padded with -1
    num_places  [T] i64 how many of the entries in these blocks the token sees
    """

    blocks: Tensor
    num_places: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class GlobalKV:
    """Addresses in the block pools, and results of a pass's layers that later layers use.

    picks       index source layer -> [T, K] i64 rows of ``main_rows``, -1 = unused
    candidates  index source layer -> its candidate blocks
    """

    batch: ForwardBatch
    cache: KVCache
    rotary: Rotary
    picks: dict[int, Tensor] = field(default_factory=dict)
    candidates: dict[int, Candidates] = field(default_factory=dict)

    def new_entries(self, ratio: int) -> NewEntries:
        if ratio not in self._new_entries:
            self._new_entries[ratio] = self._find_new_entries(ratio)
        return self._new_entries[ratio]

    @cached_property
    def _new_entries(self) -> dict[int, NewEntries]:
        return {}

    def entry_rope(self, plan: LayerPlan) -> tuple[Tensor, Tensor]:
        """Rotary table for a producer's new entries, computed once for all that share it."""
        key = (plan.ratio, *rope_key(plan))
        if key not in self._entry_ropes:
            positions = self.new_entries(plan.ratio).positions
            self._entry_ropes[key] = self.rotary.table(plan, positions)
        return self._entry_ropes[key]

    @cached_property
    def _entry_ropes(self) -> dict[tuple[int, float, bool], tuple[Tensor, Tensor]]:
        return {}

    def _find_new_entries(self, ratio: int) -> NewEntries:
        batch = self.batch
        completes = (batch.positions + 1) % ratio == 0
        writable = batch.positions >= batch.write_start[batch.request_rows]
        entries = batch.positions.div(ratio, rounding_mode="floor")
        rows = self.rows_of(
            torch.where(completes & writable, entries, -1), batch.request_rows, ratio
        )
        return NewEntries(rows=rows, positions=entries * ratio)

    def main_rows(self, layer: int, ratio: int) -> Tensor:
        """Packed main entries [N, bytes] u8 of a producer, after it has written its new ones: the
        flat pool, or for prefill copies of the requests' blocks, request by request."""
        pool = self.cache.main[layer]
        if not self._has_copies(ratio):
            return pool.flatten(0, 1)
        if layer not in self._copies:
            self._copies.clear()  # no later layer reads an earlier producer
            table = self.batch.block_table
            blocks = [table[row, :count] for row, count in enumerate(self._num_blocks)]
            self._copies[layer] = pool[torch.cat(blocks)].flatten(0, 1)
        return self._copies[layer]

    def pick_table(self, ratio: int) -> Tensor:
        """Block table [R, B] i64 into ``main_rows``."""
        table = self.batch.block_table
        if not self._has_copies(ratio):
            return table
        counts = self._num_blocks
        if len(set(counts)) == 1:  # as in graphs, where nothing may be copied from the host
            first = torch.arange(len(counts), device=table.device) * counts[0]
        else:
            first = send(np.cumsum([0, *counts[:-1]]), table.device)
        return first[:, None] + torch.arange(table.shape[1], device=table.device)

    def _has_copies(self, ratio: int) -> bool:
        query_lens = self.batch.query_lens
        num_rows = sum(self._num_blocks) * (self.cache.block_size // ratio)
        is_prefill = max(query_lens, default=0) >= _LEAST_TOKENS
        return is_prefill and num_rows <= _MOST_ROWS_PER_TOKEN * sum(query_lens)

    @cached_property
    def _num_blocks(self) -> Sequence[int]:
        """Number of blocks of each request up to its last token."""
        return [-(-length // self.cache.block_size) for length in self.batch.context_lens]

    @cached_property
    def _copies(self) -> dict[int, Tensor]:
        return {}

    def rows_of(self, entries: Tensor, request_rows: Tensor, ratio: int) -> Tensor:
        """Rows in the flat pool of the given entries [n] of requests [n]; -1 stays -1."""
        per_block = self.cache.block_size // ratio
        blocks = self.batch.block_table[request_rows, entries.clamp(min=0) // per_block]
        return torch.where(entries < 0, -1, blocks * per_block + entries % per_block)
