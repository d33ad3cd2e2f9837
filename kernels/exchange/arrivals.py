"""Tokens that other ranks sent, read where they landed, and the way back for their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from .buffers import Buffers

if TYPE_CHECKING:
    from deepinfer.kernels.gemm.activations import Activations
    from deepinfer.kernels.gemm.expert_rows import ExpertRows
    from deepinfer.kernels.gemm.k_order import KOrder
    from deepinfer.kernels.gemm.matrix_path import MatrixPath


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """N tokens, ``most_tokens`` of each rank: ``tokens`` of this one, the others in ``buffers``.

    They are there after ``receive_tokens`` and until the round ends.  Results go to the ``results``
    of the rank that a token came from, a row for each choice, by stores through NVLink: the product
    that makes them does that itself, or ``send_back``.
    """

    buffers: Buffers
    tokens: Activations
    most_tokens: int

    def __len__(self) -> int:
        return self.buffers.layout.num_ranks * self.most_tokens

    def activations(self, path: MatrixPath, order: KOrder, rows: ExpertRows) -> Activations:
        """What ``quantize_activations`` would give for the tokens themselves: the same bytes."""
        from .triton_launch import gather_tokens_triton

        return gather_tokens_triton(self, rows, path, order)

    def send_back(self, outputs: Tensor, rows: ExpertRows) -> None:
        """outputs [R, d] bf16, the results of ``rows``, to where they belong."""
        from .triton_launch import send_rows_triton

        send_rows_triton(self, outputs, rows)
