"""Asynchronous copies between host arrays and device tensors.

A GPU copies from pinned memory in stream order; torch keeps that memory until the copy is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor


def send(values: ArrayLike, device: torch.device | str, dtype: Any = np.int64) -> Tensor:
    """``values`` as a tensor on the device, i64 by default."""
    host = torch.from_numpy(np.ascontiguousarray(values, dtype=dtype))
    if torch.device(device).type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True)


def host_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Zeros in host memory, pinned if there is a device, for asynchronous copies
    (``.to(device, non_blocking=True)``)."""
    is_cpu = torch.device(device).type == "cpu"
    return torch.zeros(shape, dtype=dtype, pin_memory=not is_cpu)


def send_all(
    arrays: Mapping[str, NDArray[np.int64]], device: torch.device | str
) -> dict[str, Tensor]:
    """Several i64 arrays in one transfer.

    Each is aligned to 16 bytes: Triton compiles other variants of a kernel for unaligned pointers.
    """
    if torch.device(device).type == "cpu":
        return {name: send(array, device) for name, array in arrays.items()}
    pieces = _split(send(_joined(*arrays.values()), device), *arrays.values())
    return dict(zip(arrays, pieces, strict=True))


class StagedInts:
    """A device buffer for the i64 inputs of a step: arrays of the same shapes get the same
    addresses each time, as CUDA graphs require.  On a CPU addresses are not fixed."""

    def __init__(self, most: int, device: torch.device | str) -> None:
        self._device = torch.device(device)
        size = 0 if self._device.type == "cpu" else most
        self._buffer = torch.empty(size, dtype=torch.int64, device=device)

    def send(self, *arrays: NDArray[np.int64] | Tensor) -> list[Tensor]:
        """The arrays on the device, overwritten by the next call.  Host arrays, which must come
        first, are sent in one transfer."""
        on_host = [array for array in arrays if not isinstance(array, Tensor)]
        on_device = [array for array in arrays if isinstance(array, Tensor)]
        if self._device.type == "cpu":
            return [*(send(array, self._device) for array in on_host), *on_device]
        flat = torch.from_numpy(_joined(*on_host)).pin_memory()
        places = _split(self._buffer, *arrays)
        self._buffer[: len(flat)].copy_(flat, non_blocking=True)
        for place, array in zip(places[len(on_host) :], on_device, strict=True):
            place.copy_(array)
        return places


def _joined(*arrays: NDArray[np.int64]) -> NDArray[np.int64]:
    flat = np.zeros(sum(_room(array.shape) for array in arrays), dtype=np.int64)
    place = 0
    for array in arrays:
        flat[place : place + array.size] = array.reshape(-1)
        place += _room(array.shape)
    return flat


def _split(flat: Tensor, *arrays: NDArray[np.int64] | Tensor) -> list[Tensor]:
    """Views of the start of ``flat``, one for each array, in its shape."""
    shapes = [array.shape for array in arrays]
    rooms = [_room(shape) for shape in shapes]
    pieces = torch.split(flat[: sum(rooms)], rooms)
    return [
        piece[: prod(shape)].view(tuple(shape)) for piece, shape in zip(pieces, shapes, strict=True)
    ]


def _room(shape: Sequence[int]) -> int:
    """Size of an array in integers, rounded up to even: the next one is aligned to 16 bytes."""
    size = prod(shape)
    return size + size % 2


def wait_for(device: torch.device | str) -> None:
    """Wait until the device is idle."""
    device = torch.device(device)
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


class HostCopy:
    """An asynchronous copy of a tensor to the host."""

    def __init__(self, tensor: Tensor) -> None:
        self._event: Any = None
        self._host = tensor
        if tensor.device.type != "cpu":
            self._host = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._event = torch.get_device_module(tensor.device).Event()
            self._event.record()

    def tolist(self) -> list[Any]:
        """The values; waits for the copy."""
        if self._event is not None:
            self._event.synchronize()
        values: list[Any] = self._host.tolist()
        return values
