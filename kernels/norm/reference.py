"""RMS norm in plain torch: the specification."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from deepinfer.kernels.numeric import inverse_rms

if TYPE_CHECKING:
    from deepinfer.kernels.gemm.activations import Activations


class NormedRows(NamedTuple):
    """Rows [T, D] bf16 after a norm, and the ``operand`` for ``quantized_linear``: on a GPU the
    rows quantized in the same pass, else the rows themselves."""

    values: Tensor
    operand: Tensor | Activations

    def at(self, kept: Tensor | slice) -> NormedRows:
        """Only the rows ``kept``: indices [K] i64 or a slice."""
        values = self.values[kept]
        return NormedRows(values, values)


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each row of ``x`` to unit root mean square, then by ``weight``.

    Shapes: x [..., D] bf16, weight [D] bf16|fp32; returns [..., D] bf16.
    Numerics: fp32 inside, one rounding at the end.  Batch-invariant: yes.
    Source: Zhang and Sennrich 2019, equation 4.
    """
    x = x.float()
    return (weight * (x * inverse_rms(x, eps))).to(torch.bfloat16)
