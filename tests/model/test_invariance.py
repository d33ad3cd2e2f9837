"""No bit of a token's results depends on the batch around it or on how its prompt was cut."""

from __future__ import annotations

import random

import pytest
import torch

from deepinfer.engine.cache.kv_cache import ring_size
from deepinfer.engine.execution.batch import RingSave
from deepinfer.engine.model import indexer

LENGTHS = (1, 5, 33, 70, 150)
MOST_CHUNKS = 8


def make_prompts(model, count, rng):
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    return [
        torch.randint(3, model.config.vocab_size - 60, (length,), generator=generator)
        for length in rng.sample(LENGTHS, count)
    ]


def finish(fleet, rng, chunk_choices):
    """Run all requests to their ends in passes of random membership and random chunks; where chunks
    are short, a long prompt's beginning is one of them."""
    rest = MOST_CHUNKS * max(chunk_choices)
    long = [(n, len(r.token_ids) - rest) for n, r in enumerate(fleet.requests)]
    if long := [(number, count) for number, count in long if count > 0]:
        fleet.run(long)
    while unfinished := [n for n, r in enumerate(fleet.requests) if r.num_done < len(r.token_ids)]:
        chosen = rng.sample(unfinished, rng.randint(1, len(unfinished)))
        parts = []
        for number in chosen:
            request = fleet.requests[number]
            left = len(request.token_ids) - request.num_done
            parts.append((number, min(left, rng.choice(chunk_choices))))
        fleet.run(parts)


def assert_same(fleet, alone, number):
    """Request ``number`` of the fleet against the only request of ``alone``."""
    seen, expected = fleet.requests[number], alone.requests[0]
    assert seen.logits.keys() == expected.logits.keys()
    for position in seen.logits:
        assert torch.equal(seen.logits[position], expected.logits[position])
        assert torch.equal(seen.hidden[position], expected.hidden[position])
    for rows, expected_rows in zip(fleet.global_rows(number), alone.global_rows(0), strict=True):
        assert torch.equal(rows, expected_rows)


@pytest.mark.parametrize(
    "chunks, replay",
    [((1,), True), ((1, 2, 6), True), ((1, 2, 6), False), ((1, 7, 40), False), ((64, 200), True)],
)
def test_batch_and_chunks_change_nothing(model, new_fleet, chunks, replay):
    rng = random.Random(f"{chunks} {replay}")
    window = model.config.sliding_window
    prompts = make_prompts(model, 2 if chunks == (1,) else 3, rng)
    starts = [max(0, len(p) - window) if replay else 0 for p in prompts]
    fleet = new_fleet(model, prompts, starts, seed=1)
    finish(fleet, rng, chunks)
    for number, (prompt, start) in enumerate(zip(prompts, starts, strict=True)):
        alone = new_fleet(model, [prompt], [start], seed=2)
        alone.run([(0, len(prompt))])
        assert_same(fleet, alone, number)


def test_threads_change_nothing(model, new_fleet):
    prompts = [prompt[:50] for prompt in make_prompts(model, 2, random.Random(3))]
    results = []
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            fleet = new_fleet(model, prompts, [0] * 2, seed=1)
            fleet.run([(n, len(p)) for n, p in enumerate(prompts)])
        finally:
            torch.set_num_threads(before)
        results.append(fleet.requests)
    for one, two in zip(*results, strict=True):
        for position in one.logits:
            assert torch.equal(one.logits[position], two.logits[position])


def test_rings_hold_the_same_past_however_it_was_cut(model, new_fleet):
    prompt = make_prompts(model, 1, random.Random(5))[0].repeat(150)[:150]
    whole = new_fleet(model, [prompt], [0], seed=1)
    whole.run([(0, len(prompt))])
    cut = new_fleet(model, [prompt], [0], seed=1)
    for count in (30, 1, 1, 59, 2, 57):
        cut.run([(0, count)])
    for ring, expected in zip(cut.rings(0), whole.rings(0), strict=True):
        assert torch.equal(ring, expected)


