"""Sampling of the whole run that no row could be answered with is refused before anything loads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_files import assert_refused, prompts, write_rows

Cli = Callable[..., Any]


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--stop-token-ids", "-1"], "--stop-token-ids=(-1,): expected a list of token ids, 0 or"),
        (["--stop-token-ids=3", "--stop-token-ids=4096"], "--stop-token-ids=4096: expected"),
        (["--logit-bias", "999999=1"], "--logit-bias=999999: expected token ids of the model"),
        (["--min-tokens", "4", "--max-tokens", "3"], "--min-tokens=4: expected 0 to --max-tok"),
        (["--min-tokens", "9k"], "--min-tokens=9000: expected 0 to 8191"),
        (["--min-tokens=9", "--max-model-len=9"], "8, since prompt and answer together"),
        (["--min-tokens", "1", "--regex", "a*"], "=1: cannot be combined with a constraint"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", [("run", "-o", "out.jsonl"), ("plan", "--calibrate", "0")])
def test_it_is_named_with_what_it_may_be(
    cli: Cli, verb: tuple[str, ...], flags: list[str], message: str
) -> None:
    source = write_rows("in.jsonl", prompts(1))
    assert_refused(cli(verb[0], source, *verb[1:], *flags), 2, message)
    assert not list(Path().glob("out*"))


def test_the_line_of_a_file_is_named(cli: Cli) -> None:
    source = write_rows("in.jsonl", prompts(1))
    Path("deepinfer.yaml").write_text("top_k: 3\nlogit_bias:\n  4096: -1\n")
    refused = cli("run", source, "-o", "out.jsonl")
    assert_refused(refused, 2, "deepinfer.yaml:2: logit_bias=4096: expected token ids")


def test_what_is_possible_is_taken(cli: Cli) -> None:
    source = write_rows("in.jsonl", prompts(2))
    flags = ["--stop-token-ids=4095", "--logit-bias=0=1", "--min-tokens=3", "--max-tokens=3"]
    done = cli("run", source, "-o", "out.jsonl", "-q", *flags)
    assert (done.exit_code, done.err) == (0, "")
