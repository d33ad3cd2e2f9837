"""Overhead of constraints in a decode step on a CPU: the real vocabulary, a small random model.

Two engines with the same 64 requests alternate step by step, one of them with a constraint on every
row; the model is random and small, so the relative overhead is larger than with a real one.
Writes one JSON object per constraint: median milliseconds per decode step, and the overhead of the
median and of the total.  "cpu" is CPU time of all threads, which other programs hardly affect as
long as threads do not spin (hence the variable below).

OMP_WAIT_POLICY=passive python -m benchmarks.constraint_step [--batch 64] [--threads 2]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.constraint_masks import CONSTRAINTS, v4_tokenizer
from deepinfer.engine.checkpoint.random_weights import random_tensors
from deepinfer.engine.config import EngineConfig
from deepinfer.engine.engine import LLMEngine
from deepinfer.engine.execution.decode_stages import DecodeResult
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.model import Model
from deepinfer.engine.types import Request, SamplingParams
from deepinfer.recipes.constraints.compiler import CompiledConstraint, ConstraintCompiler
from deepinfer.recipes.constraints.vocabulary import ConstraintVocabulary
from deepinfer.recipes.token_compression import token_compression

GOLDEN = Path(__file__).parent.parent / "tests" / "goldens" / "tiny-a" / "checkpoint"
NUM_STEPS = 48
SKIPPED_STEPS = 4  # the first masks of a constraint fill caches for all later ones


def full_vocabulary_model() -> Model:
    """The golden configuration with the whole V4 vocabulary and random weights."""
    compressed = token_compression(v4_tokenizer())
    raw = ModelConfig.from_file(GOLDEN).to_dict()
    text = raw["text_config"]
    text["vocab_size"] = -(-len(compressed) // 32) * 32
    text["engram_compressed_vocab_size"] = int(compressed.max()) + 1
    config = ModelConfig.from_dict(raw, where="benchmark")
    token_map = torch.zeros(config.vocab_size, dtype=torch.int64)
    token_map[: len(compressed)] = torch.from_numpy(compressed)
    return Model(config, random_tensors(config, 0), token_map=token_map)


class Feed:
    """An engine that always has ``batch`` requests; finished ones are replaced."""

    def __init__(self, model: Model, batch: int, constraint: CompiledConstraint | None) -> None:
        self.decoded: list[DecodeResult] = []
        config = EngineConfig(max_num_seqs=batch, num_speculative_tokens=0)
        self.engine = LLMEngine(model, config, observer=self.decoded.append)
        self.constraint = constraint
        self.num_added = 0
        for _ in range(batch):
            self.add()

    def add(self) -> None:
        number = self.num_added = self.num_added + 1
        sampling = SamplingParams(temperature=1.0, max_tokens=4 * NUM_STEPS)
        matcher = None if self.constraint is None else self.constraint.new_matcher()
        self.engine.add_request(
            Request(
                request_id=str(number), prompt_token_ids=(0, 300 + number), sampling=sampling,
                seed=number, constraint=matcher,
            )
        )  # fmt: skip

    def decode_step_s(self) -> tuple[float, float]:
        """CPU and wall seconds of the next decode step, without prefills before it."""
        while True:
            self.decoded.clear()
            cpu, wall = time.process_time(), time.perf_counter()
            finished = self.engine.step()
            seconds = time.process_time() - cpu, time.perf_counter() - wall
            for completion in finished:
                assert completion.error is None, completion.error
                self.add()
            if self.decoded:
                return seconds


def added(model: Model, batch: int, constraint: CompiledConstraint) -> dict[str, Any]:
    free, held = Feed(model, batch, None), Feed(model, batch, constraint)
    pairs = [(free.decode_step_s(), held.decode_step_s()) for _ in range(NUM_STEPS)]
    pairs = pairs[SKIPPED_STEPS:]
    result: dict[str, Any] = {"steps": len(pairs)}
    for place, kind in enumerate(("cpu", "wall")):
        without = statistics.median(pair[0][place] for pair in pairs)
        with_it = statistics.median(pair[1][place] for pair in pairs)
        result[f"{kind}_free_ms"] = round(1e3 * without, 1)
        result[f"{kind}_held_ms"] = round(1e3 * with_it, 1)
        result[f"{kind}_added"] = round(with_it / without - 1, 3)
        all_without, all_with = (sum(pair[i][place] for pair in pairs) for i in range(2))
        result[f"{kind}_added_in_all"] = round(all_with / all_without - 1, 3)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, tokenizer = full_vocabulary_model(), v4_tokenizer()
    vocabulary = ConstraintVocabulary(tokenizer, model.config.vocab_size)
    place = {"batch": options.batch, "threads": options.threads, "vocab_size": tokenizer.size,
             "torch": torch.__version__, "cpu": platform.machine()}  # fmt: skip
    with ConstraintCompiler(vocabulary) as compiler:
        for name, spec in CONSTRAINTS.items():
            compiled = [compiler.compile(spec) for _ in range(options.batch)][-1]  # by row
            result = added(model, options.batch, compiled)
            print(json.dumps({"constraint": name} | result | place), flush=True)


if __name__ == "__main__":
    main()
