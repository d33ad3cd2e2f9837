"""Paged rows of experts: ``route`` stores quantized tokens there as soon as it has selected
experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepinfer.kernels.gemm.expert_rows import ExpertRows

if TYPE_CHECKING:
    from deepinfer.kernels.gemm.activations import Activations
    from deepinfer.kernels.gemm.k_order import KOrder
    from deepinfer.kernels.gemm.matrix_path import MatrixPath


@dataclass(frozen=True, slots=True, eq=False)
class Pages:
    """A page is a tile of rows.  A token that finds the pages of its expert full allocates the next
    free page, so that rows are known without counting the tokens of all experts first.

    The outputs are ``rows`` and, in their order, ``acts``.  The pages of an expert may differ from
    run to run, which does not change the bits: see ``Slots``.

    numbers [any] i32: one allocation for all of ``rows`` and the following.
    last_slot [E]: the last slot taken of each expert, counted over its own pages.
    page [E, maximum pages per expert]: page numbers of each expert.
    last_page [1]: the last page allocated.
    """

    rows: ExpertRows
    acts: Activations
    numbers: Tensor
    last_slot: Tensor
    page: Tensor
    last_page: Tensor

    @property
    def preset(self) -> tuple[Tensor, int]:
        """See ``Slots.preset``."""
        return self.numbers, -1

    @staticmethod
    def empty(
        tokens: int,
        choices: int,
        num_experts: int,
        tile_rows: int,
        width: int,
        path: MatrixPath,
        order: KOrder,
        device: torch.device,
    ) -> Pages:
        """For tokens [T, width] bf16 with ``choices`` different experts each."""
        from deepinfer.kernels.gemm.activations import Activations
        from deepinfer.kernels.launch import cdiv

        pairs, pages = tokens * choices, cdiv(tokens, tile_rows)
        tiles = ExpertRows.most_tiles(pairs, num_experts, tile_rows)
        assert tiles < 1 << 15 and num_experts < 1 << 16, "tile and expert must fit into an i32"
        sizes = tiles * tile_rows, pairs, tiles, 1, 1, num_experts, num_experts * pages
        places = [
            cdiv(size, 4) * 4 for size in sizes
        ]  # to 16 bytes: kernels are specialized for it
        numbers = torch.empty(sum(places), dtype=torch.int32, device=device)
        parts = zip(torch.split(numbers, places), sizes, strict=True)
        pair, row, expert, used, last, slot, page = (part[:size] for part, size in parts)
        rows = ExpertRows(pair, row, expert, used, choices, tile_rows, paged=True)
        acts = Activations.empty(len(pair), width, path, order, device)
        return Pages(rows, acts, numbers, slot, page.view(num_experts, pages), last)
