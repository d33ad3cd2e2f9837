"""What every Triton launcher needs: checks of its tensors, and how kernels run on this machine.

Memory holds bits: a kernel sees bf16 as integers and computes in fp32, because the interpreter's
own bf16 is silently wrong.  Only matrix operands are bf16, and fp32 under the interpreter.
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
    """Operand type of bf16 products; fp32 holds the same numbers where bf16 does not work."""
    return tl.float32 if is_interpreted() else tl.bfloat16


def has_native_fp8(device: torch.device) -> bool:
    """Whether the compiler converts fp32 to E4M3 with one instruction (NVIDIA from SM89 on)."""
    return device.type == "cuda" and capability(device) >= (8, 9)


def has_tensor_memory(device: torch.device) -> bool:
    """Whether matrix sums live in tensor memory instead of registers (NVIDIA from SM100 on)."""
    return device.type == "cuda" and capability(device)[0] == 10


def is_npu(device: torch.device) -> bool:
    """Whether kernels are for Ascend: a core's vector memory holds 248 KiB, and its compiler fails
    on products with 16 columns."""
    return device.type in NPU


def is_hopper(device: torch.device) -> bool:
    """Whether kernels in Gluon for SM90 (H100, H200) run here."""
    return device.type == "cuda" and capability(device) == (9, 0)


def cdiv(amount: int, size: int) -> int:
    """Pieces of ``size`` that hold ``amount``: Triton's own takes as long as a small launch."""
    return -(-amount // size)


def next_power_of_2(number: int) -> int:
    """The least power of two that is at least ``number``, which is 1 or more."""
    return 1 << (number - 1).bit_length()


def multiprocessors(device: torch.device) -> int:
    """How many blocks of threads run at once if each needs all shared memory."""
    count: int = _asked(torch.cuda.get_device_properties, device).multi_processor_count
    return count


def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of a device of NVIDIA."""
    found: tuple[int, int] = _asked(torch.cuda.get_device_capability, device)
    return found


@cache  # by every launch: torch takes several microseconds for it
def _asked(question: Callable[[torch.device], Any], device: torch.device) -> Any:
    return question(device)


def bf16_pairs(name: str, x: Tensor) -> Tensor:
    """Adjacent bf16 values as one i32 (the even one in the low half): [..., D] -> [..., D/2].

    Raises: TensorError if x is not bf16 or its last dimension is not contiguous and even.
    """
    try:
        if x.dtype is torch.bfloat16:
            return x.view(torch.int32)
    except RuntimeError:  # of torch, for just what is not such pairs
        pass
    raise TensorError(
        f"{name}: expected bf16 with an even, contiguous last dimension, found {describe(x)}; "
        "call .contiguous() on it"
    )


def sizes(name: str, x: Tensor, dims: int) -> tuple[int, ...]:
    """The shape of ``x``, which has so many dimensions.

    Raises: TensorError that names the tensor if it has not.
    """
    if x.dim() != dims:
        raise TensorError(f"{name}: expected {dims} dimensions, found {describe(x)}")
    return x.shape


def check_tensor(
    name: str, x: Tensor, dtype: torch.dtype, shape: tuple[int | None, ...], like: Tensor
) -> None:
    """Contiguous, on the device of ``like``, of this dtype and shape (None: any size).

    Raises: TensorError that names the tensor, what was expected and what was found.
    """
    fits = x.shape == shape or (  # mostly they are equal, and this is asked several times a launch
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
    """What ``check_tensor`` expects of a tensor that may be either."""
    return torch.float32 if x.dtype == torch.float32 else torch.bfloat16


def describe(x: Tensor) -> str:
    """Dtype, shape, strides and device of a tensor, for error messages."""
    return f"{x.dtype} {list(x.shape)} with strides {list(x.stride())} on {x.device}"
