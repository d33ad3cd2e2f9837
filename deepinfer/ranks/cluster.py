"""Replicas of the whole engine on the nodes of a Ray cluster (extra ``cluster``).

A replica is an actor with its own GPU, or CPU if the cluster has no GPUs.  Its engine runs in a
thread, while the actor passes messages.  Replicas answer different rows and never communicate, so
the loss of one only means that its rows are answered again elsewhere.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Mapping
from typing import Any

from deepinfer.engine.parallel.mailbox import Failed, Lost
from deepinfer.errors import ConfigError, DeepInferError, EngineError

from .messages import RankOrder
from .ranked_engine import RankedEngine

_POLL_S = 0.05
_START_S = 300.0


def start_replicas(address: str, num_replicas: int | None, order: RankOrder) -> RankedEngine:
    """An engine with replicas on the cluster at ``address``; ``auto`` is the cluster of this
    machine.  By default there is one replica per GPU, or per node without GPUs.

    Raises: ConfigError if Ray is not installed or there is no such cluster, EngineError if it has
    too few resources.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            "--cluster needs Ray, which is not installed: pip install 'deepinfer-cli[cluster]'"
        ) from error
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(
                f"--cluster={address}: no Ray cluster there ({reason}); start one with "
                "'ray start --head'"
            ) from error
    num_gpus = int(ray.cluster_resources().get("GPU", 0))
    uses_gpus = order.device.startswith("cuda")
    if num_replicas is None:
        num_replicas = num_gpus if uses_gpus else len(ray.nodes())
    ranks = ClusterRanks(ray, num_replicas, {"GPU": 1} if uses_gpus else {"CPU": 1}, order)
    return RankedEngine(ranks, range(num_replicas), (), order.device)


class ClusterRanks:
    """Replicas by number.  There is always one pending call per replica, which delivers messages
    and returns with the replica's messages."""

    def __init__(
        self, ray: Any, num_replicas: int, resources: Mapping[str, float], order: RankOrder
    ) -> None:
        self._ray = ray
        group = ray.util.placement_group([dict(resources)] * num_replicas, strategy="SPREAD")
        if not group.wait(_START_S):
            ray.util.remove_placement_group(group)
            raise EngineError(
                f"the cluster has no room for {num_replicas} replicas with {dict(resources)} each: "
                f"it has {ray.available_resources()}"
            )
        self._group = group
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        actor = ray.remote(Replica)
        self._actors: dict[int, Any] = {
            number: actor.options(
                num_cpus=resources.get("CPU", 0),
                num_gpus=resources.get("GPU", 0),
                scheduling_strategy=strategy(
                    placement_group=group, placement_group_bundle_index=number
                ),
            ).remote(order)
            for number in range(num_replicas)
        }
        self._unsent: dict[int, list[Any]] = {number: [] for number in self._actors}
        self._calls: dict[Any, int] = {}

    @property
    def process_ids(self) -> list[int]:
        """Only this process: replicas run in others, possibly on other machines."""
        return [os.getpid()]

    def send(self, rank: int, message: Any) -> None:
        if rank in self._actors:
            self._unsent[rank].append(message)

    def receive(self, timeout_s: float | None = None) -> list[tuple[int, Any]]:
        messages: list[tuple[int, Any]] = []
        while not messages:
            for rank in self._actors.keys() - set(self._calls.values()):
                unsent, self._unsent[rank] = self._unsent[rank], []
                self._calls[self._actors[rank].exchange.remote(unsent)] = rank
            done, _ = self._ray.wait(list(self._calls), num_returns=1, timeout=timeout_s)
            for call in done:
                messages += self._result(call, self._calls.pop(call))
            if timeout_s is not None:
                break
        return messages

    def close(self) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors.clear()
        self._ray.util.remove_placement_group(self._group)

    def _result(self, call: Any, rank: int) -> list[tuple[int, Any]]:
        try:
            found = self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            del self._actors[rank]
            reason = str(error).strip().splitlines()[0]
            return [(rank, Lost(rank, f"replica {rank} is gone ({reason})"))]
        for message in found:
            if isinstance(message, Failed):
                # An error of the replica itself, not a lost machine: others would get it, too.
                raise type(message.error)(f"replica {rank}: {message.error}") from message.error
        return [(rank, message) for message in found]


class QueueMailbox:
    """``Mailbox`` between two threads."""

    def __init__(self) -> None:
        self.incoming: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def send(self, message: Any) -> None:
        self.outgoing.put(message)

    def take(self) -> Any:
        return None if self.incoming.empty() else self.incoming.get()

    def wait(self, timeout_s: float | None = None) -> Any:
        return self.incoming.get(timeout=timeout_s)


class Replica:
    """The actor."""

    def __init__(self, order: RankOrder) -> None:
        self._mailbox = QueueMailbox()
        threading.Thread(target=self._serve, args=(order,), daemon=True).start()

    def exchange(self, messages: list[Any]) -> list[Any]:
        """Deliver messages to the engine; returns its own, waiting briefly for some."""
        for message in messages:
            self._mailbox.incoming.put(message)
        outgoing, found = self._mailbox.outgoing, []
        try:
            found.append(outgoing.get(timeout=_POLL_S))
            while not outgoing.empty():
                found.append(outgoing.get())
        except queue.Empty:
            pass
        return found

    def _serve(self, order: RankOrder) -> None:
        from .worker import replica_main

        try:
            replica_main(self._mailbox, order)
        except DeepInferError as error:
            self._mailbox.send(Failed(error))
        except Exception as error:
            self._mailbox.send(Failed(EngineError(f"{type(error).__name__}: {error}")))
