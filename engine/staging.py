"""From arrays of the host to tensors of a device, without waiting for either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def send(values: NDArray[np.int64] | Sequence[int], device: torch.device | str) -> Tensor:
    """i64 values on the device.

    A GPU copies them from pinned memory in stream order; torch keeps that memory until it has.
    """
    host = torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
    if torch.device(device).type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True)


def send_all(
    arrays: Mapping[str, NDArray[np.int64]], device: torch.device | str
) -> dict[str, Tensor]:
    """Several i64 arrays in one transfer.

    Each begins at 16 bytes: Triton makes other variants of a kernel for pointers that do not.
    """
    if torch.device(device).type == "cpu":
        return {name: send(array, device) for name, array in arrays.items()}
    flat = [np.pad(array.reshape(-1), (0, array.size % 2)) for array in arrays.values()]
    pieces = torch.split(send(np.concatenate(flat), device), [len(array) for array in flat])
    pairs = zip(arrays.items(), pieces, strict=True)
    return {name: piece[: array.size].view(array.shape) for (name, array), piece in pairs}
