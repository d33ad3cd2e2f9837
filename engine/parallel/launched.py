"""Ranks started by torchrun or SLURM: which rank this is, and their rendezvous."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from deepinfer.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from torch._C._distributed_c10d import Store

_PORT = 29500
_DRIVER = "deepinfer/driver"
_OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """This process's rank.  ``has_store``: the launcher already runs a store at ``host:port``.
    ``ranks_per_node`` is 0 if the launcher does not tell."""

    rank: int
    world_size: int
    host: str
    port: int
    has_store: bool
    ranks_per_node: int = 0


def launched_place(environment: Mapping[str, str], world_size: int) -> Place | None:
    """This process's place; None if it was started alone or the run needs only one rank.

    torchrun sets RANK and WORLD_SIZE, MASTER_ADDR and MASTER_PORT; ``srun`` sets SLURM_PROCID and
    SLURM_NTASKS, and the address of the launching node, which MASTER_ADDR overrides.
    Raises: ConfigError if a number is missing or does not match the parallel sizes.
    """
    names = ("RANK", "WORLD_SIZE") if "WORLD_SIZE" in environment else (
        "SLURM_PROCID", "SLURM_NTASKS"
    )  # fmt: skip
    if world_size == 1 or environment.get(names[1], "1") == "1":
        return None
    found = [_number(environment, name) for name in names]
    if found[1] != world_size:
        raise ConfigError(
            f"{names[1]}={found[1]} processes were launched, but the parallel sizes need "
            f"{world_size}: launch as many, or set expert_parallel_size={found[1]}"
        )
    host = environment.get("MASTER_ADDR") or environment.get("SLURM_LAUNCH_NODE_IPADDR")
    if not host:
        raise ConfigError("MASTER_ADDR is not set: set it to the host of rank 0")
    port = _number(environment, "MASTER_PORT") if "MASTER_PORT" in environment else _PORT
    has_store = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    per_node = environment.get("LOCAL_WORLD_SIZE", environment.get("SLURM_NTASKS_PER_NODE", "0"))
    return Place(
        rank=found[0],
        world_size=world_size,
        host=host,
        port=port,
        has_store=has_store,
        ranks_per_node=int(per_node) if per_node.isdecimal() else 0,
    )


@cache
def meeting_place(place: Place) -> Store:
    """The store of all ranks; rank 0 hosts it if the launcher does not.  Once per process."""
    from .groups import connect, host_store

    if place.rank == 0 and not place.has_store:
        return host_store(place.host, place.port)
    return connect(place.host, place.port)


def accept_ranks(place: Place, store: Store, timeout_s: float) -> dict[int, Connection]:
    """On rank 0: a connection to each other rank.  Raises: EngineError naming missing ranks."""
    # Imported here and below, so that a run of one rank starts faster.
    import secrets
    from multiprocessing.connection import Listener

    from .groups import wait_for_all

    key = secrets.token_bytes(32)
    with Listener(("", 0), authkey=key) as listener:
        address = {"port": listener.address[1], "key": key.hex()}
        store.set(_DRIVER, json.dumps(address))
        wait_for_all(store, "deepinfer/here", range(1, place.world_size), 0, timeout_s)
        connections: dict[int, Connection] = {}
        while len(connections) < place.world_size - 1:
            connection: Any = listener.accept()
            connections[connection.recv()] = connection
        return connections


def reach_driver(place: Place, store: Store) -> Connection | None:
    """Other ranks: the connection to rank 0; None if the run ended without needing ranks."""
    store.set(f"deepinfer/here/{place.rank}", "yes")
    try:
        store.wait([_DRIVER])
        found = store.get(_DRIVER)
    except RuntimeError as error:
        raise EngineError(
            f"rank {place.rank}: rank 0 at {place.host}:{place.port} did not accept connections"
        ) from error
    if found == _OVER.encode():
        return None
    from multiprocessing.connection import Client

    address = json.loads(found)
    connection: Any = Client((place.host, address["port"]), authkey=bytes.fromhex(address["key"]))
    connection.send(place.rank)
    return connection  # type: ignore[no-any-return]


def let_go(place: Place, timeout_s: float) -> None:
    """Rank 0, at its end: release the others if they still wait, since none was needed."""
    from .groups import wait_for_all

    store = meeting_place(place)
    if not store.check([_DRIVER]):
        store.set(_DRIVER, _OVER)
        wait_for_all(store, "deepinfer/here", range(1, place.world_size), 0, timeout_s)


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment.get(name, "")
    if not value.isdecimal():
        raise ConfigError(f"{name}={value!r}: expected the number that the launcher sets")
    return int(value)
