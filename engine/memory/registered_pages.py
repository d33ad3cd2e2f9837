"""Host memory that kernels of an NVIDIA GPU read directly: pages registered with the driver.

Kernels take tensors in it like tensors of the device and read them over the host link.  Meant for
tables that are larger than the GPU's memory and of which a step reads little.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Flags of cuMemHostRegister: portable, device-mapped, read-only.
_FOR_KERNELS = 0x1 | 0x2
_READ_ONLY = 0x8


class RegisteredPages(mmap.mmap):
    """Mapped pages that stay registered as long as they are referenced."""

    _address: int | None = None

    def register(self, device: torch.device | str, flags: int) -> bool:
        """Whether the driver accepted them.  It pins each page, which reads a file completely."""
        address = int(np.frombuffer(self, np.uint8).ctypes.data)
        with torch.cuda.device(device):
            torch.cuda.synchronize()  # creates this thread's context, if it has none yet
            if driver().cuMemHostRegister_v2(_pointer(address), ctypes.c_size_t(len(self)), flags):
                return False
        self._address = address
        return True

    def __del__(self) -> None:
        if self._address is not None and not sys.is_finalizing():
            driver().cuMemHostUnregister(_pointer(self._address))


def map_for_gpu(
    path: Path, begin: int, num_bytes: int, device: torch.device | str
) -> Tensor | None:
    """Read-only bytes of a file, [num_bytes] u8, whose pages all processes share; None if the file
    system or the driver does not allow that."""
    offset = begin % mmap.ALLOCATIONGRANULARITY
    size, place = offset + num_bytes, begin - offset
    try:
        with path.open("rb") as file:
            number = file.fileno()
            pages = RegisteredPages(number, size, mmap.MAP_SHARED, mmap.PROT_READ, offset=place)
    except (OSError, ValueError):
        return None
    if not pages.register(device, _FOR_KERNELS | _READ_ONLY):
        return None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return torch.frombuffer(pages, dtype=torch.uint8, offset=offset)


def empty_for_gpu(num_bytes: int, device: torch.device | str) -> Tensor | None:
    """[num_bytes] u8 of zeros; None if there is not enough memory or the driver refuses it.

    Unlike torch's pinned memory, the size is not rounded up to a power of two.
    """
    try:
        pages = RegisteredPages(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        return None
    with suppress(OSError):  # huge pages are allocated faster; not every system has them
        pages.madvise(mmap.MADV_HUGEPAGE)
    if not pages.register(device, _FOR_KERNELS):
        return None
    return torch.frombuffer(pages, dtype=torch.uint8)


@cache
def driver() -> Any:
    """The CUDA driver API; unlike the runtime API, it has no sticky error state."""
    return ctypes.CDLL("libcuda.so.1")


def _pointer(address: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(address)
