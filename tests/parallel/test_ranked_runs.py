"""A run over ranks: the same file, whatever happens to a rank."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from deepinfer import OfflineEngine, SamplingParams
from deepinfer.errors import ConfigError, EngineError
from deepinfer.outputs import RequestOutput
from deepinfer_cli.main import load_engine, main
from deepinfer_cli.settings.settings import Settings

LIMITS: dict[str, Any] = {"max_num_seqs": 4, "max_model_len": 512, "device": "cpu"}
ROWS: list[dict[str, Any]] = [
    {"prompt": "Say hello."},
    {"prompt": "What is a cat?", "n": 2},
    {"prompt": 5},
    {"prompt": "Count to five.", "stop": ["three"], "temperature": 0},
    {"prompt": "Why is the sky blue?", "logprobs": True},
    {"prompt": "Yes or no?", "regex": "(yes|no)"},
    *({"prompt": f"Tell me about {i} cats.", "max_tokens": 4 + 6 * i} for i in range(3)),
]


def answers(engine: OfflineEngine) -> list[RequestOutput]:
    return engine.generate(ROWS, SamplingParams(max_tokens=8))


def comparable(outputs: list[RequestOutput]) -> list[object]:
    """All that a row is answered with, without the times."""
    return [
        (o.row, o.error_kind, o.usage, [(s.token_ids, s.seed, s.logprobs) for s in o.samples])
        for o in outputs
    ]


@cache
def one_rank() -> tuple[list[object], int]:
    """The answers, and the tokens decoded for them."""
    with OfflineEngine(**LIMITS) as engine:
        return comparable(answers(engine)), engine.stats().num_decode_tokens


@pytest.fixture(scope="module")
def ranked() -> Iterator[OfflineEngine]:
    with OfflineEngine(**LIMITS, expert_parallel_size=2) as engine:
        yield engine


def test_the_embedded_model_on_two_ranks(ranked: OfflineEngine) -> None:
    assert (comparable(answers(ranked)), ranked.stats().num_decode_tokens) == one_rank()
    assert ranked.device == "cpu" and ranked.max_model_len == 512


def test_a_stream_that_is_closed_early_leaves_an_engine_that_works(ranked: OfflineEngine) -> None:
    rows = [(0, {"prompt": "Short.", "max_tokens": 2}), *((n, {"prompt": "Long."}) for n in (1, 2))]
    stream = ranked.stream(iter(rows), SamplingParams(max_tokens=450, ignore_eos=True))
    assert next(stream).row == 0
    stream.close()  # type: ignore[attr-defined]
    assert comparable(answers(ranked)) == one_rank()[0]


def test_experts_move_without_changing_answers_and_the_report_says_what_it_was_worth() -> None:
    layout = {"expert_parallel_size": 2, "expert_rebalance_interval": 4, "num_redundant_experts": 2}
    with OfflineEngine(**LIMITS, **layout) as engine:
        assert comparable(answers(engine)) == one_rank()[0]
        stats = engine.stats()
    assert stats.num_expert_moves > 0
    assert stats.expert_imbalance_before is not None and stats.expert_imbalance_after is not None
    assert stats.expert_imbalance_before > 1 and stats.expert_imbalance_after >= 1


@pytest.mark.slow
def test_the_embedded_model_on_eight_ranks() -> None:
    """Its draft stages have four experts: each is there twice."""
    with OfflineEngine(**LIMITS, expert_parallel_size=8) as engine:
        assert comparable(answers(engine)) == one_rank()[0]


def test_the_embedded_model_in_two_halves() -> None:
    with OfflineEngine(**LIMITS, pipeline_parallel_size=2) as engine:
        assert comparable(answers(engine)) == one_rank()[0]


def test_a_rank_that_is_killed_ends_the_engine_with_its_name() -> None:
    engine = OfflineEngine(**LIMITS, expert_parallel_size=2)
    rows = ((number, {"prompt": f"Number {number}"}) for number in range(100))
    stream = engine.stream(rows, SamplingParams(max_tokens=16))
    next(stream)
    process_ids = engine.process_ids
    os.kill(process_ids[1], signal.SIGKILL)
    with pytest.raises(EngineError, match=r"rank 1 of 2 \(process \d+\) was killed by SIGKILL"):
        list(stream)
    for process_id in process_ids:
        with pytest.raises(ProcessLookupError):
            os.kill(process_id, 0)
    engine.close()


def test_a_prefill_rank_that_is_killed_loses_no_row() -> None:
    with OfflineEngine(**LIMITS, prefill_ranks=1, decode_ranks=1) as engine:
        assert comparable(answers(engine)) == one_rank()[0]
        rows = enumerate(ROWS)
        stream = engine.stream(rows, SamplingParams(max_tokens=8))
        outputs = [next(stream)]
        os.kill(engine.process_ids[1], signal.SIGKILL)
        outputs += stream
        assert comparable(sorted(outputs, key=lambda o: o.row)) == one_rank()[0]
        assert "killed by SIGKILL" in engine.notes["rank 1"]
        assert comparable(answers(engine)) == one_rank()[0]


@pytest.mark.slow
def test_a_run_goes_on_after_a_rank_was_killed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, whole, output = (tmp_path / name for name in ("in.jsonl", "whole.jsonl", "out.jsonl"))
    source.write_text("".join(f'{{"prompt": "Number {i}"}}\n' for i in range(6)))
    command = ["run", str(source), "--max-num-seqs", "2", "--max-tokens", "8", "-q", "-o"]
    assert main([*command, str(whole)]) == 0

    def engine_with_a_victim(settings: Settings) -> Any:
        engine = load_engine(settings)
        assert isinstance(engine, OfflineEngine)
        return Killer(engine)

    ranked = [*command, str(output), "--expert-parallel-size", "2"]
    assert main(ranked, engine_with_a_victim) == 1
    message = capfd.readouterr().err
    assert "was killed by SIGKILL" in message and "are kept in" in message
    assert main(ranked) == 0
    assert output.read_bytes() == whole.read_bytes()


class Killer:
    """An engine whose second rank dies after the third answer."""

    def __init__(self, engine: OfflineEngine) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def stream(self, *arguments: Any, **named: Any) -> Iterator[RequestOutput]:
        for number, output in enumerate(self.engine.stream(*arguments, **named)):
            if number == 3:
                os.kill(self.engine.process_ids[1], signal.SIGKILL)
            yield output


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"expert_parallel_size": 3}, "=3 does not divide the model's 8 experts; use one of 1,"),
        ({"tensor_parallel_size": 4}, "tensor_parallel_size=4 does not divide .* 2 output groups"),
        ({"prefill_ranks": 2}, "prefill_ranks=2 and decode_ranks=0: each role needs"),
        ({"prefill_ranks": 1, "decode_ranks": 3}, "decode_ranks=3 does not divide"),
        ({"prefill_ranks": 1, "decode_ranks": 1, "expert_parallel_size": 2}, "leave expert"),
        ({"pipeline_parallel_size": 3}, "pipeline_parallel_size=3: a pipeline has two stages"),
        ({"pipeline_parallel_size": 2, "expert_parallel_size": 2}, "cannot be combined with other"),
        ({"expert_parallel_size": 3, "tensor_parallel_size": 2}, "is not a multiple of tensor"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OfflineEngine(**LIMITS, **sizes)
