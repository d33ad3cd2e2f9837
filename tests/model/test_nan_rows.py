"""A token whose numbers are none spoils its own logits, and nobody else's bits."""

from __future__ import annotations

import pytest
import torch

from deepinfer.engine.model import indexer


@pytest.mark.parametrize("place", [100, 149])
def test_a_token_of_nan_is_alone(model, new_fleet, place, monkeypatch):
    """Long enough for the indexers to choose; what they choose of NaN scores is nothing."""
    picked = []

    def select(scores, seen, k):
        picks = select_topk(scores, seen, k)
        picked.append((scores.isnan().all(1), picks))
        return picks

    select_topk = indexer.select_topk
    monkeypatch.setattr(indexer, "select_topk", select)
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(3, 100, (150,), generator=generator) for _ in range(2)]
    damaged = 101
    prompts[0][place] = damaged
    embed = model.embed.clone()
    embed[damaged] = torch.nan
    monkeypatch.setattr(model, "embed", embed)
    both, alone = (
        new_fleet(model, some, [0] * len(some), seed=1) for some in (prompts, prompts[1:])
    )
    both.run([(0, 150), (1, 150)])
    alone.run([(0, 150)])
    for position, logits in alone.requests[0].logits.items():
        assert torch.equal(both.requests[1].logits[position], logits)
    spoiled = both.requests[0].logits
    assert [p for p, logits in spoiled.items() if bool(logits.isnan().any())] == [place]
    of_nan = torch.cat([picks[is_nan] for is_nan, picks in picked])
    assert len(of_nan) and bool((of_nan == -1).all())
