"""Tokens that other ranks sent, read where they landed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from .layout import ExchangeLayout

if TYPE_CHECKING:
    from deepinfer.kernels.gemm.activations import Activations
    from deepinfer.kernels.gemm.expert_rows import ExpertRows
    from deepinfer.kernels.gemm.k_order import KOrder
    from deepinfer.kernels.gemm.matrix_path import MatrixPath


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """N tokens, ``most_tokens`` of each rank, in ``own`` [num_bytes] u8, this rank's buffer.

    They are there after ``receive_tokens`` and until results were sent back.
    """

    layout: ExchangeLayout
    own: Tensor
    most_tokens: int

    def __len__(self) -> int:
        return self.layout.num_ranks * self.most_tokens

    def activations(self, path: MatrixPath, order: KOrder, rows: ExpertRows) -> Activations:
        """What ``quantize_activations`` would give for the tokens themselves: the same bytes."""
        from .triton_launch import gather_tokens_triton

        return gather_tokens_triton(self.layout, self.own, self.most_tokens, rows, path, order)
