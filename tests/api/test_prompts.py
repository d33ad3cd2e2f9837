"""The forms in which prompts and sampling parameters may be given."""

from __future__ import annotations

import pytest

from deepinfer.engine.types import SamplingParams
from deepinfer.errors import ConfigError
from deepinfer.rows.prompts import prompt_rows, sampling_for_each


@pytest.mark.parametrize(
    "prompts, rows",
    [
        ("a", [{"prompt": "a"}]),
        (["a", "b"], [{"prompt": "a"}, {"prompt": "b"}]),
        ([1, 2], [{"prompt_token_ids": [1, 2]}]),
        ([[1, 2], (3,)], [{"prompt_token_ids": [1, 2]}, {"prompt_token_ids": [3]}]),
        ({"messages": []}, [{"messages": []}]),
        (
            ["a", {"prompt": "b"}, [1]],
            [{"prompt": "a"}, {"prompt": "b"}, {"prompt_token_ids": [1]}],
        ),
        ([], []),
        ((text for text in "ab"), [{"prompt": "a"}, {"prompt": "b"}]),
    ],
)
def test_forms(prompts, rows):
    assert prompt_rows(prompts) == rows


@pytest.mark.parametrize(
    "prompts, named", [(["a", 5.5], r"prompts\[1\]"), (7.5, "float"), (None, "None")]
)
def test_wrong_forms(prompts, named):
    with pytest.raises(ConfigError, match=named):
        prompt_rows(prompts)


def test_sampling_for_each():
    own = [SamplingParams(seed=1), SamplingParams(seed=2)]
    assert sampling_for_each(own, 2) == own
    assert sampling_for_each(own[0], 2) == [own[0]] * 2
    assert sampling_for_each(None, 1) == [SamplingParams()]
    with pytest.raises(ConfigError, match="2 sampling_params for 3 prompts"):
        sampling_for_each(own, 3)
    with pytest.raises(ConfigError, match="expected a SamplingParams or a list, got int"):
        sampling_for_each(5, 3)
    with pytest.raises(ConfigError, match="expected a SamplingParams or a list, got dict"):
        sampling_for_each({"temperature": 1}, 1)
    with pytest.raises(ConfigError, match=r"sampling_params\[1\]: expected a SamplingParams"):
        sampling_for_each([own[0], {}], 2)
