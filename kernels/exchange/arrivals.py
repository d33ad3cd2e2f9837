"""Tokens that other ranks sent, read in the receive buffer, and the return of their results."""

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
    """N tokens, ``most_tokens`` per rank: ``tokens`` of this one, those of others in ``buffers``.

    They are valid from ``receive_tokens`` until the end of the round.  Results go to ``results`` of
    the rank that a token came from, one row per (token, expert) pair, by stores over NVLink: by the
    epilogue of the last expert GEMM, or by ``send_back``.
    """

    buffers: Buffers
    tokens: Activations
    most_tokens: int

    def __len__(self) -> int:
        return self.buffers.layout.num_ranks * self.most_tokens

    def activations(self, path: MatrixPath, order: KOrder, rows: ExpertRows) -> Activations:
        """The tokens gathered in the order of ``rows``, with the same bytes as if
        ``quantize_activations`` had quantized them here."""
        from .triton_launch import gather_tokens_triton

        return gather_tokens_triton(self, rows, path, order)

    def send_back(self, outputs: Tensor, rows: ExpertRows) -> None:
        """Return outputs [R, d] bf16, the results of ``rows``, to the ranks of their tokens."""
        from .triton_launch import send_rows_triton

        send_rows_triton(self, outputs, rows)
