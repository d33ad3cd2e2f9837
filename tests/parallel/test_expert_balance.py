"""Placement of expert replicas: the published example, and what holds for any loads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.engine.memory.device_memory import DeviceMemory
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.parallel.expert_balance import (
    Placement,
    lower_bound,
    pack,
    plain_placement,
    rebalance,
    replicate,
)
from deepinfer.engine.parallel.redundancy import sized_by_memory
from deepinfer.engine.parallel.sizes import ParallelSizes
from deepinfer.errors import ConfigError

# A machine that is busy with other tests is no failure.
settings.register_profile("without a deadline", deadline=None)
settings.load_profile("without a deadline")

# The example in the README of deepseek-ai/EPLB.
EXAMPLE = [
    [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
    [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
]
EXAMPLE_PLACEMENT = [
    [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
    [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
]


def test_the_published_example() -> None:
    loads = np.array(EXAMPLE)
    placement = rebalance(loads, num_replicas=16, num_devices=8, num_groups=4, num_nodes=2)
    assert placement.physical_to_logical.tolist() == EXAMPLE_PLACEMENT
    for row in placement.physical_to_logical:
        for groups in np.array_split(row // 3, 2):
            assert len(set(groups)) == 2  # two whole groups on each node


def check(placement: Placement, num_experts: int, num_replicas: int, num_devices: int) -> None:
    counts = placement.num_replicas
    assert (counts >= 1).all() and (counts.sum(1) == num_replicas).all()
    sizes = np.bincount(placement.device_of_replica, minlength=num_devices)
    assert sizes.max() - sizes.min() == (num_replicas % num_devices > 0)
    for layer, row in enumerate(placement.physical_to_logical):
        assert np.bincount(row, minlength=num_experts).tolist() == counts[layer].tolist()
        for expert, replicas in enumerate(placement.logical_to_physical[layer]):
            used = replicas[replicas >= 0]
            assert used.tolist() == np.flatnonzero(row == expert).tolist()
            devices = placement.device_of_replica[used]
            assert len(set(devices)) == len(devices)  # never two on one device


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_loads(data: st.DataObject) -> None:
    num_experts = data.draw(st.integers(1, 24), "experts")
    num_devices = data.draw(st.integers(1, 10), "devices")
    low = max(num_experts, num_devices)
    if low > num_experts * num_devices:
        return
    num_replicas = data.draw(st.integers(low, num_experts * num_devices), "replicas")
    load = st.one_of(st.integers(0, 5), st.integers(0, 10**9))
    loads = np.array([data.draw(st.lists(load, min_size=num_experts, max_size=num_experts))])
    placement = rebalance(loads, num_replicas=num_replicas, num_devices=num_devices)
    check(placement, num_experts, num_replicas, num_devices)
    devices = placement.device_loads(loads)
    bound = lower_bound(loads, num_replicas=num_replicas, num_devices=num_devices)
    assert devices.sum() == pytest.approx(loads.sum())
    assert devices.max() >= bound[0] * (1 - 1e-9)
    each = (loads / placement.num_replicas).max()
    assert devices.max() <= -(-num_replicas // num_devices) * each * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(
    loads=st.lists(st.integers(0, 1000), min_size=12, max_size=12),
    extra=st.integers(0, 6),
)
def test_nodes_keep_groups_whole(loads: list[int], extra: int) -> None:
    num_replicas = 12 + 2 * extra
    placement = rebalance(
        np.array([loads]), num_replicas=num_replicas, num_devices=4, num_groups=4, num_nodes=2
    )
    check(placement, 12, num_replicas, 4)
    nodes = np.split(placement.physical_to_logical[0] // 3, 2)
    assert not set(nodes[0]) & set(nodes[1])


@given(weights=st.lists(st.integers(0, 10**6), min_size=1, max_size=20), most=st.integers(1, 8))
def test_more_replicas_never_make_the_heaviest_heavier(weights: list[int], most: int) -> None:
    loads = np.array(weights, dtype=np.float64)
    heaviest = np.inf
    for num_replicas in range(len(loads), len(loads) * most + 1):
        counts = replicate(loads, num_replicas, most)
        assert counts.sum() == num_replicas and counts.max() <= most and counts.min() >= 1
        assert (loads / counts).max() <= heaviest
        heaviest = (loads / counts).max()


def test_a_full_pack_makes_room_for_a_label() -> None:
    """The last item's label is in the only pack with room: something else has to move there."""
    packs = pack(np.array([5.0, 3.0, 3.0, 1.0]), 2, labels=[0, 1, 2, 0])
    assert packs == [[0, 1], [2, 3]]


