"""Bounded replay of the decoder half, and rebuilt rings after a prefix hit."""

from __future__ import annotations

import pytest
import torch

from deepinfer.kernels.testing import assert_bitwise_equal


def prompt_of(model, length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, model.config.vocab_size - 60, (length,), generator=generator)


def test_prompts_within_a_window_are_exact(model, new_fleet):
    prompt = prompt_of(model, model.config.sliding_window)
    exact, replay = (new_fleet(model, [prompt], [0], seed=s) for s in (1, 2))
    for fleet in (exact, replay):
        fleet.run([(0, len(prompt))])
    for position, logits in exact.requests[0].logits.items():
        assert_bitwise_equal(replay.requests[0].logits[position], logits)


def test_replay_leaves_the_same_global_kv_and_other_logits(model, new_fleet):
    length = model.config.sliding_window + 60
    prompt = prompt_of(model, length)
    exact = new_fleet(model, [prompt], [0], seed=1)
    replay = new_fleet(model, [prompt], [60], seed=2)
    for fleet in (exact, replay):
        fleet.run([(0, length)])
    assert sorted(replay.requests[0].logits) == list(range(60, length))
    for rows, expected in zip(replay.global_rows(0), exact.global_rows(0), strict=True):
        assert_bitwise_equal(rows, expected)
    last = length - 1
    assert not torch.equal(exact.requests[0].logits[last], replay.requests[0].logits[last])


def test_first_replayed_token_sees_no_window_but_itself(model, new_fleet):
    """What the decoder rings held before the start, from whomever, cannot matter."""
    length = model.config.sliding_window + 20
    prompt = prompt_of(model, length)
    results = []
    for stale in (0, 77):
        fleet = new_fleet(model, [prompt], [20], seed=1)
        fleet.cache.window[model.config.split_layer :] = stale
        fleet.run([(0, 20)])
        fleet.run([(0, length - 20)])
        results.append(fleet.requests[0])
    for position, logits in results[0].logits.items():
        assert_bitwise_equal(results[1].logits[position], logits)


def fleet_after_hit(model, new_fleet, *, stale=0):
    """Request 1 shares the blocks of request 0 up to a hit and re-runs the window before it."""
    window = model.config.sliding_window
    hit = (window + 12) // 4 * 4
    prompt = prompt_of(model, hit + 30)
    fleet = new_fleet(model, [prompt, prompt], [0, len(prompt) - window], seed=1)
    fleet.run([(0, len(prompt))])
    shared = slice(hit // fleet.cache.block_size)
    fleet.tables[1, shared] = fleet.tables[0, shared]
    request = fleet.requests[1]
    request.encoder_start = request.num_done = hit - window
    request.write_start = hit
    slot = int(fleet.slots[1])
    for ring in (fleet.cache.window[:, slot], fleet.cache.history[slot]):
        ring.fill_(stale)
    for partial in fleet.cache.partial.values():
        partial[slot] = stale
    return fleet


def finish(fleet, number, chunk):
    request = fleet.requests[number]
    while (left := len(request.token_ids) - request.num_done) > 0:
        fleet.run([(number, min(left, chunk))])
    return request


@pytest.mark.parametrize("chunk", [1000, 9])
def test_rerun_before_a_hit_never_writes_shared_blocks(model, new_fleet, chunk):
    fleet = fleet_after_hit(model, new_fleet)
    before = [rows.clone() for rows in fleet.global_rows(0)]
    logits = finish(fleet, 1, chunk).logits
    for rows, expected in zip(fleet.global_rows(0), before, strict=True):
        assert_bitwise_equal(rows, expected)
    length = len(fleet.requests[1].token_ids)
    assert sorted(logits) == list(range(length - model.config.sliding_window, length))


def test_rerun_depends_neither_on_chunks_nor_on_stale_state(model, new_fleet):
    one = finish(fleet_after_hit(model, new_fleet), 1, chunk=1000)
    other = finish(fleet_after_hit(model, new_fleet, stale=55), 1, chunk=9)
    for position, logits in one.logits.items():
        assert_bitwise_equal(other.logits[position], logits)


def test_logits_of_a_token_that_is_not_computed_are_refused(model, new_fleet):
    fleet = new_fleet(model, [prompt_of(model, 30)], [20], seed=1)
    with pytest.raises(ValueError, match="decoder_start"):
        fleet.run([(0, 30)], wanted=[3])
