"""Overhead of the engine besides the model (scheduler, sampler, bookkeeping), in µs per token.

    python benchmarks/engine_overhead.py [--batch 64] [--steps 200] [--engine-only]

The model is fake: it returns precomputed logits.  One JSON line per case.
Then runs pipeline_overhead.py, for the overhead per row around the engine, and peak memory.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from deepinfer.engine.config import EngineConfig
from deepinfer.engine.engine import LLMEngine
from deepinfer.engine.execution.batch import ForwardBatch, ForwardOutput
from deepinfer.engine.types import Request, SamplingParams

VOCAB_SIZE = 4096
PROMPT_LEN = 32


@dataclass(frozen=True)
class Sizes:
    """The fields of ``ModelConfig`` that the engine reads."""

    vocab_size: int = VOCAB_SIZE
    eos_token_id: int = 1
    sliding_window: int = 128
    max_position_embeddings: int = 8192
    num_nextn_predict_layers: int = 0
    dspark_block_size: int = 0
    image_token_id: int | None = None


class FakeModel:
    """Logits with the distribution of a language model's, the same rows in every step."""

    config = Sizes()

    def __init__(self, batch: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.logits = torch.randn(batch, VOCAB_SIZE, generator=generator) * 3

    def forward(self, batch: ForwardBatch, cache: object) -> ForwardOutput:
        empty = torch.empty(0)
        logits = self.logits[: len(batch.logit_rows)]
        return ForwardOutput(logits=logits, main_hidden=empty, main_rows=empty)


def decode_step_us(batch: int, steps: int, sampling: SamplingParams) -> list[float]:
    """Wall time of each decode step of ``batch`` requests, in µs."""
    max_tokens = steps + 8
    config = EngineConfig(
        max_num_seqs=batch,
        max_num_batched_tokens=max(2048, batch),
        num_blocks=batch * (-(-(PROMPT_LEN + max_tokens) // 64) + 1),
        max_model_len=PROMPT_LEN + max_tokens,
    )
    engine = LLMEngine(FakeModel(batch), config, cache=object())  # type: ignore[arg-type]
    for i in range(batch):
        prompt = tuple((7 * i + j) % VOCAB_SIZE for j in range(PROMPT_LEN))
        engine.add_request(
            Request(request_id=str(i), prompt_token_ids=prompt, sampling=sampling, seed=i)
        )
    while engine.scheduler.decoding == [] or len(engine.scheduler.decoding) < batch:
        engine.step()
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        engine.step()
        times.append((time.perf_counter() - start) * 1e6)
    engine.close()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--engine-only", action="store_true", help="without pipeline_overhead.py")
    parser.add_argument("--threads", type=int, default=1, help="as for a model of small layers")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    base = SamplingParams(max_tokens=args.steps + 8, ignore_eos=True)
    cases = {
        "greedy": replace(base, temperature=0.0),
        "temperature": base,
        "temperature and top-p": replace(base, top_p=0.95),
    }
    for name, sampling in cases.items():
        times = decode_step_us(args.batch, args.steps, sampling)
        row = {
            "benchmark": "engine_overhead",
            "case": name,
            "batch": args.batch,
            "vocab_size": VOCAB_SIZE,
            "us_per_token_median": round(statistics.median(times) / args.batch, 2),
            "us_per_token_min": round(min(times) / args.batch, 2),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "cpu": platform.processor() or platform.machine(),
        }
        print(json.dumps(row), flush=True)
    if not args.engine_only:
        pipeline = Path(__file__).with_name("pipeline_overhead.py")
        sys.exit(subprocess.run([sys.executable, "-P", str(pipeline)]).returncode)


if __name__ == "__main__":
    main()
