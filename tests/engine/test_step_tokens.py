"""Drafts chosen by the device are laid out as those that the host chose."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.engine.execution.step_tokens import choose_drafts, known_drafts, padded
from deepinfer.engine.speculation.verify_lengths import top_lengths


@given(st.data(), st.integers(1, 9), st.integers(1, 5))
def test_the_likeliest_are_chosen(data: st.DataObject, count: int, depth: int) -> None:
    """By ``top_lengths``, which the host chooses by; chances differ, so there is one answer."""
    order = data.draw(st.permutations(range(1, count * depth + 1)))
    survival = torch.tensor(order, dtype=torch.float32).view(count, depth)
    survival = survival.sort(-1, descending=True).values / (count * depth + 1)
    most = data.draw(st.lists(st.integers(0, 6), min_size=count, max_size=count))
    budget = data.draw(st.integers(0, sum(min(limit, depth) for limit in most)))
    first = data.draw(st.lists(st.integers(0, 500), min_size=count, max_size=count))
    token_ids = torch.arange(100, 100 + count * depth).view(count, depth)

    chosen = choose_drafts(token_ids, survival, first, most, budget)

    lengths = top_lengths(survival, most, budget)
    drafts = [row[:length] for row, length in zip(token_ids.tolist(), lengths, strict=True)]
    tokens, lens = known_drafts(first, drafts)
    assert chosen.tokens.tolist() == tokens.tolist()
    assert chosen.lens.tolist() == lens.tolist()
    assert (chosen.most_lens >= lens).all()


@given(st.data(), st.integers(1, 6), st.integers(1, 5))
def test_equal_chances_give_prefixes_within_the_limits(
    data: st.DataObject, count: int, depth: int
) -> None:
    """Chances of 1 and of 0 among them: there are as many drafts as asked for all the same."""
    chances = st.sampled_from([1.0, 0.5, 0.0])
    rows = data.draw(
        st.lists(st.lists(chances, min_size=depth, max_size=depth), min_size=count, max_size=count)
    )
    survival = torch.tensor(rows).cumprod(-1)
    most = data.draw(st.lists(st.integers(0, 6), min_size=count, max_size=count))
    allowed = [min(limit, depth) for limit in most]
    budget = data.draw(st.integers(0, sum(allowed)))
    chosen = choose_drafts(torch.zeros(count, depth).long(), survival, [7] * count, most, budget)
    assert int(chosen.lens.sum()) == count + budget == chosen.tokens.shape[1]
    assert all(1 <= n <= 1 + limit for n, limit in zip(chosen.lens.tolist(), allowed, strict=True))


@pytest.mark.parametrize("size", [3, 4, 7])
def test_padding_repeats_the_last_token(size: int) -> None:
    columns = np.arange(12).reshape(4, 3)
    expected = columns[:, [min(place, 2) for place in range(size)]]
    assert padded(columns, size).tolist() == expected.tolist()
    assert padded(torch.from_numpy(columns), size).tolist() == expected.tolist()
