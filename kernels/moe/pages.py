"""Rows of experts in pages: where ``route`` puts tokens, quantised, as soon as they have chosen."""

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
    """A page is a tile of rows.  A token that finds the pages of its expert full takes the next one
    of all, so that it need not wait until it is known how many tokens each expert gets.

    ``rows`` and, in their order, ``acts`` are what is filled.  Which pages an expert has differs
    each time, which does not reach the bits: see ``Slots``.

    numbers [any] i32: all of ``rows`` and the following.
    last_slot [E]: the last row that was taken of each expert, counted in its own pages.
    page [E, most pages of an expert]: the numbers of its pages.
    last_page [1]: the last page that was taken.
    """

    rows: ExpertRows
    acts: Activations
    numbers: Tensor
    last_slot: Tensor
    page: Tensor
    last_page: Tensor

    @property
    def preset(self) -> tuple[Tensor, int]:
        """As that of ``Slots``."""
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
        """For tokens [T, width] bf16 of as many choices, each of another expert."""
        from deepinfer.kernels.gemm.activations import Activations
        from deepinfer.kernels.launch import cdiv

        pairs, pages = tokens * choices, cdiv(tokens, tile_rows)
        tiles = ExpertRows.most_tiles(pairs, num_experts, tile_rows)
        assert tiles < 1 << 15 and num_experts < 1 << 16, "too many for one number"
        sizes = tiles * tile_rows, pairs, tiles, 1, 1, num_experts, num_experts * pages
        places = [cdiv(size, 4) * 4 for size in sizes]  # aligned, as kernels are compiled for
        numbers = torch.empty(sum(places), dtype=torch.int32, device=device)
        parts = zip(torch.split(numbers, places), sizes, strict=True)
        pair, row, expert, used, last, slot, page = (part[:size] for part, size in parts)
        rows = ExpertRows(pair, row, expert, used, choices, tile_rows, paged=True)
        acts = Activations.empty(len(pair), width, path, order, device)
        return Pages(rows, acts, numbers, slot, page.view(num_experts, pages), last)
