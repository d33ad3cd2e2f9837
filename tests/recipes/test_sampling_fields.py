"""Sampling fields of a row: our names, OpenAI's aliases, wrong types and values."""

from __future__ import annotations

from dataclasses import fields

import pytest

from deepinfer.engine.types import SamplingParams
from deepinfer.errors import RowError
from deepinfer.recipes.sampling_fields import SAMPLING_FIELDS, sampling_overrides


def test_every_sampling_parameter_can_be_set_by_a_row():
    assert {field.name for field in fields(SamplingParams)} <= SAMPLING_FIELDS


@pytest.mark.parametrize(
    "row, expected",
    [
        ({}, {}),
        ({"temperature": None, "stop": None, "logprobs": None}, {}),
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"max_tokens": 5.0}, {"max_tokens": 5}),
        ({"max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 5, "max_tokens": 5}, {"max_tokens": 5}),
        ({"stop": "a"}, {"stop": ("a",)}),
        ({"stop": ["a", "b"]}, {"stop": ("a", "b")}),
        ({"stop": []}, {"stop": ()}),
        ({"logprobs": True}, {"logprobs": True}),
        ({"logprobs": False}, {"logprobs": False}),
        ({"logprobs": True, "top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        ({"top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        ({"top_logprobs": 0}, {"top_logprobs": 0}),
        ({"logprobs": 4}, {"logprobs": True, "top_logprobs": 4}),
        ({"logprobs": 0}, {"logprobs": True, "top_logprobs": 0}),
        ({"logit_bias": {"5": 1, "6": -100}}, {"logit_bias": {5: 1.0, 6: -100.0}}),
        ({"n": 3, "seed": 9}, {"n": 3, "seed": 9}),
        ({"ignore_eos": True, "min_tokens": 1}, {"ignore_eos": True, "min_tokens": 1}),
        ({"stop_token_ids": [1, 2]}, {"stop_token_ids": (1, 2)}),
    ],
)
def test_overrides(row, expected):
    overrides = sampling_overrides(row)
    assert overrides == expected
    SamplingParams(**overrides)


@pytest.mark.parametrize(
    "row, kind",
    [
        ({"temperature": "hot"}, "invalid_type"),
        ({"temperature": True}, "invalid_type"),
        ({"temperature": float("nan")}, "invalid_value"),
        ({"temperature": 10**400}, "invalid_value"),
        ({"top_p": float("inf")}, "invalid_value"),
        ({"max_tokens": 1.5}, "invalid_type"),
        ({"max_tokens": float("nan")}, "invalid_type"),
        ({"max_tokens": 10**30}, "invalid_value"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "invalid_value"),
        ({"n": 0}, "invalid_value"),
        ({"n": 10**9}, "invalid_value"),
        ({"n": True}, "invalid_type"),
        ({"stop": 3}, "invalid_type"),
        ({"stop": [1]}, "invalid_type"),
        ({"stop": ["", "a"]}, "invalid_value"),
        ({"stop": ["a"] * 1000}, "invalid_value"),
        ({"logit_bias": [1]}, "invalid_type"),
        ({"logit_bias": {"x": 1}}, "invalid_value"),
        ({"logit_bias": {"-1": 1}}, "invalid_value"),
        ({"logit_bias": {"1_0": 1}}, "invalid_value"),
        ({"logit_bias": {" 5": 1}}, "invalid_value"),
        ({"logit_bias": {"05": 1}}, "invalid_value"),
        ({"logit_bias": {"\u0665": 1}}, "invalid_value"),
        ({"logit_bias": {"1": "a"}}, "invalid_type"),
        ({"logit_bias": {"1": 1e9}}, "invalid_value"),
        ({"logprobs": "yes"}, "invalid_type"),
        ({"logprobs": False, "top_logprobs": 2}, "invalid_value"),
        ({"ignore_eos": 1}, "invalid_type"),
        ({"stop_token_ids": 5}, "invalid_type"),
        ({"seed": "1"}, "invalid_type"),
    ],
)
def test_errors_name_the_field(row, kind):
    with pytest.raises(RowError, match=next(iter(row))) as caught:
        sampling_overrides(row)
    assert caught.value.kind == kind


def test_a_fraction_is_quoted_where_a_whole_number_is_expected():
    with pytest.raises(RowError, match=r"seed: expected a whole number, got 7\.5"):
        sampling_overrides({"seed": 7.5})
