"""Expert placement (EPLB): assigns replicas of experts to devices, from measured loads.

L layers, E experts, R replicas, G devices, N nodes.  The replicas of an expert share its tokens
equally.  Every step is deterministic: ties go to the lower number.
Source: deepseek-ai/EPLB, with replicas of one expert kept on different devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deepinfer.errors import ConfigError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """The assignment of replicas, which are numbered device by device.

    physical_to_logical  [L, R] expert of each replica
    logical_to_physical  [L, E, most] replicas of each expert, ascending, padded with -1
    num_replicas         [L, E]
    num_devices          G; with R = k G + r the first r devices have one replica more
    """

    physical_to_logical: Ints
    logical_to_physical: Ints
    num_replicas: Ints
    num_devices: int

    @property
    def device_of_replica(self) -> Ints:
        """[R] device of each replica."""
        counts = capacities(self.physical_to_logical.shape[1], self.num_devices)
        return np.repeat(np.arange(self.num_devices), counts)

    def device_loads(self, loads: Floats | Ints) -> Floats:
        """[L, G]: the load of each device, given ``loads`` [L, E]."""
        each = np.asarray(loads, dtype=np.float64) / self.num_replicas
        by_replica = np.take_along_axis(each, self.physical_to_logical, axis=1)
        bounds = np.flatnonzero(np.diff(self.device_of_replica, prepend=-1))
        return np.add.reduceat(by_replica, bounds, axis=1)

    def imbalance(self, loads: Floats | Ints) -> Floats:
        """[L]: the largest device load divided by the mean; 1 without load."""
        devices = self.device_loads(loads)
        mean = devices.mean(1)
        ratio: Floats = np.where(mean > 0, devices.max(1) / np.where(mean > 0, mean, 1), 1.0)
        return ratio


def capacities(num_items: int, num_packs: int) -> list[int]:
    """Items per pack, as even as possible; larger packs first."""
    return [num_items // num_packs + (pack < num_items % num_packs) for pack in range(num_packs)]


def plain_placement(num_layers: int, num_experts: int, num_devices: int) -> Placement:
    """Consecutive experts on each device, one replica each."""
    ids = np.tile(np.arange(num_experts), (num_layers, 1))
    return _placement(ids, num_experts, num_devices)


def rebalance(
    loads: Floats | Ints,
    *,
    num_replicas: int,
    num_devices: int,
    num_groups: int = 1,
    num_nodes: int = 1,
) -> Placement:
    """A placement of ``num_replicas`` per layer that evens out ``loads`` [L, E].

    With several nodes, each of ``num_groups`` groups of consecutive experts stays within a node
    (hierarchical); with one node, experts can go anywhere (global).
    Raises: ConfigError if the numbers do not fit together or a load is negative or not finite.
    """
    weights = np.asarray(loads, dtype=np.float64)
    _check(weights, num_replicas, num_devices, num_groups, num_nodes)
    rows = [
        _balance_layer(row, num_replicas, num_devices, num_groups, num_nodes) for row in weights
    ]
    return _placement(np.array(rows, dtype=np.int64), weights.shape[1], num_devices)


def lower_bound(loads: Floats | Ints, *, num_replicas: int, num_devices: int) -> Floats:
    """[L]: a lower bound of the largest device load over all placements.

    It is the larger of the mean and the heaviest replica of the best replication.
    """
    weights = np.asarray(loads, dtype=np.float64)
    counts = np.stack([replicate(row, num_replicas, num_devices) for row in weights])
    bound: Floats = np.maximum(weights.sum(1) / num_devices, (weights / counts).max(1))
    return bound


def replicate(weights: Floats, num_replicas: int, most_each: int) -> Ints:
    """[E] replicas per expert: one each, then repeatedly one more for the heaviest replica.

    No expert gets more than ``most_each``, the number of devices, which must all be different.
    """
    counts = np.ones(len(weights), dtype=np.int64)
    each = weights.copy()
    for _ in range(num_replicas - len(weights)):
        heaviest = int(np.argmax(np.where(counts < most_each, each, -1.0)))
        counts[heaviest] += 1
        each[heaviest] = weights[heaviest] / counts[heaviest]
    return counts


def pack(weights: Floats, num_packs: int, labels: Sequence[int] | None = None) -> list[list[int]]:
    """Distribute items over packs of equal size: the heaviest item first, into the lightest pack
    with room.

    Items with the same label go to different packs; there must be no more of them than packs.
    """
    num_items = len(weights)
    labels = range(num_items) if labels is None else labels
    if num_items == num_packs:
        return [[item] for item in range(num_items)]
    room = capacities(num_items, num_packs)
    packs: list[list[int]] = [[] for _ in range(num_packs)]
    totals = [0.0] * num_packs
    for item in np.argsort(-weights, kind="stable").tolist():
        open_packs = [p for p in range(num_packs) if len(packs[p]) < room[p]]
        fitting = [p for p in open_packs if all(labels[i] != labels[item] for i in packs[p])]
        if fitting:
            chosen = min(fitting, key=totals.__getitem__)
        else:
            chosen = _make_room(item, open_packs[0], packs, totals, weights, labels)
        packs[chosen].append(item)
        totals[chosen] += weights[item]
    return packs


def _make_room(
    item: int,
    target: int,
    packs: list[list[int]],
    totals: list[float],
    weights: Floats,
    labels: Sequence[int],
) -> int:
    """All packs with room have ``item``'s label already: move an item from a full pack into one.

    There is a full pack without the label (no label has more items than there are packs), and it
    has more labels than ``target``, so one of its labels is not in ``target``.
    """
    at_target = {labels[i] for i in packs[target]}
    moves = [
        (totals[source] - weights[moved] + weights[item], source, moved)
        for source, held in enumerate(packs)
        if all(labels[i] != labels[item] for i in held)
        for moved in held
        if labels[moved] not in at_target
    ]
    _, source, moved = min(moves)
    packs[source].remove(moved)
    packs[target].append(moved)
    totals[source] -= weights[moved]
    totals[target] += weights[moved]
    return source


def _balance_layer(
    weights: Floats, num_replicas: int, num_devices: int, num_groups: int, num_nodes: int
) -> list[int]:
    """The expert of each replica of one layer, device by device."""
    groups = np.arange(len(weights)).reshape(num_groups, -1)
    physical: list[int] = []
    for members in pack(weights[groups].sum(1), num_nodes):
        experts = groups[members].reshape(-1)
        counts = replicate(weights[experts], num_replicas // num_nodes, num_devices // num_nodes)
        # First one replica of each expert, then the others in the order in which they were added.
        replicas = _in_order_added(weights[experts], counts)
        each = (weights[experts] / counts)[replicas]
        for device in pack(each, num_devices // num_nodes, replicas):
            physical += [int(experts[replicas[item]]) for item in device]
    return physical


def _in_order_added(weights: Floats, counts: Ints) -> list[int]:
    """The expert of each replica, in the order in which ``replicate`` adds them."""
    further = [
        (-weights[expert] / had, expert)
        for expert, count in enumerate(counts)
        for had in range(1, count)
    ]
    return [*range(len(weights)), *(expert for _, expert in sorted(further))]


def _placement(physical: Ints, num_experts: int, num_devices: int) -> Placement:
    num_layers = len(physical)
    counts = np.stack([np.bincount(row, minlength=num_experts) for row in physical])
    logical = np.full((num_layers, num_experts, int(counts.max())), -1, dtype=np.int64)
    for layer, row in enumerate(physical):
        seen = np.zeros(num_experts, dtype=np.int64)
        for replica, expert in enumerate(row):
            logical[layer, expert, seen[expert]] = replica
            seen[expert] += 1
    return Placement(
        physical_to_logical=np.ascontiguousarray(physical, dtype=np.int64),
        logical_to_physical=logical,
        num_replicas=counts.astype(np.int64),
        num_devices=num_devices,
    )


def _check(
    weights: Floats, num_replicas: int, num_devices: int, num_groups: int, num_nodes: int
) -> None:
    if weights.ndim != 2 or not weights.size:
        raise ConfigError(f"loads: expected [layers, experts], found shape {weights.shape}")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise ConfigError("loads: expected numbers of at least 0, found a negative one, inf or NaN")
    num_experts = weights.shape[1]

    def check(ok: bool, what: str) -> None:
        if not ok:
            raise ConfigError(what)

    check(
        min(num_devices, num_groups, num_nodes) >= 1,
        f"num_devices={num_devices}, num_groups={num_groups}, num_nodes={num_nodes}: expected at "
        "least 1 of each",
    )
    check(
        num_replicas >= num_experts,
        f"num_replicas={num_replicas}: expected at least one for each of {num_experts} experts",
    )
    check(
        num_replicas <= num_experts * (num_devices // num_nodes),
        f"num_replicas={num_replicas}: two replicas of an expert would share a device; expected at "
        f"most {num_experts * (num_devices // num_nodes)}",
    )
    check(
        num_replicas >= num_devices,
        f"num_devices={num_devices}: expected at most the {num_replicas} replicas",
    )
    for name, whole, part_name, part in (
        ("num_experts", num_experts, "num_groups", num_groups),
        ("num_groups", num_groups, "num_nodes", num_nodes),
        ("num_devices", num_devices, "num_nodes", num_nodes),
        ("num_replicas", num_replicas, "num_nodes", num_nodes),
    ):
        check(
            whole % part == 0 or num_nodes == 1 and part_name == "num_nodes",
            f"{name}={whole} is not a multiple of {part_name}={part}",
        )
