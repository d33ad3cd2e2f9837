"""Helpers of Triton launchers: checks of tensors, and properties of devices.

Kernels load bf16 as integers and compute in fp32, because the interpreter's own bf16 is silently
wrong.  Only MMA operands are bf16, or fp32 in the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.errors import TensorError

from .placement import NPU


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter (``TRITON_INTERPRET=1`` at import)."""
    return not isinstance(tl.sum, triton.runtime.JITFunction)


def matrix_dtype() -> Any:
    """Operand type of bf16 MMAs; fp32 in the interpreter, where bf16 does not work."""
    return tl.float32 if is_interpreted() else tl.bfloat16


def has_native_fp8(device: torch.device) -> bool:
    """Whether one instruction converts fp32 to E4M3 (NVIDIA from SM89 on)."""
    return device.type == "cuda" and capability(device) >= (8, 9)


def has_tensor_memory(device: torch.device) -> bool:
    """Whether MMA accumulators are in tensor memory instead of registers (NVIDIA SM100 family)."""
    return device.type == "cuda" and capability(device)[0] == 10


def is_npu(device: torch.device) -> bool:
    """Whether ``device`` is an Ascend NPU: a core has 248 KiB of vector memory, and the compiler
    fails on dot products with 16 columns."""
    return device.type in NPU


def is_hopper(device: torch.device) -> bool:
    """Whether the Gluon kernels for SM90 (H100, H200) run on ``device``."""
    return device.type == "cuda" and capability(device) == (9, 0)


def cdiv(amount: int, size: int) -> int:
    """Ceiling division; Triton's own takes as long as a small launch."""
    return -(-amount // size)


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is at least ``number``, which is 1 or more."""
    return 1 << (number - 1).bit_length()


def multiprocessors(device: torch.device) -> int:
    """Number of SMs: of resident thread blocks if each needs all shared memory."""
    count: int = _asked(torch.cuda.get_device_properties, device).multi_processor_count
    return count


def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of an NVIDIA GPU."""
    found: tuple[int, int] = _asked(torch.cuda.get_device_capability, device)
    return found


@cache  # needed by every launch, and torch takes several microseconds
def _asked(question: Callable[[torch.device], Any], device: torch.device) -> Any:
    return question(device)


def bf16_pairs(name: str, x: Tensor) -> Tensor:
    """View pairs of adjacent bf16 as i32 (the even one in the low half): [..., D] -> [..., D/2].

    Raises: TensorError if x is not bf16 or its last dimension is not contiguous and even.
    """
    try:
        if x.dtype is torch.bfloat16:
            return x.view(torch.int32)
    except RuntimeError:  # torch raises it for other strides and odd sizes
        pass
    raise TensorError(
        f"{name}: expected bf16 with an even, contiguous last dimension, found {describe(x)}; "
        "call .contiguous() on it"
    )


def sizes(name: str, x: Tensor, dims: int) -> tuple[int, ...]:
    """The shape of ``x``.  Raises: TensorError that names it unless it has ``dims`` dimensions."""
    if x.dim() != dims:
        raise TensorError(f"{name}: expected {dims} dimensions, found {describe(x)}")
    return x.shape


def check_tensor(
    name: str, x: Tensor, dtype: torch.dtype, shape: tuple[int | None, ...], like: Tensor
) -> None:
    """Check that x is contiguous, on the device of ``like``, with this dtype and shape (None: any).

    Raises: TensorError that names the tensor, what was expected and what was found.
    """
    fits = x.shape == shape or (  # fast path: this runs several times per launch
        len(shape) == x.dim() and all(map(_is_size, shape, x.shape))
    )
    if x.dtype != dtype or not fits or x.device != like.device or not x.is_contiguous():
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        raise TensorError(
            f"{name}: expected contiguous {dtype} [{sizes}] on {like.device}, found {describe(x)}"
        )


def _is_size(want: int | None, size: int) -> bool:
    return want is None or want == size


def bf16_or_f32(x: Tensor) -> torch.dtype:
    """The dtype for ``check_tensor`` of a tensor that may be either."""
    return torch.float32 if x.dtype == torch.float32 else torch.bfloat16


def describe(x: Tensor) -> str:
    """Dtype, shape, strides and device of a tensor, for error messages."""
    return f"{x.dtype} {list(x.shape)} with strides {list(x.stride())} on {x.device}"
