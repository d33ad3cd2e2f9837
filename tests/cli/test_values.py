"""Values as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer_cli.settings.values import (
    COUNT,
    NUMBER,
    choice,
    many,
    optional,
    pairs,
    parse_bytes,
    parse_count,
    parse_drafts,
    parse_error_limit,
    parse_number,
    parse_seconds,
    parse_switch,
)


@pytest.mark.parametrize(
    "text, expected",
    [("64", 64), ("32k", 32_000), ("1M", 10**6), ("1.5k", 1_500), ("4Ki", 4_096),
     ("2 G", 2 * 10**9), (7, 7), ("18446744073709551615", 2**64 - 1), ("-3", -3)],
)  # fmt: skip
def test_counts(text: object, expected: int) -> None:
    assert parse_count(text) == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        ("24GiB", 24 * 2**30),
        ("10 MB", 10**7),
        ("4096", 4096),
        ("64MiB", 2**26),
        (5, 5),
        ("1kb", 1000),
    ],
)
def test_sizes(text: object, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        ("90", 90),
        ("90s", 90),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("2d", 172800),
        (3, 3),
    ],
)
def test_durations(text: object, expected: float) -> None:
    assert parse_seconds(text) == expected


@pytest.mark.parametrize("text, expected", [("0.7", 0.7), ("90%", 0.9), (1, 1.0), ("1e-3", 0.001)])
def test_numbers(text: object, expected: float) -> None:
    assert parse_number(text) == pytest.approx(expected)


@pytest.mark.parametrize("text, expected", [("5%", 0.05), ("100", 100), ("2k", 2000), ("0", 0)])
def test_error_limits_are_rows_or_a_share(text: str, expected: float) -> None:
    assert parse_error_limit(text) == expected
    assert isinstance(parse_error_limit(text), float) == text.endswith("%")


@pytest.mark.parametrize(
    "parse, text",
    [(parse_count, "1.5"), (parse_count, "many"), (parse_count, True), (parse_count, "1h"),
     (parse_count, ""), (parse_count, "1e999"), (parse_bytes, "3 apples"), (parse_seconds, "1h30"),
     (parse_seconds, "-2h"), (parse_seconds, True), (parse_number, "nan"), (parse_number, "inf"),
     (parse_number, False), (parse_switch, "maybe"), (parse_switch, ""), (parse_error_limit, "-1"),
     (parse_error_limit, "200%"), (parse_seconds, "9" * 400), (parse_seconds, "70000d"),
     (parse_seconds, float("inf")), (parse_drafts, "9" * 99), (parse_drafts, "auto:1e9")],
)  # fmt: skip
def test_what_is_not_a_value_is_refused(parse: object, text: object) -> None:
    with pytest.raises((ValueError, OverflowError)):
        parse(text)  # type: ignore[operator]


@given(st.integers(-(10**18), 10**18))
def test_every_whole_number_is_itself(number: int) -> None:
    assert parse_count(str(number)) == number


def test_yaml_reads_a_bare_off_as_false() -> None:
    assert choice("off", "low").parse(False) == "off"


def test_many_and_pairs() -> None:
    assert many(COUNT).parse("3") == (3,)
    assert many(COUNT).parse(["3", 4]) == (3, 4)
    assert many(COUNT).parse("[3, 4]") == (3, 4)
    bias = pairs(COUNT, NUMBER, "", "")
    assert bias.parse(["12=-5", "13=0.5"]) == bias.parse({12: -5, "13": "50%"}) == {12: -5, 13: 0.5}
    with pytest.raises(ValueError):
        bias.parse("12")
    assert optional(COUNT).parse("none") is None
