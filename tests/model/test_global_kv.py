"""A pass's view of the global KV: the pool itself, and copies of a prompt's own rows."""

from __future__ import annotations

import pytest
import torch

from deepinfer.engine.model import global_kv
from deepinfer.kernels.testing import assert_bitwise_equal


@pytest.fixture
def is_copy(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each time that a layer asked for main rows: whether they are outside of the pool."""
    asked: list[bool] = []
    main_rows = global_kv.GlobalKV.main_rows

    def noted(kv: global_kv.GlobalKV, layer: int, ratio: int) -> torch.Tensor:
        rows = main_rows(kv, layer, ratio)
        asked.append(rows.data_ptr() != kv.cache.main[layer].data_ptr())
        return rows

    monkeypatch.setattr(global_kv.GlobalKV, "main_rows", noted)
    return asked


def _run(model, new_fleet):
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, 60, (200,), generator=generator) for _ in range(2)]
    fleet = new_fleet(model, prompts, [0, 0], seed=2)
    for parts in ([(0, 40), (1, 9)], [(1, 30), (0, 160)]):
        fleet.run(parts)
    return fleet


def test_copied_rows_give_the_bits_of_the_pool(model, new_fleet, is_copy, monkeypatch) -> None:
    copied = _run(model, new_fleet)
    assert True in is_copy and False in is_copy, "the long pass copies, the short one does not"
    is_copy.clear()
    monkeypatch.setattr(global_kv, "_MOST_ROWS_PER_TOKEN", 0)
    plain = _run(model, new_fleet)
    assert not any(is_copy)
    for ours, theirs in zip(copied.requests, plain.requests, strict=True):
        assert ours.logits.keys() == theirs.logits.keys()
        for position, logits in ours.logits.items():
            assert_bitwise_equal(logits, theirs.logits[position], f"{position=}")