def test_no_load_one_device_and_no_redundancy() -> None:
    zeros = np.zeros((2, 8))
    check(rebalance(zeros, num_replicas=12, num_devices=4), 8, 12, 4)
    assert rebalance(zeros, num_replicas=12, num_devices=4).imbalance(zeros).tolist() == [1.0, 1.0]
    one = rebalance(np.arange(8)[None], num_replicas=8, num_devices=1)
    assert sorted(one.physical_to_logical[0].tolist()) == list(range(8))
    assert one.imbalance(np.arange(8)[None]).tolist() == [1.0]
    strided = np.arange(32).reshape(2, 16)[:, ::2]
    copy = rebalance(strided.copy(), num_replicas=10, num_devices=5)
    again = rebalance(strided, num_replicas=10, num_devices=5)
    assert (copy.physical_to_logical == again.physical_to_logical).all()


@pytest.mark.parametrize("exponent", [0.5, 0.8, 1.0])
def test_skewed_loads_on_64_ranks(exponent: float) -> None:
    """32 redundant experts bring any of these within 1.15, or 5 % of what is possible."""
    generator = np.random.default_rng(0)
    shares = np.arange(1, 385) ** -exponent
    loads = np.stack([generator.permutation(shares) for _ in range(4)])
    loads = generator.multinomial(500_000, loads / loads.sum(1, keepdims=True))
    assert plain_placement(4, 384, 64).imbalance(loads).min() >= 1.8
    sizes = {"num_replicas": 416, "num_devices": 64}
    bound = lower_bound(loads, **sizes) / (loads.sum(1) / 64)
    imbalance = rebalance(loads, **sizes).imbalance(loads)
    assert (imbalance <= np.maximum(1.15, 1.05 * bound)).all()


@pytest.mark.parametrize(
    ("loads", "sizes", "message"),
    [
        ([[1.0, np.nan]], {}, "NaN"),
        ([[1.0, -1.0]], {}, "negative"),
        ([1.0, 2.0], {}, r"\[layers, experts\]"),
        ([[1, 2]], {"num_replicas": 1}, "at least one for each of 2"),
        ([[1, 2]], {"num_replicas": 5}, "share a device"),
        ([[1, 2]], {"num_devices": 3, "num_replicas": 2}, "at most the 2 replicas"),
        ([[1, 2, 3]], {"num_groups": 2, "num_replicas": 4}, "num_experts=3 is not a multiple"),
        ([[1, 2, 3, 4]], {"num_groups": 1, "num_nodes": 2}, "num_groups=1 is not a multiple"),
        ([[1, 2]], {"num_devices": 0}, "at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(
    loads: list[object], sizes: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        rebalance(np.array(loads), **{"num_replicas": 4, "num_devices": 2, **sizes})


def test_redundant_experts_take_a_part_of_what_weights_leave() -> None:
    """One more of each expert layer takes 0.76 GB of the released model, the weights of one of 8
    ranks 47.6 GB (docs/scaling.md)."""
    flash, asked = ModelConfig.flash(), {"expert_parallel_size": 8}
    rebalanced = ParallelSizes(**asked, expert_rebalance_interval=100)

    def total(sizes: ParallelSizes, gib: int | None) -> int | None:
        memory = None if gib is None else DeviceMemory(gib << 30, gib << 30)
        return sized_by_memory(sizes, flash, memory, 0.9).num_redundant_experts

    assert [total(rebalanced, gib) for gib in (48, 60, 66, 131)] == [0, 8, 16, 32]
    assert total(rebalanced, None) == 8
    assert total(ParallelSizes(**asked), 131) == 0
    given = ParallelSizes(**asked, expert_rebalance_interval=100, num_redundant_experts=16)
    assert total(given, 131) == 16
    uneven = ParallelSizes(prefill_ranks=1, decode_ranks=2, expert_rebalance_interval=100)
    assert total(uneven, 131) == 0
