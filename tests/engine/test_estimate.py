"""Estimates against the real scheduler, and their parts against plain definitions."""

from __future__ import annotations

import math

import pytest
from fake_model import FakeConfig, make_engine, request, run
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.engine.cache.prefix_forecast import PrefixForecast
from deepinfer.engine.config import EngineConfig
from deepinfer.engine.limits.estimate import PlannedRequest, estimate_run
from deepinfer.engine.limits.step_times import StepTimes, fit_step_times
from deepinfer.engine.scheduling.answer_lengths import AnswerLengths

ONE_EACH = StepTimes(
    prefill_base_s=1.0, prefill_token_s=0.5, num_requests=(1.0,), decode_step_s=(2.0,),
    decode_tokens=(1.0,),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=24),
    slots=st.integers(1, 5),
)
def test_steps_are_those_of_the_scheduler(sizes: list[tuple[int, int]], slots: int) -> None:
    engine = make_engine(
        max_num_seqs=slots, max_num_batched_tokens=64, enable_prefix_caching=False, num_blocks=64
    )
    asked = [
        request(str(i), [2 + i % 40] * prompt, max_tokens=output, ignore_eos=True)
        for i, (prompt, output) in enumerate(sizes)
    ]
    run(engine, asked)
    stats = engine.stats()
    found = estimate_run(
        [PlannedRequest(prompt, prompt, output) for prompt, output in sizes],
        ONE_EACH,
        max_num_seqs=slots,
        max_num_batched_tokens=64,
        cache_tokens=256,
    )
    assert found.num_decode_steps == stats.num_decode_steps
    assert found.num_decode_rows == stats.num_decode_rows
    assert found.num_prefill_steps == stats.num_steps - stats.num_decode_steps
    tokens = sum(prompt for prompt, _ in sizes)
    assert found.prefill_s == pytest.approx(found.num_prefill_steps + 0.5 * tokens)


def test_caches_and_budgets_bound_a_step() -> None:
    requests = [PlannedRequest(10, 10, 11)] * 4
    wide = {"max_num_seqs": 4, "max_num_batched_tokens": 100, "cache_tokens": 1000}
    assert estimate_run(requests, ONE_EACH, **wide).num_decode_steps == 10
    small_cache = estimate_run(requests, ONE_EACH, **(wide | {"cache_tokens": 50}))
    assert small_cache.num_decode_steps == 20  # two at a time
    tiny_cache = estimate_run(requests, ONE_EACH, **(wide | {"cache_tokens": 1}))
    assert tiny_cache.num_decode_steps == 40  # one always runs
    budget = estimate_run(requests, ONE_EACH, **(wide | {"max_num_batched_tokens": 10}))
    assert budget.num_prefill_steps == 4
    drafts = StepTimes(
        prefill_base_s=0.0, prefill_token_s=0.0, num_requests=(1.0,), decode_step_s=(1.0,),
        decode_tokens=(2.5,),
    )  # fmt: skip
    assert estimate_run(requests, drafts, **wide).num_decode_steps == 4
    assert estimate_run([], ONE_EACH, **wide).num_decode_steps == 0


# Step times ------------------------------------------------------------------------------------


def test_step_times_are_found_again() -> None:
    prefills = [(tokens, 0.3 + 0.01 * tokens) for tokens in (10, 50, 200, 200)]
    decodes = [(n, 3 * n, 0.1 + 0.02 * n) for n in range(1, 65) for _ in range(3)]
    times = fit_step_times(prefills, decodes)
    assert times.prefill_base_s == pytest.approx(0.3) and times.prefill_s(100) == pytest.approx(1.3)
    for number in (1, 7, 33, 60):
        assert times.decode_s(number) == pytest.approx(0.1 + 0.02 * number, rel=0.03)
        assert times.tokens_per_step(number) == pytest.approx(3)
    assert times.decode_s(128) == pytest.approx(2 * times.decode_s(64), rel=0.1)


@given(
    st.lists(st.tuples(st.integers(1, 4000), st.floats(1e-4, 10)), min_size=1, max_size=30),
)
def test_prefill_times_add_up_and_never_fall(prefills: list[tuple[int, float]]) -> None:
    times = fit_step_times(prefills, [])
    assert times.prefill_base_s >= -1e-9 and times.prefill_token_s >= 0
    total = sum(times.prefill_s(tokens) for tokens, _ in prefills)
    assert total == pytest.approx(sum(seconds for _, seconds in prefills))
    assert times.decode_s(1) > 0 and times.tokens_per_step(1) == 1


# Lengths ---------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 500), min_size=1, max_size=60))
def test_lengths_that_all_ended_are_drawn_as_they_are(lengths: list[int]) -> None:
    known = AnswerLengths((length, True) for length in lengths)
    drawn = known.draw(len(lengths))
    assert sorted(length for length in drawn if length is not None) == sorted(lengths)


