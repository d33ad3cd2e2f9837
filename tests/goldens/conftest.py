"""Golden checkpoints and reference outputs, and a driver that runs the model like an engine."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from deepinfer.engine.cache.kv_cache import KVCache
from deepinfer.engine.checkpoint.weights import open_checkpoint
from deepinfer.engine.execution.batch import DraftOutput, ForwardBatch, ForwardOutput
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.dspark import DraftSampler, greedy_sampler
from deepinfer.engine.model.model import Model
from deepinfer.kernels.testing import relative_error
from deepinfer.recipes.token_compression import token_compression
from deepinfer.recipes.tokenizer import Tokenizer

FOLDER = Path(__file__).parent
NAMES = ("tiny-a", "kdim-a")
BLOCK_SIZE = 8
NUM_BLOCKS = 64


@dataclass(frozen=True)
class Golden:
    """One golden folder.  Keys of ``data`` and meanings: README of the golden data."""

    name: str
    config: ModelConfig
    model: Model
    data: dict[str, Tensor]
    facts: dict[str, Any]

    def tolerance(self, kind: str, length: int) -> dict[str, float]:
        """The strict limits of a quantity for sequences of this length."""
        classes = self.facts["tolerances"]["strict"][kind]
        found: dict[str, float] = [c for c in classes if c["from_length"] <= length][-1]
        return found

    def lengths(self, prefix: str) -> list[int]:
        return [int(c.removeprefix(prefix)) for c in self.facts["cases"] if c.startswith(prefix)]

    def check_logits(
        self, actual: Tensor, expected: Tensor, length: int, *, allowed_misses: int = 0
    ) -> None:
        """Median and 90th percentile over positions, and the argmax where it is clear.

        ``allowed_misses`` of the clear positions may differ whatever their share: for cases so
        short that the share allows none.
        """
        limits = self.tolerance("logits", length)
        error = relative_error(actual, expected).flatten()
        assert float(error.median()) <= limits["median_rel"]
        assert float(error.quantile(0.9)) <= limits["p90_rel"]
        top = expected.topk(2, dim=-1).values
        clear = top[..., 0] - top[..., 1] > limits["clear_margin"]
        same = (actual.argmax(-1) == expected.argmax(-1))[clear]
        assert int((~same).sum()) <= max(allowed_misses, (1 - limits["clear_argmax"]) * len(same))

    def check_hidden(self, actual: Tensor, expected: Tensor, length: int) -> None:
        limits = self.tolerance("logits", length)
        error = relative_error(actual, expected).flatten()
        assert float(error.median()) <= limits["median_rel"]
        assert float(error.quantile(0.9)) <= limits["p90_rel"]


class Session:
    """Requests on one cache, one unless more are asked for: tokens in, logits out."""

    def __init__(self, golden: Golden, decoder_start: int = 0, *more_starts: int) -> None:
        """``decoder_start`` of each request: where its decoder layers begin."""
        self.golden = golden
        self.decoder_starts = (decoder_start, *more_starts)
        count = len(self.decoder_starts)
        self.lengths = [0] * count
        self.cache = KVCache.allocate(
            golden.config, num_blocks=count * NUM_BLOCKS, block_size=BLOCK_SIZE, num_slots=count
        )

    @property
    def decoder_start(self) -> int:
        return self.decoder_starts[0]

    @property
    def num_tokens(self) -> int:
        return self.lengths[0]

    def run(self, token_ids: Tensor, number: int = 0) -> ForwardOutput:
        """Feed the next tokens of a request; logits of all that the decoder layers compute."""
        output = self.golden.model.forward(self.batch(token_ids, number), self.cache)
        self.lengths[number] += len(token_ids)
        return output

    def run_all(self, token_ids: Tensor) -> ForwardOutput:
        """Feed the next token of each request."""
        numbers = range(len(self.lengths))
        output = self.golden.model.forward(
            self._batch(token_ids, numbers, range(len(numbers))), self.cache
        )
        self.lengths = [length + 1 for length in self.lengths]
        return output

    def batch(self, token_ids: Tensor, number: int = 0) -> ForwardBatch:
        first_row = max(0, self.decoder_starts[number] - self.lengths[number])
        return self._batch(token_ids, [number], range(first_row, len(token_ids)))

    def _batch(
        self, token_ids: Tensor, numbers: Sequence[int], logit_rows: Sequence[int]
    ) -> ForwardBatch:
        """As many tokens of each of the requests."""
        return ForwardBatch.of(
            token_ids=token_ids,
            query_lens=[len(token_ids) // len(numbers)] * len(numbers),
            first=[self.lengths[number] for number in numbers],
            block_table=[range(n * NUM_BLOCKS, (n + 1) * NUM_BLOCKS) for n in numbers],
            state_slots=numbers,
            encoder_start=[0] * len(numbers),
            decoder_start=[self.decoder_starts[number] for number in numbers],
            write_start=[0] * len(numbers),
            logit_rows=logit_rows,
            image_token_id=self.golden.config.image_token_id,
        )

    def seed(self, output: ForwardOutput) -> None:
        """Show the draft stages the tokens of the newest ``run``."""
        positions = torch.arange(self.num_tokens - len(output.main_rows), self.num_tokens)
        self.golden.model.seed_draft(
            output.main_hidden, positions, torch.zeros_like(positions), [len(positions)], self.cache
        )

    def draft(self, anchor: int, sample: DraftSampler = greedy_sampler) -> DraftOutput:
        return self.golden.model.draft(
            torch.tensor([anchor]),
            torch.tensor([self.num_tokens]),
            torch.tensor([0]),
            torch.tensor([self.decoder_start]),
            self.cache,
            sample,
        )


@cache
def load_golden(name: str) -> Golden:
    folder = FOLDER / name
    checkpoint = open_checkpoint(folder / "checkpoint")
    tokenizer = Tokenizer.from_file(folder / "checkpoint" / "tokenizer.json")
    model = Model(checkpoint.config, checkpoint.load(), token_map=token_compression(tokenizer))
    data = load_file(folder / "goldens.safetensors")
    return Golden(name, checkpoint.config, model, data, load_facts(name))


@cache
def load_facts(name: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((FOLDER / name / "goldens.json").read_text(encoding="utf-8"))
    return facts


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on both folders, and on each stored length of the kind that its argument names."""
    kinds = {"prompt_length": "p", "greedy_length": "greedy", "replay_length": "ced",
             "draft_length": "draft"}  # fmt: skip
    if "stream_length" in metafunc.fixturenames:
        argument, cases = "stream_length", [(n, t) for n in NAMES for t in load_facts(n)["streams"]]
    elif found := set(kinds).intersection(metafunc.fixturenames):
        argument = found.pop()
        pattern = re.compile(kinds[argument] + r"(\d+)")
        names = [(name, case) for name in NAMES for case in load_facts(name)["cases"]]
        matches = [(name, pattern.fullmatch(case)) for name, case in names]
        cases = [(name, int(match[1])) for name, match in matches if match]
    elif "golden" in metafunc.fixturenames:
        metafunc.parametrize("golden", NAMES, indirect=True)
        return
    else:
        return
    metafunc.parametrize(("golden", argument), cases, indirect=["golden"])


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return load_golden(request.param)


@pytest.fixture
def new_session() -> type[Session]:
    return Session
