"""``SamplingParams`` takes what an engine can compute with, and refuses the rest by name."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.engine.types import SamplingParams
from deepinfer.errors import ConfigError

NAMES = [field.name for field in dataclasses.fields(SamplingParams)]

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=3)
    | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.integers(), inner, max_size=3),
    max_leaves=4,
)


@pytest.mark.parametrize(
    "name, value",
    [
        ("temperature", math.nan),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 0),
        ("top_k", 2**63),
        ("top_k", 1.0),
        ("repetition_penalty", 0.0),
        ("logit_bias", {5: math.inf}),
        ("logit_bias", {5: -101}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {"5": 1.0}),
        ("logit_bias", [5]),
        ("seed", 2**64),
        ("seed", 1.5),
        ("max_tokens", 0),
        ("min_tokens", None),
        ("stop", 5),
        ("stop", [b"x"]),
        ("stop", ["a", ""]),
        ("stop_token_ids", 7),
        ("stop_token_ids", [3, -1]),
        ("stop_token_ids", ["7"]),
        ("stop_token_ids", "7"),
        ("ignore_eos", 1),
        ("logprobs", "yes"),
        ("top_logprobs", 21),
        ("n", 0),
    ],
)
def test_a_value_that_cannot_be_used_is_named(name, value):
    with pytest.raises(ConfigError, match=f"^{name}=.*: expected "):
        SamplingParams(**{name: value})


@given(name=st.sampled_from(NAMES), value=ANYTHING)
def test_whatever_is_given_is_taken_or_refused_by_name(name, value):
    """Refused values never reach a tensor: an id or a number too large for one would end a run."""
    try:
        params = SamplingParams(**{name: value})
    except ConfigError as error:
        assert str(error).startswith(f"{name}=")
    else:
        assert hash((params.stop, params.stop_token_ids)) is not None
        assert params.top_k < 2**63
        assert all(math.isfinite(bias) for bias in params.logit_bias.values())


def test_one_stop_string_and_any_list_of_them():
    assert SamplingParams(stop="ab").stop == ("ab",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert SamplingParams(stop_token_ids={7}).stop_token_ids == (7,)
    largest = SamplingParams(seed=2**64 - 1, top_k=2**31 - 1, max_tokens=2**80)
    assert largest.seed == 2**64 - 1
