"""Serialization of a prefilled request: blocks of global KV, rings, and the last logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deepinfer.engine.cache.kv_cache import KVCache, RingSnapshot

from .parcels import Parcel, Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillJob:
    """A prompt to compute; ``number`` is chosen by the requesting rank."""

    number: int
    token_ids: tuple[int, ...]
    decoder_start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefilledBlocks:
    """Blocks of a job from index ``first`` on, sent as they become full; more follow."""

    number: int
    first: int
    num_blocks: int
    data: bytes | Parcel


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefilled:
    """The end of a job, after all blocks.  ``logits``, f32, are those after the last token, from
    which the decoding rank samples the first token."""

    number: int
    encoder_start: int
    num_cached_tokens: int
    rings: bytes | Parcel
    logits: bytes


def read_blocks(cache: KVCache, blocks: Sequence[int]) -> bytes:
    """Serialize ``blocks``: the entries of all layers, block by block."""
    pools = _pools(cache)
    index = torch.tensor(list(blocks), dtype=torch.int64, device=pools[0].device)
    return to_bytes(torch.cat([pool[index].flatten(1) for pool in pools], dim=1))


def write_blocks(cache: KVCache, blocks: Sequence[int], data: bytes) -> None:
    """The inverse; the block numbers may differ."""
    pools = _pools(cache)
    device = pools[0].device
    index = torch.tensor(list(blocks), dtype=torch.int64, device=device)
    rows = from_bytes(data).view(len(blocks), -1).to(device)
    sizes = [pool[0].numel() for pool in pools]
    for pool, part in zip(pools, torch.split(rows, sizes, dim=1), strict=True):
        pool[index] = part.reshape(len(blocks), *pool.shape[1:])


def read_rings(cache: KVCache, slot: int) -> bytes:
    """Window rings, draft rings, partial groups and history of a slot, as bytes."""
    return b"".join(to_bytes(ring) for ring in cache.snapshot(slot).rings)


def write_rings(cache: KVCache, slot: int, data: bytes) -> None:
    """The inverse; the slot may differ."""
    shapes = cache.snapshot(slot).rings
    parts = torch.split(from_bytes(data), [ring.nbytes for ring in shapes])
    rings = [
        # A copy, since a view with a wider dtype must be aligned to its size.
        part.clone().view(ring.dtype).view(ring.shape).to(ring.device)
        for part, ring in zip(parts, shapes, strict=True)
    ]
    cache.restore(slot, RingSnapshot(tuple(rings)))


def block_rows(cache: KVCache, blocks: Sequence[int]) -> list[Rows]:
    """Views of the entries of all layers in some blocks."""
    pools = _pools(cache)
    rows = torch.tensor(list(blocks), dtype=torch.int64, device=pools[0].device)
    return [Rows(pool.flatten(1), rows) for pool in pools]


def ring_rows(cache: KVCache, slot: int) -> list[Rows]:
    """Views of everything that ``read_rings`` reads."""
    found, device = [], cache.history.device
    for rings in (cache.window, cache.draft):
        layers = torch.arange(len(rings), device=device)
        found.append(Rows(rings.flatten(0, 1).flatten(1), layers * cache.num_slots + slot))
    own = torch.tensor([slot], device=device)
    for table in (cache.history, *cache.partial.values()):
        found.append(Rows(table.flatten(1).view(torch.uint8), own))
    return found


def to_bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).cpu().numpy().tobytes()


def from_bytes(data: bytes) -> Tensor:
    """A copy as [N] u8."""
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())


def _pools(cache: KVCache) -> list[Tensor]:
    return [*cache.main.values(), *cache.index.values()]
