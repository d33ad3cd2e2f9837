"""Tokens that stand for parts of an image: a router bias of their own, and nothing of Engram."""

from __future__ import annotations

import pytest
import torch

from deepinfer.engine.model.residual import Settled


def _is_image(count: int) -> torch.Tensor:
    return (torch.arange(count) % 3 == 1)[:, None]


def test_the_router_has_another_bias_for_them(model) -> None:
    """Which flips what is chosen, and is in no weight: those of the chosen add up to the same."""
    torch.manual_seed(0)
    moe = model.blocks[-1].moe
    x, is_image = torch.randn(9, model.config.hidden_size).bfloat16(), _is_image(9)
    plain, images = moe.route(x, None), moe.route(x, torch.ones(9, 1, dtype=torch.bool))
    mixed = moe.route(x, is_image)
    for found, text, image in zip(mixed, plain, images, strict=True):
        assert torch.equal(found, torch.where(is_image, image, text))
    assert not torch.equal(images[0], plain[0])
    assert torch.allclose(images[1].sum(1), plain[1].sum(1))


def test_engram_leaves_their_streams(model) -> None:
    torch.manual_seed(0)
    engram = next(iter(model.engrams.values()))
    config, is_image = model.config, _is_image(9)
    streams = torch.randn(9, config.hc_mult, config.hidden_size).bfloat16()
    lookback = torch.randint(3, 50, (9, config.engram_max_ngram_size))
    after = engram(Settled(streams, torch.ones(9, config.hc_mult)), lookback, is_image).streams
    kept = (after == streams).flatten(1).all(1)
    assert torch.equal(kept, is_image[:, 0])


@pytest.mark.parametrize("chunks", [(1,) * 40, (7, 1, 13, 19), (20, 20)])
def test_chunks_change_nothing(chunks, model, new_fleet) -> None:
    prompt = torch.randint(3, 200, (40,), generator=torch.Generator().manual_seed(5))
    text = new_fleet(model, [prompt], [0], seed=1)
    text.run([(0, 40)])
    prompt = torch.where(_is_image(40)[:, 0], model.config.image_token_id, prompt)
    whole, parts = (new_fleet(model, [prompt], [0], seed=seed) for seed in (1, 2))
    whole.run([(0, 40)])
    for count in chunks:
        parts.run([(0, count)])
    for position, logits in whole.requests[0].logits.items():
        assert torch.equal(parts.requests[0].logits[position], logits), position
    assert not torch.equal(text.requests[0].logits[39], whole.requests[0].logits[39])
