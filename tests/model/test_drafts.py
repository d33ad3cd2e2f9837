"""Draft stages: drafts do not depend on the batch, on how rings were filled or on rejections."""

from __future__ import annotations

import pytest
import torch

from deepinfer.errors import ConfigError
from deepinfer.kernels.testing import assert_bitwise_equal


def prompt_of(model, length, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, model.config.vocab_size - 60, (length,), generator=generator)


def seed_from(fleet, number, positions, chunk=1000):
    """Show the draft stages some finished positions of a request, ``chunk`` at a time."""
    request = fleet.requests[number]
    hidden = torch.stack([request.hidden[p] for p in positions])
    for first in range(0, len(positions), chunk):
        part = torch.tensor(positions[first : first + chunk])
        slots = torch.full_like(part, int(fleet.slots[number]))
        fleet.model.seed_draft(hidden[first : first + chunk], part, slots, [len(part)], fleet.cache)


def draft(fleet, numbers, anchors, **options):
    requests = [fleet.requests[n] for n in numbers]
    return fleet.model.draft(
        torch.tensor(anchors),
        torch.tensor([r.num_done for r in requests]),
        fleet.slots[torch.tensor(numbers)],
        torch.tensor([r.decoder_start for r in requests]),
        fleet.cache,
        **options,
    )


def ready_fleet(new_fleet, model, lengths, starts, seed=1):
    prompts = [prompt_of(model, n, i) for i, n in enumerate(lengths)]
    fleet = new_fleet(model, prompts, starts, seed=seed)
    fleet.run([(i, n) for i, n in enumerate(lengths)])
    for i, (length, start) in enumerate(zip(lengths, starts, strict=True)):
        seed_from(fleet, i, list(range(start, length)))
    return fleet


def test_drafts_do_not_depend_on_the_batch(model, new_fleet):
    lengths, starts = [3, 40, 150, 90], [0, 0, 20, 0]
    together = draft(ready_fleet(new_fleet, model, lengths, starts), [0, 1, 2, 3], [5, 6, 7, 8])
    fleet = ready_fleet(new_fleet, model, lengths, starts, seed=2)
    for row in range(4):
        alone = draft(fleet, [row], [5 + row])
        assert_bitwise_equal(alone.token_ids[0], together.token_ids[row])
        assert_bitwise_equal(alone.logits[0], together.logits[row])
        assert_bitwise_equal(alone.confidence[0], together.confidence[row])


@pytest.mark.parametrize("depth", [1, 3])
def test_drafts_that_nobody_wants_change_none_before_them(model, new_fleet, depth):
    lengths, starts = [3, 150, 90], [0, 20, 0]
    whole = draft(ready_fleet(new_fleet, model, lengths, starts), [0, 1, 2], [5, 6, 7])
    fleet = ready_fleet(new_fleet, model, lengths, starts)
    first = draft(fleet, [0, 1, 2], [5, 6, 7], depth=depth)
    for found, expected in zip(vars_of(first), vars_of(whole), strict=True):
        assert_bitwise_equal(found, expected[:, :depth])
    unkept = draft(fleet, [0, 1, 2], [5, 6, 7], depth=depth, keeps_logits=False)
    assert unkept.logits is None
    assert_bitwise_equal(unkept.token_ids, first.token_ids)


def vars_of(output):
    return output.token_ids, output.logits, output.confidence


def test_how_a_ring_was_filled_does_not_matter(model, new_fleet):
    """At once (longer than the ring), token by token, or only the part a draft can see."""
    length = 160
    results = []
    for seen, chunk in ((range(length), 1000), (range(length), 1), (range(20, length), 7)):
        fleet = new_fleet(model, [prompt_of(model, length, 0)], [0], seed=1)
        fleet.run([(0, length)])
        seed_from(fleet, 0, list(seen), chunk)
        results.append(draft(fleet, [0], [9]))
    for other in results[1:]:
        assert_bitwise_equal(other.logits, results[0].logits)
        assert_bitwise_equal(other.confidence, results[0].confidence)


def test_drafting_leaves_no_trace(model, new_fleet):
    """Rejected drafts wrote into the ring; the next block must not see them."""
    fleet = ready_fleet(new_fleet, model, [50], [0])
    for anchor in (11, 12, 13):
        draft(fleet, [0], [anchor])
    after_others = draft(fleet, [0], [9])
    fresh = draft(ready_fleet(new_fleet, model, [50], [0]), [0], [9])
    assert_bitwise_equal(after_others.logits, fresh.logits)


def test_nothing_before_the_start_is_seen(model, new_fleet):
    """Stale rows of an earlier user of the slot lie before ``draft_start``."""
    fleet = ready_fleet(new_fleet, model, [40], [36])
    clean = draft(fleet, [0], [9])
    ring_size = fleet.cache.draft.shape[2]
    seeded = {position % ring_size for position in range(36, 40)}
    fleet.cache.draft[:, :, [i for i in range(ring_size) if i not in seeded]] = 77
    assert_bitwise_equal(draft(fleet, [0], [9]).logits, clean.logits)


def test_sampler_decides_and_sees_positions(model, new_fleet):
    """The next step's Markov correction follows the token that the sampler chose."""
    fleet = ready_fleet(new_fleet, model, [20], [0])
    seen = []

    def second_best(logits, positions):
        seen.append(positions.tolist())
        return logits.topk(2).indices[:, 1]

    output = draft(fleet, [0], [9], sample=second_best)
    assert seen == [[21 + step] for step in range(model.config.dspark_block_size)]
    assert_bitwise_equal(output.token_ids, output.logits.topk(2).indices[..., 1])
    assert not torch.equal(output.logits[:, 1], draft(fleet, [0], [9]).logits[:, 1])


def test_confidence_is_a_probability(model, new_fleet):
    output = draft(ready_fleet(new_fleet, model, [20], [0]), [0], [9])
    assert output.confidence.shape == (1, model.config.dspark_block_size)
    assert bool(((output.confidence > 0) & (output.confidence < 1)).all())


def test_a_model_without_stages_says_so(model, new_fleet, monkeypatch):
    fleet = ready_fleet(new_fleet, model, [20], [0])
    monkeypatch.setattr(model, "draft_model", None)
    with pytest.raises(ConfigError, match="no draft stages"):
        draft(fleet, [0], [9])