@pytest.mark.parametrize("accepted", [0, 1, 3])
def test_rejected_drafts_leave_no_trace(model, new_fleet, accepted):
    """Verify as many drafts as a ring has room for, keep some, go on: as if never guessed."""
    rng = random.Random(accepted)
    prompt = make_prompts(model, 1, rng)[0].repeat(97)[:97]
    num_guesses = model.config.dspark_block_size + 1
    tail = make_prompts(model, 1, rng)[0].repeat(20)[: num_guesses + 4]
    guesses = torch.arange(num_guesses) + 7
    true_text = torch.cat([prompt, guesses[:accepted], tail])
    plain = new_fleet(model, [true_text], [0], seed=1)
    plain.run([(0, len(true_text))])
    fleet = new_fleet(model, [torch.cat([prompt, guesses])], [0], seed=1)
    fleet.run([(0, len(prompt))])
    fleet.run([(0, num_guesses)])
    request = fleet.requests[0]
    request.token_ids = true_text
    request.num_done = len(prompt) + accepted
    for position in range(request.num_done, len(prompt) + num_guesses):
        del request.logits[position], request.hidden[position]
    for _ in range(len(tail)):
        fleet.run([(0, 1)])
    assert_same(fleet, plain, 0)


def test_snapshot_continues_in_another_slot(model, new_fleet):
    """A slot's rings, restored elsewhere, continue bit for bit."""
    prompt = make_prompts(model, 1, random.Random(9))[0].repeat(90)[:90]
    whole = new_fleet(model, [prompt, prompt], [0, 0], seed=1)
    whole.run([(0, 90)])
    fleet = new_fleet(model, [prompt, prompt], [0, 0], seed=1)
    fleet.run([(0, 41)])
    snapshot = fleet.cache.snapshot(int(fleet.slots[0]))
    fleet.cache.restore(int(fleet.slots[1]), snapshot)
    fleet.tables[1] = fleet.tables[0]
    fleet.requests[1].num_done = 41
    fleet.run([(1, 49)])
    for position in range(41, 90):
        expected = whole.requests[0].logits[position]
        assert torch.equal(fleet.requests[1].logits[position], expected)


@pytest.mark.parametrize("begin, end", [(0, 41), (0, 5), (30, 31), (30, 43), (36, 60)])
def test_rings_saved_within_a_pass_continue_in_another_slot(model, new_fleet, begin, end):
    """A pass from ``begin`` to 90 also stores the rings before token ``end`` in another slot, as a
    pass that ends there would, and changes nothing else; decoder layers run from 60 on."""
    prompt = make_prompts(model, 1, random.Random(9))[0].repeat(90)[:90]
    whole, ended, fleet = (new_fleet(model, [prompt] * 3, [60] * 3, seed=1) for _ in range(3))
    for each in (whole, ended, fleet):
        if begin:
            each.run([(0, begin)])
    whole.run([(0, 90 - begin)])
    ended.run([(0, end - begin)])
    slot, spare, _ = fleet.slots.tolist()
    fleet.cache.restore(spare, fleet.cache.snapshot(slot))
    fleet.run([(2, 7), (0, 90 - begin)], ring_saves=[RingSave(7, 7 + end - begin, spare)])
    assert_same(fleet, whole, 0)
    for ring, expected in zip(fleet.rings(0), whole.rings(0), strict=True):
        assert torch.equal(ring, expected)
    size, layers = ring_size(model.config), model.config.num_encoder_layers
    rows = torch.arange(max(0, end - size), end) % size
    saved, expected = (c.window[:layers, s] for c, s in ((fleet.cache, spare), (ended.cache, slot)))
    assert torch.equal(saved[:, rows], expected[:, rows])
    fleet.tables[1] = fleet.tables[0]
    fleet.requests[1].num_done = end
    fleet.run([(1, 90 - end)])
    for position in range(60, 90):
        assert torch.equal(fleet.requests[1].logits[position], whole.requests[0].logits[position])


def test_the_tokens_scored_at_a_time_do_not_matter(model, new_fleet, monkeypatch):
    prompt = make_prompts(model, 1, random.Random(2))[0].repeat(150)[:150]
    results = []
    for scores_at_once in (1 << 24, 200):
        monkeypatch.setattr(indexer, "_SCORES_AT_ONCE", scores_at_once)
        fleet = new_fleet(model, [prompt], [20], seed=1)
        fleet.run([(0, len(prompt))])
        results.append(fleet)
    assert_same(*results, 0)
