"""Exact mode end to end: logits, taps, router, picks, caches, streams of every prompt length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.engine.model.block import Block
from deepinfer.engine.model.indexer import Indexer
from deepinfer.engine.model.moe import MoE
from deepinfer.engine.model.residual import Residual
from deepinfer.kernels.quant import unpack_index_rows, unpack_main_rows, unpack_window_rows


class Trace:
    """What the layers of one pass computed, recorded by wrapping their methods."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.streams: list[Tensor] = []
        self.pre: list[Tensor] = []
        self.routes: list[tuple[Tensor, Tensor]] = []
        self.picks: dict[int, Tensor] = {}
        enter, run, route, select = Block.enter, Block.run, MoE.route, Indexer.select

        def traced_enter(block: Block, residual: Residual) -> Any:
            settled = residual.settle()
            self.streams.append(settled.streams)
            self.pre.append(settled.pre)
            return enter(block, residual)

        def traced_run(block: Block, *args: Any) -> Any:
            result = run(block, *args)
            self.last = result.settle()
            return result

        def traced_route(moe: MoE, *args: Any) -> Any:
            self.routes.append(route(moe, *args))
            return self.routes[-1]

        def traced_select(indexer: Indexer, *args: Any) -> Any:
            picks = select(indexer, *args)
            self.picks[indexer.plan.layer_id] = picks
            return picks

        monkeypatch.setattr(Block, "enter", traced_enter)
        monkeypatch.setattr(Block, "run", traced_run)
        monkeypatch.setattr(MoE, "route", traced_route)
        monkeypatch.setattr(Indexer, "select", traced_select)

    def all_streams(self) -> Tensor:
        """[L + 1, T, S, d]: entering each layer, and leaving the last."""
        return torch.stack([*self.streams, self.last.streams])

    def all_pre(self) -> Tensor:
        return torch.stack([*self.pre, self.last.pre])


def test_prompt(golden, new_session, monkeypatch, prompt_length):
    length = prompt_length
    prefix = f"p{length}"
    data = golden.data
    trace = Trace(monkeypatch)
    session = new_session(golden)
    output = session.run(data[f"{prefix}.input_ids"])
    golden.check_logits(output.logits, data[f"{prefix}.logits"], length)
    if f"{prefix}.main_hidden" in data:
        golden.check_hidden(output.main_hidden, data[f"{prefix}.main_hidden"], length)
    check_streams(golden, trace, prefix, length)
    check_router(golden, trace, prefix, length)
    check_picks(golden, trace, prefix, length)
    check_caches(golden, session, prefix, length)


def check_streams(golden, trace, prefix, length):
    """h_stats: sum, sum of magnitudes and L2 norm of the streams entering each layer."""
    limits = golden.tolerance("logits", length)
    streams = trace.all_streams().double().flatten(2)
    sums = torch.stack([streams.sum(-1), streams.abs().sum(-1), streams.norm(dim=-1)], dim=-1)
    expected = golden.data[f"{prefix}.h_stats"].double()
    error = (sums - expected).abs() / expected[..., 1:2].clamp(min=1e-9)
    error[..., 2] = (sums[..., 2] / expected[..., 2] - 1).abs()
    assert float(error.median()) <= limits["median_rel"]
    assert float(error.quantile(0.9)) <= limits["p90_rel"]
    if f"{prefix}.h" in golden.data:
        golden.check_hidden(
            trace.all_streams().flatten(2), golden.data[f"{prefix}.h"].flatten(2), length
        )
        pre_error = (trace.all_pre() - golden.data[f"{prefix}.pre_mix"]).abs()
        assert float(pre_error.quantile(0.9)) <= limits["p90_rel"]


def check_router(golden, trace, prefix, length):
    limits = golden.tolerance("router", length)
    ids = torch.stack([ids for ids, _ in trace.routes])
    weights = torch.stack([weights for _, weights in trace.routes])
    expected_ids = golden.data[f"{prefix}.router_ids"].long()
    same = (ids == expected_ids).all(-1)
    clear = golden.data[f"{prefix}.router_gap"] > limits["clear_gap"]
    assert float(same[clear].double().mean()) >= limits["clear_equal"]
    difference = (weights - golden.data[f"{prefix}.router_weights"]).abs()[same]
    assert float(difference.median()) <= limits["weight_median_abs"]


def check_picks(golden, trace, prefix, length):
    """Blocks 0, 1, 2, ... back to back: a pool row is the entry's number."""
    limits = golden.tolerance("index", length)
    for layer, picks in trace.picks.items():
        expected = golden.data.get(f"{prefix}.index_topk.{layer}")
        if expected is None:
            continue
        width = expected.shape[1]
        assert bool((picks[:, width:] == -1).all())
        hits = total = 0
        for row, wanted in zip(picks.tolist(), expected.tolist(), strict=True):
            wanted_set = {entry for entry in wanted if entry >= 0}
            chosen = [entry for entry in row if entry >= 0]
            assert chosen == sorted(chosen)
            assert len(chosen) == len(wanted_set)
            hits += len(wanted_set & set(chosen))
            total += len(wanted_set)
        assert total == 0 or hits / total >= limits["overlap"]


def check_caches(golden, session, prefix, length):
    limits = golden.tolerance("cache", length)
    cache, data = session.cache, golden.data
    pairs = []
    for layer in golden.config.kv_source_layer_ids:
        if f"{prefix}.compressed_kv.{layer}" in data:
            main, index = cache.main[layer].flatten(0, 1), cache.index[layer].flatten(0, 1)
            pairs.append((unpack_main_rows(main), data[f"{prefix}.compressed_kv.{layer}"]))
            pairs.append((unpack_index_rows(index), data[f"{prefix}.index_key.{layer}"]))
    for layer in range(golden.config.num_hidden_layers):
        if f"{prefix}.window_kv.{layer}" in data:
            expected = data[f"{prefix}.window_kv.{layer}"]
            positions = torch.arange(length - len(expected), length)
            ring = cache.window[layer, 0]
            pairs.append((unpack_window_rows(ring[positions % len(ring)]), expected))
    if pairs:
        differ = torch.cat([(a[: len(e)] != e.float()).flatten() for a, e in pairs])
        assert float(differ.double().mean()) <= limits["differ"]
