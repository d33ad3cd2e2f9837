"""Where Engram tables are kept: on the device if they are small, else in host memory.

A GPU reads only a few kilobytes of them per token, so the host link is fast enough; but a CUDA
graph can only contain reads that the GPU makes itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.engine.memory.host_memory import available_host_bytes, taking_host_memory
from deepinfer.engine.memory.registered_pages import empty_for_gpu, map_for_gpu
from deepinfer.engine.model.tensors import is_engram_table

from .weights import Checkpoint

# Larger tables would take memory that a GPU needs for weights and caches.
MOST_DEVICE_BYTES = 4 * 2**30
# Host memory left for the rest of a run, since pages of pinned tables cannot be swapped or dropped.
_HOST_SPARE_BYTES = 8 * 2**30


@dataclass(frozen=True, slots=True)
class PlacedTables:
    """``tensors`` by name; ``note`` describes where they are, None if on the device."""

    tensors: dict[str, Tensor]
    note: str | None = None


def place_tables(
    checkpoint: Checkpoint, device: torch.device | str, *, may_copy: bool = True
) -> PlacedTables:
    """The tables of a checkpoint where kernels of ``device`` can read them, or mapped on the host.

    Large tables stay in the mapped files, whose pages a GPU then reads, or else in a pinned copy
    (``may_copy``; off for ranks of one host, which would make one each).  Both occupy host memory.
    If it is too small, or the device cannot read it, the CPU looks up rows in the mapped files.
    Processes that share nothing may each make a copy, as long as there is room.
    """
    tables = checkpoint.load(is_engram_table)
    size = sum(table.nbytes for table in tables.values())
    kind = torch.device(device).type
    if size <= MOST_DEVICE_BYTES or kind == "cpu":
        return PlacedTables({name: table.to(device) for name, table in tables.items()})
    place = f"{size / 1e9:,.1f} GB in host memory"
    if kind != "cuda":
        return PlacedTables(tables, f"{place}, looked up by the CPU")
    if _has_room(size):
        if found := _mapped(checkpoint, tables, device):
            return PlacedTables(found, f"{place}, read by the GPU from the mapped files")
        if may_copy and (found := _copied(tables, size, device)):
            return PlacedTables(found, f"{place}, read by the GPU from a pinned copy")
    reason = "the driver refuses to register their pages"
    if not _has_room(size):
        reason = f"the host has {(available_host_bytes() or 0) / 1e9:,.1f} GB free"
    return PlacedTables(
        tables, f"{place}, looked up by the CPU, so steps are no CUDA graphs and slower: {reason}"
    )


def _has_room(size: int) -> bool:
    return size + _HOST_SPARE_BYTES <= (available_host_bytes() or 0)


def _mapped(
    checkpoint: Checkpoint, tables: Mapping[str, Tensor], device: torch.device | str
) -> dict[str, Tensor] | None:
    """The tables in registered pages of their mapped files; None if that is refused."""
    found = {}
    for name, table in tables.items():
        file = checkpoint.files[name]
        begin = file.entries[name].begin
        if begin % 2:  # kernels read pairs of codes
            return None
        mapped = map_for_gpu(file.path, begin, table.nbytes, device)
        if mapped is None:
            return None
        found[name] = mapped.view(table.dtype).view(table.shape)
    return found


def _copied(
    tables: Mapping[str, Tensor], size: int, device: torch.device | str
) -> dict[str, Tensor] | None:
    """The same tables in registered memory of this process, None if there is not enough."""
    copies = {}
    with taking_host_memory():  # what is free now may already be claimed by others
        if not _has_room(size):
            return None
        for name, table in tables.items():
            copy = empty_for_gpu(table.nbytes, device)
            if copy is None:
                return None
            copies[name] = copy
    return {
        name: copies[name].view(table.dtype).view(table.shape).copy_(table)
        for name, table in tables.items()
    }
