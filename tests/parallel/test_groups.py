"""Ranks that meet: a missing one is named, a different one is refused."""

from __future__ import annotations

import pytest
import torch

from deepinfer.engine.parallel.groups import Group, host_store, meet
from deepinfer.errors import ConfigError, EngineError


def test_a_missing_rank_is_named() -> None:
    store = host_store()
    with pytest.raises(EngineError, match=r"rank 0 waited 0.2 s for rank 1, 3 of 4, which did not"):
        store.set("facts/2", "{}")
        meet(store, 0, 4, facts={}, timeout_s=0.2)


def test_ranks_that_differ_are_refused() -> None:
    store = host_store()
    store.set("facts/0", '{"torch": "2.13.0", "deepinfer": "0.1.0"}')
    meet(store, 0, 1, facts={"torch": "2.13.0", "deepinfer": "0.1.0"}, timeout_s=1)
    with pytest.raises(ConfigError, match=r"torch is 2.11.0 on rank 1 and 2.13.0 on rank 0"):
        meet(store, 1, 2, facts={"torch": "2.11.0", "deepinfer": "0.1.0"}, timeout_s=1)


def test_a_port_in_use_is_named() -> None:
    store = host_store()
    with pytest.raises(EngineError, match=rf"port {store.port} of 127.0.0.1 .*set MASTER_PORT"):
        host_store(port=store.port)


def test_a_group_of_one_copies_nothing() -> None:
    group, rows = Group.single(), torch.arange(6).view(3, 2)
    assert group.all_to_all(rows, [3], [3])() is rows
    assert group.exchange_counts([3], rows.device) == [3]
    assert torch.equal(group.all_gather(rows)[0], rows)
    assert group.all_reduce(rows) is rows and group.broadcast("x") == "x"
