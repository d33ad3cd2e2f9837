"""The decoder layers of a prefill from memory that stays where it is, as a graph needs them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deepinfer.engine.execution.batch import ForwardBatch, ForwardOutput
from deepinfer.engine.execution.graphs import GraphCache
from deepinfer.engine.execution.replay_graphs import ReplayGraphs
from deepinfer.engine.execution.slot_table import SlotTable
from deepinfer.engine.model.model import Model
from deepinfer.kernels.testing import assert_bitwise_equal


class Counting(GraphCache):
    """Runs functions and counts what it was asked for by key."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.keys: list[object] = []

    def run(self, key, function, turn=None):  # type: ignore[no-untyped-def]
        self.keys.append(key)
        return function()


def prompt_of(model: Model, length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, model.config.vocab_size - 60, (length,), generator=generator)


class Prefills:
    """Prompts computed with and without graphs, each in caches of its own."""

    def __init__(self, model: Model, new_fleet) -> None:  # type: ignore[no-untyped-def]
        self.model, self.new_fleet = model, new_fleet
        self.graphs = Counting()
        self.replay = ReplayGraphs(self.graphs, SlotTable(4, 256, 4, "cpu"))

    def run(
        self, lengths: list[int], monkeypatch: pytest.MonkeyPatch, *, as_graph: bool, seed: int
    ) -> list[Tensor]:
        model = self.model
        window = model.config.sliding_window
        starts = [max(0, length - window) for length in lengths]
        prompts = [prompt_of(model, length, seed + i) for i, length in enumerate(lengths)]
        fleet = self.new_fleet(model, prompts, starts, seed=1)
        if as_graph:

            def forward(batch: ForwardBatch, cache: object) -> ForwardOutput:
                return self.replay.forward(HalvesOf(model), batch, cache)

            monkeypatch.setattr(fleet, "model", HalvesOf(model), raising=False)
            monkeypatch.setattr(fleet.model, "forward", forward, raising=False)
        fleet.run(list(enumerate(lengths)))
        found = [tensor for seen in fleet.requests for tensor in seen.logits.values()]
        found += [tensor for seen in fleet.requests for tensor in seen.hidden.values()]
        return found + [ring for number in range(len(lengths)) for ring in fleet.rings(number)]


class HalvesOf:
    """A model without its ``forward``."""

    def __init__(self, model: Model) -> None:
        self.config = model.config
        self.encode, self.enter_decoder = model.encode, model.enter_decoder
        self.finish = model.finish


def test_the_same_bits_from_memory_that_stays(
    model: Model, new_fleet, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    """One prompt, two, and others of the same key, which find what the ones before left there."""
    prefills, window = Prefills(model, new_fleet), model.config.sliding_window
    for seed, lengths in enumerate(([window + 30], [window + 9, window + 41], [window + 60])):
        expected = prefills.run(lengths, monkeypatch, as_graph=False, seed=seed)
        found = prefills.run(lengths, monkeypatch, as_graph=True, seed=seed)
        for one, other in zip(found, expected, strict=True):
            assert_bitwise_equal(one, other)
    first, second, third = prefills.graphs.keys
    assert first == third != second


def test_graphs_of_as_many_prompts_share_memory(
    model: Model, new_fleet, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    """Whatever their contexts: only block tables are as long as those."""
    prefills, window = Prefills(model, new_fleet), model.config.sliding_window
    bounds = iter([256, 272, 256])
    monkeypatch.setattr(SlotTable, "context_bound", lambda table, length: next(bounds))
    for seed in range(3):
        lengths = [window + 20 + seed]
        expected = prefills.run(lengths, monkeypatch, as_graph=False, seed=seed)
        found = prefills.run(lengths, monkeypatch, as_graph=True, seed=seed)
        for one, other in zip(found, expected, strict=True):
            assert_bitwise_equal(one, other)
    short, long = prefills.replay._kept.values()
    assert short.batch.block_table.shape < long.batch.block_table.shape
    assert short.entered.streams.data_ptr() == long.entered.streams.data_ptr()


def test_only_whole_windows_are_graphs(
    model: Model, new_fleet, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    """A prompt of one window goes through the decoder layers as it is; a shorter one is no graph,
    alone or beside another."""
    prefills, window = Prefills(model, new_fleet), model.config.sliding_window
    for lengths, count in (([window], 1), ([window - 1], 1), ([window - 1, window + 5], 1)):
        expected = prefills.run(lengths, monkeypatch, as_graph=False, seed=5)
        found = prefills.run(lengths, monkeypatch, as_graph=True, seed=5)
        for one, other in zip(found, expected, strict=True):
            assert_bitwise_equal(one, other)
        assert len(prefills.graphs.keys) == count
