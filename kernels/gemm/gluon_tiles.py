"""TMA descriptors."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

_TYPES = {
    torch.float8_e4m3fn: gl.float8e4nv,
    torch.bfloat16: gl.bfloat16,
    torch.float16: gl.float16,
    torch.float32: gl.float32,
    torch.int16: gl.int16,
    torch.int32: gl.int32,
}


class Tiles(TensorDescriptor):  # type: ignore[misc]
    """A descriptor without Triton's checks: the driver rejects what TMA cannot copy.

    ``key``: what a kernel is specialized for, see ``launch_key``.
    """

    def __init__(self, x: Tensor, box: tuple[int, ...], swizzle: int | None = None) -> None:
        self.key = box, x.dtype, swizzle
        self.base = x
        self.shape = x.shape
        self.strides = x.stride()
        self.block_shape, self.layout = _box(*self.key)
        self.padding = "zero"


def described_tiles(x: Tensor, *box: int, swizzle: int | None = None) -> TensorDescriptor:
    """TMA descriptor of ``x`` for boxes of this shape; elements outside of ``x`` read as 0.

    ``swizzle``: width of the shared memory swizzle in bytes; None is the widest that fits.
    """
    return Tiles(x, box, swizzle)


@cache  # computing it takes longer than a launch
def _box(
    box: tuple[int, ...], dtype: torch.dtype, swizzle: int | None
) -> tuple[list[int], gl.NVMMASharedLayout]:
    if swizzle is not None:
        return list(box), gl.NVMMASharedLayout(swizzle, 8 * dtype.itemsize, len(box))
    return list(box), gl.NVMMASharedLayout.get_default_for(list(box), _TYPES[dtype])
