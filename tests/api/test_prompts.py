"""The forms in which prompts and sampling parameters may be given."""

from __future__ import annotations

import pytest

from deepinfer.engine.types import SamplingParams
from deepinfer.errors import ConfigError
from deepinfer.rows.prompts import numbered_rows, prompt_rows, sampling_for_each

FORMS = pytest.mark.parametrize(
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
        (dict.fromkeys("ab").keys(), [{"prompt": "a"}, {"prompt": "b"}]),
    ],
)


@FORMS
def test_forms(prompts, rows):
    assert prompt_rows(prompts) == rows
    if not isinstance(prompts, str | dict) and prompts != [1, 2]:
        assert prompt_rows(prompt for prompt in prompts) == rows


@FORMS
def test_a_stream_takes_the_same_forms(prompts, rows):
    one = SamplingParams(seed=3)
    assert list(numbered_rows(prompts, one)) == [(i, row, one) for i, row in enumerate(rows)]


@FORMS
def test_a_stream_takes_numbers_with_them(prompts, rows):
    if isinstance(prompts, str | dict) or prompts == [1, 2]:
        prompts = [prompts]
    pairs = [(10 + 3 * place, prompt) for place, prompt in enumerate(prompts)]
    for given in (pairs, iter(pairs), [list(pair) for pair in pairs]):
        found = list(numbered_rows(given, None))
        assert [number for number, _, _ in found] == [10 + 3 * i for i in range(len(rows))]
        assert [row for _, row, _ in found] == rows


def test_what_a_pair_holds_is_judged_as_its_row():
    wrong = [(0, None), (1, 5.5), (2, b"x"), (3, {}), (4, "")]
    assert [row for _, row, _ in numbered_rows(wrong, None)] == [
        None,
        5.5,
        b"x",
        {},
        {"prompt": ""},
    ]
    assert [row for _, row, _ in numbered_rows([(7, 8)], None)] == [{"prompt_token_ids": [7, 8]}]


def test_a_stream_pulls_one_prompt_at_a_time():
    pulled = []
    rows = numbered_rows((pulled.append(i) or str(i) for i in range(9)), None)
    assert not pulled and next(rows)[0] == 0 and pulled == [0]
    endless = numbered_rows(iter(lambda: "a", None), SamplingParams())
    assert [next(endless)[0] for _ in range(5)] == [0, 1, 2, 3, 4]


def test_the_sampling_of_each_prompt_of_a_stream():
    own = [SamplingParams(seed=1), SamplingParams(seed=2)]
    for prompts in (["a", "b"], iter("ab")):
        assert [sampling for _, _, sampling in numbered_rows(prompts, own)] == own
    for prompts, number in (("abc", "more than 2"), ("a", "1"), ("", "0")):
        with pytest.raises(ConfigError, match=f"2 sampling_params for {number} prompts"):
            list(numbered_rows(iter(prompts), own))
        with pytest.raises(ConfigError, match=f"2 sampling_params for {len(prompts)} prompts"):
            numbered_rows(list(prompts), own)
    for wrong in (5, {"temperature": 1}, [own[0], {}]):
        with pytest.raises(ConfigError, match="expected a SamplingParams"):
            numbered_rows(iter("ab"), wrong)


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
