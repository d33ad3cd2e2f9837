"""What the page says where a deployment was measured with several numbers of ranks."""

from __future__ import annotations

import pytest

from deepinfer.bench.results import Measurement
from deepinfer_cli.bench.ranks import compared_ranks


def _row(ranks: int, step_s: float, link_s: float) -> Measurement:
    return Measurement(
        phase="decode", name="8 requests", size=8, context=1_000, ranks=ranks, num_drafts=0,
        num_tokens=8.0, step_s=(step_s,), link_s=link_s,
    )  # fmt: skip


@pytest.mark.parametrize(
    "many, ratio, reason",
    [
        (_row(64, 0.005, 0.004), "2.00", None),
        (_row(64, 0.005, 0.020), "0.50", "the link is the limit"),
        (_row(64, 0.020, 0.004), "0.50", "that saves less than the tokens of more ranks cost"),
    ],
)
def test_the_reason_is_what_takes_longest(
    many: Measurement, ratio: str, reason: str | None
) -> None:
    [line] = compared_ranks([many, _row(8, 0.010, 0.001)])
    assert f"EP64 gives {ratio} times the tokens of one of EP8" in line
    assert reason is None or reason in line
    assert (reason is None) == (";" not in line)


def test_one_number_of_ranks_is_compared_with_nothing() -> None:
    assert list(compared_ranks([_row(8, 0.010, 0.001)])) == []
