"""Small helpers of the plain-torch operations: constants, reshaping, elementwise functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from deepinfer.kernels.placement import on_accelerator

# Number of fp32 elements that fit into the L2 cache of a CPU core, with room for other data.
CACHE_ELEMENTS = 1 << 17


@cache
def constant(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """A number as a 0-dim tensor, usable with tensors of its dtype on any device.

    In operations on few elements it is twice as fast as a Python number, which torch converts each
    time.
    """
    with torch.inference_mode(False):
        return torch.tensor(value, dtype=dtype, device="cpu")


def batched_matmul(a: Tensor, b: Tensor) -> Tensor:
    """``torch.bmm``, [n, M, K] x [n, K, N] -> [n, M, N], with the same bits in any batch.

    A CPU computes each matrix of a batch in one thread, but splits a single one among threads.
    """
    if a.shape[0] != 1 or on_accelerator(a):
        return torch.bmm(a, b)
    return torch.bmm(a.expand(2, -1, -1), b.expand(2, -1, -1))[:1]


def by_rows(function: Callable[..., Tensor], *tensors: Tensor, row_elements: int) -> Tensor:
    """``function(*tensors)`` for a row-wise function; on a CPU in chunks of rows whose temporaries,
    ``row_elements`` per row, fit into the cache of a core."""
    rows, step = len(tensors[0]), max(1, CACHE_ELEMENTS // row_elements)
    if rows <= step or on_accelerator(tensors[0]):
        return function(*tensors)
    return torch.cat([function(*(t[i : i + step] for t in tensors)) for i in range(0, rows, step)])


def split_last(x: Tensor, size: int) -> Tensor:
    """[..., K] -> [..., K / size, size]."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


# torch's ``sigmoid``, ``silu`` and ``softplus`` on a CPU use different code for the last few
# elements of a tensor, so that a value would depend on its batch.  ``exp`` and ``log1p`` do not.


def sigmoid(x: Tensor) -> Tensor:
    """``1 / (1 + exp(-x))``; any shape, fp32.  Batch-invariant: yes."""
    return torch.reciprocal(torch.exp(-x) + constant(1.0))


def silu(x: Tensor) -> Tensor:
    """``x * sigmoid(x)``; any shape, fp32.  Batch-invariant: yes."""
    return x / (torch.exp(-x) + constant(1.0))


def softplus(x: Tensor) -> Tensor:
    """``log(1 + exp(x))``, and ``x`` itself above 20; any shape, fp32.  Batch-invariant: yes."""
    return torch.where(x > 20.0, x, torch.log1p(torch.exp(x.clamp(max=20.0))))


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """``1 / sqrt(mean(x ** 2) + eps)`` over the last dimension, kept; fp32."""
    return torch.rsqrt((x * x).mean(-1, keepdim=True) + constant(eps))
