"""The sampler against its definition, against the softmax, and against itself in other batches."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepinfer.kernels.sampling import (
    apply_penalties,
    exponential_noise,
    sample,
    token_logprobs,
)

INF = math.inf


def draw(logits: Tensor, **params: object) -> Tensor:
    """``sample`` with scalar parameters spread over the rows, seeds 0.. and position 7."""
    n = len(logits)

    def spread(name: str, default: float, dtype: torch.dtype) -> Tensor:
        value = params.get(name, default)
        return value if isinstance(value, Tensor) else torch.full((n,), value, dtype=dtype)

    return sample(
        logits,
        spread("temperature", 1.0, torch.float32),
        spread("top_p", 1.0, torch.float32),
        spread("top_k", 0, torch.int64),
        spread("min_p", 0.0, torch.float32),
        params["seeds"] if "seeds" in params else torch.arange(n),  # type: ignore[arg-type]
        spread("positions", 7, torch.int64),
    )


def kept_tokens(probs: Tensor, top_p: float, top_k: int, min_p: float) -> list[int]:
    """The tokens that all filters keep, by the definition."""
    kept = []
    for token, prob in enumerate(probs):
        above = probs[probs > prob]
        is_kept = top_p >= 1 or float(above.double().sum()) < top_p
        is_kept &= top_k == 0 or len(above) < top_k
        if is_kept and float(prob) >= min_p * float(probs.max()):
            kept.append(token)
    return kept


def naive_sample(
    logits: Tensor, temperature: float, top_p: float, top_k: int, min_p: float, seed: int
) -> int:
    probs = ((logits - logits.max()) / temperature).softmax(-1)
    noise = exponential_noise(torch.tensor([seed]), torch.tensor([7]), len(logits))[0]
    kept = torch.tensor(kept_tokens(probs, top_p, top_k, min_p))
    scores = torch.full_like(probs, -1.0)
    scores[kept] = (probs / noise)[kept]
    return int(scores.argmax())


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0], [5.0, -INF, 5.0, 5.0], [-INF, INF, 0.0, INF]])
    assert draw(logits, temperature=0.0).tolist() == [1, 0, 1]
    wide = torch.zeros(3, 4096)
    wide[1, 77] = wide[1, 3000] = 1.0
    wide[2, 63] = wide[2, 64] = 1.0
    assert draw(wide, temperature=0.0).tolist() == [0, 77, 63]


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 2**31),
    vocab=st.sampled_from([1, 2, 7, 64, 130]),
    spread=st.sampled_from([0.0, 0.5, 3.0, 20.0]),
    rounded=st.booleans(),
    temperature=st.sampled_from([0.01, 0.7, 1.0, 3.0]),
    top_p=st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.999, 1.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 1000]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)
def test_filters_equal_their_definition(
    seed: int,
    vocab: int,
    spread: float,
    rounded: bool,
    temperature: float,
    top_p: float,
    top_k: int,
    min_p: float,
) -> None:
    logits = torch.randn(6, vocab, generator=torch.Generator().manual_seed(seed)) * spread
    if rounded:
        logits = logits.round()
    chosen = draw(logits, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p).tolist()
    for row in range(6):
        probs = ((logits[row] - logits[row].max()) / temperature).softmax(-1)
        masses = probs.sort(descending=True).values.double().cumsum(0)
        if top_p < 1 and bool(((masses - top_p).abs() < 1e-5).any()):
            continue  # Two ways of summing may disagree on the very edge.
        expected = naive_sample(logits[row], temperature, top_p, top_k, min_p, row)
        assert chosen[row] == expected


@pytest.mark.parametrize(
    "filters",
    [{"top_p": 1e-300}, {"top_p": 1e-45}, {"top_p": 1e-300, "temperature": 100.0}, {"min_p": 1.0}],
    ids=str,
)
def test_no_filter_drops_the_most_probable_token(filters: dict[str, float]) -> None:
    """A top_p that is 0 in f32 once dropped every token, and the search for another never ended."""
    logits = torch.randn(4, 130, generator=torch.Generator().manual_seed(1))
    assert draw(logits, **filters).tolist() == logits.argmax(-1).tolist()


def test_draws_follow_the_softmax() -> None:
    """Chi-square over 40,000 seeds at one position, and over 40,000 positions of one seed."""
    logits = torch.tensor([2.0, 0.0, -1.0, 1.0, 0.5, -3.0, 2.0, 0.1])
    count = 40_000
    many = logits.expand(count, -1)
    expected = (logits / 0.8).softmax(-1) * count
    fixed = torch.full((count,), 5)
    for seeds, positions in ((torch.arange(count), fixed), (fixed, torch.arange(count))):
        drawn = draw(many, temperature=0.8, seeds=seeds, positions=positions)
        observed = torch.bincount(drawn, minlength=len(logits))
        chi_square = float(((observed - expected) ** 2 / expected).sum())
        assert chi_square < 24.3  # 99.9 % quantile at 7 degrees of freedom


def test_draws_follow_the_filtered_softmax() -> None:
    logits = torch.tensor([2.0, 1.9, 1.0, 0.9, -1.0, 1.95])
    count = 30_000
    drawn = draw(logits.expand(count, -1), top_p=0.8, top_k=4)
    kept = kept_tokens(logits.softmax(-1), 0.8, 4, 0.0)
    expected = logits[kept].softmax(-1) * count
    observed = torch.bincount(drawn, minlength=len(logits))
    assert int(observed.sum() - observed[kept].sum()) == 0
    assert float(((observed[kept] - expected) ** 2 / expected).sum()) < 16.3  # 3 degrees of freedom


def test_noise_is_exponential_and_uncorrelated() -> None:
    seeds = torch.arange(500).repeat_interleave(4)
    positions = torch.arange(4).repeat(500)
    noise = exponential_noise(seeds, positions, 1000)
    assert float(noise.min()) > 0 and math.isfinite(float(noise.max()))
    assert abs(float(noise.mean()) - 1) < 4e-3
    assert abs(float(noise.var()) - 1) < 2e-2
    # Kolmogorov-Smirnov distance to the exponential distribution, 2 million values.
    values = noise.flatten().sort().values
    empirical = torch.arange(1, len(values) + 1) / len(values)
    assert float((empirical - (1 - (-values).exp())).abs().max()) < 1.7 / math.sqrt(len(values))
    for table in (noise[:64], noise.T[:64]):
        correlation = torch.corrcoef(table).fill_diagonal_(0).abs().max()
        assert float(correlation) < 6 / math.sqrt(table.shape[1])


def test_noise_needs_all_bits_of_the_seed() -> None:
    base = 0x0123456789ABCDEF
    seeds = torch.tensor([base] + [base ^ (1 << bit) for bit in range(63)] + [base - 2**63])
    noise = exponential_noise(seeds, torch.zeros(65, dtype=torch.int64), 256)
    assert len({tuple(row) for row in noise.tolist()}) == 65
    assert float(torch.corrcoef(noise).fill_diagonal_(0).abs().max()) < 0.35


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_row_does_not_see_its_neighbours(data: st.DataObject) -> None:
    """Bitwise: any subset and order of rows gives each row the token it gets alone."""
    n, vocab = 9, data.draw(st.sampled_from([33, 1000, 4096]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    logits = torch.randn(n, vocab, generator=generator) * 4
    choices = {
        "temperature": torch.tensor([0.0, 1.0, 0.7])[torch.randint(3, (n,), generator=generator)],
        "top_p": torch.tensor([1.0, 0.9, 0.3])[torch.randint(3, (n,), generator=generator)],
        "top_k": torch.tensor([0, 0, 3])[torch.randint(3, (n,), generator=generator)],
        "min_p": torch.tensor([0.0, 0.1])[torch.randint(2, (n,), generator=generator)],
        "seeds": torch.randint(2**60, (n,), generator=generator),
        "positions": torch.randint(1000, (n,), generator=generator),
    }
    if data.draw(st.booleans()):
        logits[3, 5] = float("nan")
    together = draw(logits, **choices)
    rows = torch.tensor(data.draw(st.permutations(range(n)))[: data.draw(st.integers(1, n))])
    apart = draw(logits[rows], **{name: value[rows] for name, value in choices.items()})
    assert torch.equal(apart, together[rows])
    assert torch.equal(
        exponential_noise(choices["seeds"][rows], choices["positions"][rows], vocab),
        exponential_noise(choices["seeds"], choices["positions"], vocab)[rows],
    )


def test_a_wide_row_alone_equals_itself_in_a_batch() -> None:
    """A single long row must not be summed in another order than one of many."""
    logits = torch.randn(5, 129_280, generator=torch.Generator().manual_seed(1))
    seeds = torch.arange(5)
    together = draw(logits, top_p=0.97, seeds=seeds)
    apart = [draw(logits[i : i + 1], top_p=0.97, seeds=seeds[i : i + 1]) for i in range(5)]
    assert torch.equal(together, torch.cat(apart))
    several = token_logprobs(logits, together, 5)
    single = token_logprobs(logits[2:3], together[2:3], 5)
    assert all(torch.equal(a[2:3], b) for a, b in zip(several, single, strict=True))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_unusable_and_infinite_logits(temperature: float) -> None:
    logits = torch.zeros(5, 8)
    logits[0, 3] = float("nan")
    logits[1] = -INF
    logits[2, [2, 6]] = INF
    logits[3] = -INF
    logits[3, 4] = -50.0
    chosen = draw(logits, temperature=temperature, top_p=0.9).tolist()
    assert chosen[:2] == [-1, -1]
    assert chosen[2] in (2, 6) and chosen[3] == 4 and 0 <= chosen[4] < 8


def test_infinite_logits_share_the_probability() -> None:
    logits = torch.tensor([0.0, INF, 3.0, INF]).expand(4000, -1)
    counts = torch.bincount(draw(logits), minlength=4)
    assert counts[[0, 2]].tolist() == [0, 0] and abs(int(counts[1]) - 2000) < 200


def test_no_rows() -> None:
    assert draw(torch.empty(0, 10)).tolist() == []


@settings(deadline=None, max_examples=60)
@given(
    presence=st.floats(-2, 2),
    frequency=st.floats(-2, 2),
    repetition=st.floats(0.1, 10),
    prompt=st.lists(st.integers(0, 9), max_size=6),
    output=st.lists(st.integers(0, 9), max_size=12),
)
def test_penalties_equal_their_definition(
    presence: float, frequency: float, repetition: float, prompt: list[int], output: list[int]
) -> None:
    logits = torch.linspace(-4, 5, 10)
    counts = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=10)
    mask = torch.zeros(10, dtype=torch.bool)
    mask[prompt] = True
    got = apply_penalties(
        logits[None],
        counts[None].int(),
        mask[None],
        *(torch.tensor([v]) for v in (presence, frequency, repetition)),
    )[0]
    for token in range(10):
        value = float(logits[token])
        if token in prompt or token in output:
            value = value / repetition if value > 0 else value * repetition
        if token in output:
            value -= presence + frequency * output.count(token)
        assert float(got[token]) == pytest.approx(value, rel=1e-5, abs=1e-5)


def test_logprobs_order_and_values() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    chosen, ids, values = token_logprobs(logits, torch.tensor([3, 4]), 3)
    assert ids.tolist() == [[1, 2, 4], [0, 1, 2]]
    expected = logits.double().log_softmax(-1)
    torch.testing.assert_close(chosen.double(), expected[[0, 1], [3, 4]], atol=1e-6, rtol=0)
    torch.testing.assert_close(values.double(), expected.gather(1, ids), atol=1e-6, rtol=0)
    _, ids, values = token_logprobs(logits, torch.tensor([3, 4]), 0)
    assert ids.shape == values.shape == (2, 0)
    assert token_logprobs(logits, torch.tensor([3, 4]), 20)[1].shape == (2, 5)
