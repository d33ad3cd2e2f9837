"""``speculative``: its three forms, upstream's variables, and what the report says about drafts."""

from __future__ import annotations

import pytest

from deepinfer.errors import ConfigError
from deepinfer_cli.settings.engine_arguments import drafting
from deepinfer_cli.settings.layers import resolve


@pytest.mark.parametrize(
    ("word", "arguments"),
    [
        ("auto", {}),
        ("0", {"num_speculative_tokens": 0, "schedule_drafts": False}),
        ("3", {"num_speculative_tokens": 3, "schedule_drafts": False}),
        ("auto:3", {"num_speculative_tokens": 3, "schedule_drafts": True}),
    ],
)
def test_the_forms_of_the_setting(word: str, arguments: dict[str, object]) -> None:
    settings = resolve({"speculative": word}, environment={}).settings
    assert drafting(settings.speculative) == arguments


@pytest.mark.parametrize(
    ("environment", "word"),
    [
        ({}, "auto"),
        ({"DEEPINFER_ENABLE_MTP_VARLEN": "1"}, "auto:5"),
        ({"DEEPINFER_ENABLE_MTP_VARLEN": "0"}, "5"),
        ({"DEEPINFER_USE_NEXTN_DECODE": "3"}, "3"),
        ({"DEEPINFER_USE_NEXTN_DECODE": "0", "DEEPINFER_ENABLE_MTP_VARLEN": "1"}, "0"),
        ({"DEEPINFER_USE_NEXTN_DECODE": "2", "DEEPINFER_ENABLE_MTP_VARLEN": "1"}, "auto:2"),
        ({"DEEPINFER_USE_NEXTN_DECODE": "2", "DEEPINFER_SPECULATIVE": "4"}, "4"),
    ],
)
def test_upstream_s_variables_mean_the_same(environment: dict[str, str], word: str) -> None:
    assert resolve({}, environment=environment).settings.speculative == word


@pytest.mark.parametrize("word", ["", "many", "-1", "auto:", "auto:0", "1.5"])
def test_other_words_are_refused(word: str) -> None:
    with pytest.raises(ConfigError, match=r"--speculative.*expected auto"):
        resolve({"speculative": word}, environment={})


def test_a_bad_upstream_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="DEEPINFER_USE_NEXTN_DECODE=some"):
        resolve({}, environment={"DEEPINFER_USE_NEXTN_DECODE": "some"})
