"""Peer memory: buffers that the GPUs of one host map into each other over NVLink."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor

from deepinfer.errors import EngineError

from .groups import Group, translated


class PeerMemory:
    """A buffer of ``num_bytes`` zeros on each rank of ``group``, mapped on all of them.

    own        [num_bytes] u8, this rank's buffer
    addresses  [R] i64, addresses of all ranks' buffers for kernels on this GPU
    peers      by rank, the others' buffers as tensors [num_bytes] u8, for copies

    Creation is collective.  NVLink multicast is not used.
    Raises: EngineError if the GPUs cannot access each other's memory.
    """

    def __init__(self, group: Group, num_bytes: int, device: torch.device) -> None:
        # Imported here: CPU builds of torch may lack it.
        from torch.distributed import _symmetric_memory as symmetric

        assert group.handle is not None, "a group of one has no peers"
        buffer: Tensor = symmetric.empty(num_bytes, dtype=torch.uint8, device=device)
        buffer.zero_()
        try:
            self._mapping: Any = symmetric.rendezvous(buffer, group.handle)
        except RuntimeError as error:
            raise EngineError(
                f"the GPUs of ranks {', '.join(map(str, group.ranks))} cannot access each other's "
                f"memory ({str(error).strip().splitlines()[0]}): see 'nvidia-smi topo -m'"
            ) from error
        self.own = buffer
        self.addresses = torch.tensor(self._mapping.buffer_ptrs, device=device)
        self.peers: dict[int, Tensor] = {
            rank: self._mapping.get_buffer(rank, (num_bytes,), torch.uint8)
            for rank in range(group.size)
            if rank != group.rank
        }
        with translated():
            group.all_reduce(torch.zeros(1, device=device))  # zeroed before any rank writes
        torch.cuda.synchronize(device)


def all_reach_each_other(num_gpus: int) -> bool:
    """Whether the first ``num_gpus`` GPUs of this host have peer access to each other."""
    return all(
        one == other or torch.cuda.can_device_access_peer(one, other)
        for one, other in product(range(num_gpus), repeat=2)
    )
