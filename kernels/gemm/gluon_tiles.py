"""Descriptors of tensors whose tiles TMA copies."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

_TYPES = {
    torch.float8_e4m3fn: gl.float8e4nv,
    torch.bfloat16: gl.bfloat16,
    torch.float32: gl.float32,
    torch.int16: gl.int16,
    torch.int32: gl.int32,
}


def described_tiles(x: Tensor, *box: int) -> TensorDescriptor:
    """``x`` for copies of boxes of this shape; what lies outside of ``x`` is 0."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), list(box), _layout(box, x.dtype))


@cache  # finding it takes longer than a launch
def _layout(box: tuple[int, ...], dtype: torch.dtype) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout.get_default_for(list(box), _TYPES[dtype])