def test_cut_answers_count_as_longer() -> None:
    known = AnswerLengths([(10, True)] * 5 + [(20, True)] * 5 + [(10, False)] * 10)
    drawn = known.draw(1000)
    # A quarter ends at 10; what was cut there would have gone on as the others did.
    assert drawn.count(10) == 250 and drawn.count(20) == 750
    half_cut = AnswerLengths([(10, True)] * 50 + [(100, False)] * 50).draw(100)
    assert sorted(half_cut, key=lambda n: n or 0)[:50] == [10] * 50
    assert min(length for length in half_cut if length != 10 and length is not None) > 10


def test_nothing_is_known_without_an_end() -> None:
    assert AnswerLengths([(50, False)]).draw(3) == [None] * 3
    assert AnswerLengths([]).draw(2) == [None] * 2


def test_a_constant_chance_is_extrapolated() -> None:
    """Geometric lengths seen only up to 100 tokens: the mean comes out right nevertheless."""
    chance = 1 / 150
    ended = [
        (n, True) for n in range(1, 101)
        for _ in range(round(2000 * chance * (1 - chance) ** (n - 1)))
    ]  # fmt: skip
    known = AnswerLengths(ended + [(100, False)] * (2000 - len(ended)))
    drawn = [length for length in known.draw(5000) if length is not None]
    assert math.isclose(sum(drawn) / 5000, 150, rel_tol=0.15)


def test_lengths_drawn_by_chance_scatter_around_the_even_draw() -> None:
    known = AnswerLengths([(10, True)] * 50 + [(30, True)] * 50)
    assert known.num_ended == 100
    even = sum(length or 0 for length in known.draw(40))
    by_chance = [
        sum(length or 0 for length in known.measured_again(seed).draw(40, seed, evenly=False))
        for seed in range(200)
    ]
    assert even == 800 and len(set(by_chance)) > 10
    assert sum(by_chance) / len(by_chance) == pytest.approx(800, rel=0.02)
    # Of 40 draws of 10 or 30, and of 100 measured ones: 10 * sqrt(1 / 40 + 1 / 100) a row.
    spread = (sum((total - 800) ** 2 for total in by_chance) / len(by_chance)) ** 0.5 / 40
    assert spread == pytest.approx(10 * (1 / 40 + 1 / 100) ** 0.5, rel=0.2)
    assert AnswerLengths([]).measured_again(1).draw(2, evenly=False) == [None, None]


# Prefixes --------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    prompts=st.lists(
        st.tuples(st.sampled_from([0, 8, 16, 24, 33]), st.integers(1, 20), st.integers(0, 3)),
        min_size=1,
        max_size=8,
    ),
    mode=st.sampled_from([{}, {"batch_invariant": True}, {"exact": True},
                          {"enable_prefix_caching": False}]),
)  # fmt: skip
def test_shared_tokens_are_those_of_the_engine(
    prompts: list[tuple[int, int, int]], mode: dict[str, bool]
) -> None:
    engine = make_engine(max_num_seqs=1, max_num_batched_tokens=64, num_blocks=200, **mode)
    texts = [
        [2 + i % 7 for i in range(shared)] + [10 + kind] * own for shared, own, kind in prompts
    ]
    run(engine, [request(str(i), text, max_tokens=1) for i, text in enumerate(texts)])
    config = EngineConfig(max_num_seqs=1, block_size=4, num_blocks=200, **mode)
    forecast = PrefixForecast(config, FakeConfig().sliding_window)
    # The engine takes two at a time and starts with the longer one.
    order = [
        text
        for at in range(0, len(texts), 2)
        for text in sorted(texts[at : at + 2], key=lambda text: -len(text))
    ]
    hits = [forecast.hit(text) for text in order]
    stats = engine.stats()
    assert sum(hit.num_tokens for hit in hits) == stats.num_cached_tokens
    computed = sum(len(text) - hit.start for text, hit in zip(order, hits, strict=True))
    assert computed == stats.num_prefill_tokens


def test_what_is_a_guess() -> None:
    known = AnswerLengths([(10, True), (30, False)])
    assert not known.is_guess(10, most=1000)
    assert known.is_guess(40, most=1000) and known.is_guess(None, most=31)
    assert not known.is_guess(40, most=30)  # one was seen to get that long


@pytest.mark.parametrize(
    "steps, expected",
    [((2.0, 3.0), 5.0), ((4.0, 3.0), 3.0), ((0.5, 3.0), 6.0), ((1.0, 1.0), 1.0)],
    ids=["line", "never less than measured", "never more than in proportion", "flat"],
)
def test_larger_batches_than_measured(steps: tuple[float, float], expected: float) -> None:
    """Not in proportion: most of a step's time does not depend on how many share it."""
    times = StepTimes(
        prefill_base_s=0.0, prefill_token_s=0.0, num_requests=(4.0, 8.0), decode_step_s=steps,
        decode_tokens=(1.0, 1.0),
    )  # fmt: skip
    assert times.decode_s(8) == steps[1]
    assert times.decode_s(16) == pytest.approx(expected)
