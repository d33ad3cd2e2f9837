"""One safetensors file: header checked in full, data memory-mapped and read only when asked for.

Parsed here because the format is small (8-byte length, JSON header, data) and every fault must give
a clear error; some versions of the library also lack the dtype of FP8 scales.
"""

from __future__ import annotations

import json
import mmap
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor

from deepinfer.errors import CheckpointError

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
# Address space without reserved memory.  Python has the name from 3.13 on; this is the value of
# Linux on x86-64 and arm64.
MAP_NORESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor's dtype, shape and place: ``begin`` is its byte offset in the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class SafetensorsFile:
    """A file with a validated header; see ``open_safetensors``."""

    path: Path
    num_bytes: int
    entries: Mapping[str, TensorEntry]

    @cached_property
    def _bytes(self) -> Tensor:
        # Private: pages are read from the file on first touch, writes stay in memory.  No memory is
        # reserved: an Engram table alone is larger than the memory of most machines.
        flags = mmap.MAP_PRIVATE | MAP_NORESERVE
        try:
            with self.path.open("rb") as file:
                mapped = mmap.mmap(
                    file.fileno(), self.num_bytes, flags, mmap.PROT_READ | mmap.PROT_WRITE
                )
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.path} cannot be mapped into memory: {error}") from None
        return torch.frombuffer(mapped, dtype=torch.uint8)

    def tensor(self, name: str) -> Tensor:
        """The tensor ``name`` on the CPU, without a copy unless it is misaligned in the file.

        Valid until the file is changed; treat it as read-only.
        """
        entry = self.entries[name]
        data = self._bytes[entry.begin : entry.begin + entry.num_bytes]
        if entry.begin % entry.dtype.itemsize:
            data = data.clone()
        return data.view(entry.dtype).view(entry.shape)


def open_safetensors(path: Path) -> SafetensorsFile:
    """Read and validate the header: valid JSON, known dtypes, and data that covers the file without
    gaps or overlaps.

    Raises: CheckpointError naming the file, the tensor and the fault.
    """
    header, data_start, num_bytes = _read_header(path)
    entries = {
        name: _entry(path, name, value, data_start)
        for name, value in header.items()
        if name != "__metadata__"
    }
    _check_layout(path, entries, data_start, num_bytes)
    return SafetensorsFile(path, num_bytes, entries)


def _read_header(path: Path) -> tuple[dict[str, Any], int, int]:
    try:
        with path.open("rb") as file:
            num_bytes = file.seek(0, 2)
            file.seek(0)
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or length > min(num_bytes - 8, MAX_HEADER_BYTES):
                raise CheckpointError(
                    f"{path} is truncated or not a safetensors file: {num_bytes} bytes, but its "
                    f"first 8 announce a header of {length}; download or write it again"
                )
            text = file.read(length)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(f"{path} cannot be read: {reason}") from None
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: corrupt header: {error}; download it again") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: corrupt header: expected a JSON object; download it again")
    return header, 8 + length, num_bytes


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{repeated!r} appears twice")
    return result


def _entry(path: Path, name: str, value: Any, data_start: int) -> TensorEntry:
    def fail(what: str) -> CheckpointError:
        return CheckpointError(f"{path}: corrupt header entry of tensor {name!r}: {what}")

    if not isinstance(value, dict):
        raise fail("expected an object with dtype, shape and data_offsets")
    dtype = value.get("dtype")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise fail(f"dtype {dtype!r}; expected one of {', '.join(DTYPES)}")
    shape, offsets = value.get("shape"), value.get("data_offsets")
    if not _are_counts(shape):
        raise fail(f"shape {shape!r}; expected a list of whole numbers")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise fail(f"data_offsets {offsets!r}; expected [begin, end]")
    entry = TensorEntry(DTYPES[dtype], tuple(shape), data_start + offsets[0])
    if entry.num_bytes != offsets[1] - offsets[0]:
        raise fail(
            f"{dtype} {shape} needs {entry.num_bytes} bytes, data_offsets hold "
            f"{offsets[1] - offsets[0]}"
        )
    return entry


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    """A list of whole numbers that fit a 64-bit size."""
    return isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**63 for item in value
    )


def _check_layout(
    path: Path, entries: Mapping[str, TensorEntry], data_start: int, num_bytes: int
) -> None:
    position = data_start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].num_bytes)):
        if entry.begin != position:
            fault = "overlaps the previous one" if entry.begin < position else "follows a gap"
            raise CheckpointError(f"{path}: corrupt header: data of tensor {name!r} {fault}")
        position += entry.num_bytes
        if position > num_bytes:
            raise CheckpointError(
                f"{path} is truncated: tensor {name!r} ends at byte {position}, the file has "
                f"{num_bytes}; download or write it again"
            )
    if position != num_bytes:
        raise CheckpointError(
            f"{path}: {num_bytes - position} bytes after the last tensor; download it again"
        )
