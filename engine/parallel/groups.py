"""Process groups: how ranks join, and the collectives that the engine uses.

gloo on a CPU, NCCL on GPUs, HCCL on Ascend NPUs.  Everything goes through ``Group``, which raises
one kind of error when a peer is lost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from deepinfer.errors import ConfigError, EngineError

from .mailbox import PeerLostError

_BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl", "npu": "cpu:gloo,npu:hccl"}
TIMEOUT_S = 600.0  # long enough for another rank to compile kernels or read weights


def host_store(host: str = "127.0.0.1", port: int = 0) -> TCPStore:
    """The rendezvous store of all ranks, hosted by this process; port 0 takes any free port.

    Raises: EngineError if the port is in use.
    """
    try:
        return TCPStore(host, port, is_master=True, wait_for_workers=False)
    except RuntimeError as error:
        raise EngineError(
            f"port {port} of {host} cannot be used ({_first_line(error)}); set MASTER_PORT to a "
            "free one"
        ) from error


def connect(host: str, port: int, timeout_s: float = TIMEOUT_S) -> Store:
    """The store that another process hosts.  Raises: EngineError if nothing answers there."""
    try:
        return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout_s))
    except RuntimeError as error:
        raise EngineError(
            f"nothing answers at {host}:{port} ({_first_line(error)}); is rank 0 running there?"
        ) from error


def join(
    store: Store,
    rank: int,
    world_size: int,
    *,
    facts: Mapping[str, str],
    device: str = "cpu",
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Join the other ranks; ``facts`` (versions, the model) must be the same on all.

    Raises: EngineError that names the ranks that did not join in time, ConfigError that names what
    differs.
    """
    meet(store, rank, world_size, facts=facts, timeout_s=timeout_s)
    with translated():
        dist.init_process_group(
            _BACKENDS[torch.device(device).type],
            store=PrefixStore("group", store),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_s),
        )


def meet(
    store: Store, rank: int, world_size: int, *, facts: Mapping[str, str], timeout_s: float
) -> None:
    """The first half of ``join``: wait for all ranks and compare their ``facts``."""
    store.set(f"facts/{rank}", json.dumps(dict(facts)))
    wait_for_all(store, "facts", range(world_size), rank, timeout_s)
    reference = json.loads(store.get("facts/0"))
    for name, value in facts.items():
        if reference.get(name) != value:
            raise ConfigError(
                f"{name} is {value} on rank {rank} and {reference.get(name)} on rank 0: all ranks "
                "need the same"
            )


def wait_for_all(
    store: Store, prefix: str, ranks: Sequence[int], rank: int, timeout_s: float
) -> None:
    """Wait for the key ``prefix/R`` of each rank.  Raises: EngineError naming missing ranks."""
    deadline = time.monotonic() + timeout_s
    for other in ranks:
        remaining = max(deadline - time.monotonic(), 0.001)
        try:
            store.wait([f"{prefix}/{other}"], timedelta(seconds=remaining))
        except RuntimeError as error:
            missing = [r for r in ranks if not store.check([f"{prefix}/{r}"])]
            names = ", ".join(map(str, missing))
            raise EngineError(
                f"rank {rank} waited {timeout_s:g} s for rank {names} of {ranks[-1] + 1}, which "
                "did not arrive: check its output, and whether it was started"
            ) from error


class Group:
    """Some ranks in a fixed order; ``rank`` is the index of this one among them.

    A group of one copies nothing and needs no process group.  GPU tensors go through host memory
    if the ranks are connected by gloo only, as are ranks that share one GPU.
    """

    def __init__(self, ranks: Sequence[int], rank: int, handle: dist.ProcessGroup | None) -> None:
        self.ranks = tuple(ranks)
        self.rank = rank
        self.handle = handle
        config = "" if handle is None else dist.get_backend_config(handle)
        self._is_on_host = "nccl" not in config

    @staticmethod
    def single() -> Group:
        return Group([0], 0, None)

    @staticmethod
    def split(parts: Sequence[Sequence[int]], *, backend: str | None = None) -> Group:
        """Create one group per part, in the same order on all ranks; returns this rank's group."""
        me, mine = dist.get_rank(), None
        for part in parts:
            with translated():
                handle = dist.new_group(list(part), backend=backend) if len(part) > 1 else None
            if me in part:
                mine = Group(part, list(part).index(me), handle)
        assert mine is not None, "every rank is in one of the parts"
        return mine

    @property
    def size(self) -> int:
        return len(self.ranks)

    def all_to_all(
        self, rows: Tensor, send: Sequence[int] | None, receive: Sequence[int] | None
    ) -> Callable[[], Tensor]:
        """Start sending the first ``send[0]`` rows to the first rank, and so on.

        rows [N, ...] any dtype except FP8, contiguous.  Without counts, equal parts.  The returned
        function waits for the rows received and returns them, ordered by rank.
        """
        if self.handle is None:
            return lambda: rows
        count = len(rows) if receive is None else sum(receive)
        sent = self._movable(rows)
        out = sent.new_empty(count, *rows.shape[1:])
        with translated():
            work = dist.all_to_all_single(
                out,
                sent,
                None if receive is None else list(receive),
                None if send is None else list(send),
                group=self.handle,
                async_op=True,
            )

        def finish() -> Tensor:
            with translated():
                work.wait()
            return out.to(rows.device)

        return finish

    def exchange_counts(self, counts: Sequence[int], device: torch.device) -> list[int]:
        """Send one number to each rank, and receive one from each."""
        if self.handle is None:
            return list(counts)
        sent = torch.tensor(counts, dtype=torch.int64, device=device)
        received: list[int] = self.all_to_all(sent, None, None)().tolist()
        return received

    def all_gather(self, tensor: Tensor) -> Tensor:
        """[size, ...]: the tensors of all ranks, which must have equal shapes."""
        if self.handle is None:
            return tensor[None]
        sent = self._movable(tensor).contiguous()
        out = sent.new_empty(self.size, *tensor.shape)
        with translated():
            dist.all_gather(list(out.unbind()), sent, group=self.handle)
        return out.to(tensor.device)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        if self.handle is not None:
            summed = self._movable(tensor)
            with translated():
                dist.all_reduce(summed, group=self.handle)
            if summed is not tensor:
                tensor.copy_(summed)
        return tensor

    def send(self, tensor: Tensor, to: int) -> None:
        """Send to the rank with index ``to``, which must ``receive`` with the same shape."""
        moved = self._movable(tensor).contiguous().view(torch.uint8)
        with translated():
            dist.send(moved, group=self.handle, group_dst=to)

    def receive(self, like: Tensor, source: int) -> Tensor:
        """Receive a tensor with the shape, dtype and device of ``like`` from rank ``source``."""
        out = torch.empty_like(self._movable(like), memory_format=torch.contiguous_format)
        with translated():
            dist.recv(out.view(torch.uint8), group=self.handle, group_src=source)
        return out.to(like.device)

    def _movable(self, tensor: Tensor) -> Tensor:
        return tensor.cpu() if self._is_on_host else tensor

    def broadcast(self, value: object) -> object:
        """Send any picklable value from the first rank to all."""
        if self.handle is None:
            return value
        box = [value]
        with translated():
            dist.broadcast_object_list(box, src=self.ranks[0], group=self.handle)
        return box[0]


@contextmanager
def translated() -> Iterator[None]:
    """Raises torch's errors about lost peers as ``PeerLostError``."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLostError(f"lost the connection to another rank: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
