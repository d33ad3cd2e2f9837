"""Tokens per second of the embedded model at batch sizes 1 and 64, and their ratio.

    python benchmarks/cpu_batching.py

Every request decodes the same number of tokens, so the batch stays full.  Rounds alternate between
the two sizes; the medians are reported.  One JSON line per size, then the ratio.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time

import torch

from deepinfer import OfflineEngine, SamplingParams

SUBJECTS = ("a fox", "a cat", "a lost kite", "a boat", "the rain", "a king", "a tree", "an owl")


def tokens_per_s(engine: OfflineEngine, batch: int, num_tokens: int) -> float:
    """Answer ``batch`` similar prompts with ``num_tokens`` tokens each."""
    prompts = [f"Tell me a story about {SUBJECTS[i % len(SUBJECTS)]}." for i in range(batch)]
    sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    started = time.perf_counter()
    outputs = engine.generate(prompts, sampling)
    elapsed = time.perf_counter() - started
    assert all(len(output.token_ids) == num_tokens for output in outputs)
    return batch * num_tokens / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, nargs=2, default=(1, 64))
    parser.add_argument("--num-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--speculative", type=int, default=0, help="drafts per step; 0 is off")
    options = parser.parse_args()
    with OfflineEngine(
        num_speculative_tokens=options.speculative,
        max_num_seqs=max(options.batches),
        enable_prefix_caching=False,
    ) as engine:
        facts = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "num_tokens": options.num_tokens,
            "drafts": options.speculative,
        }
        speeds: dict[int, list[float]] = {batch: [] for batch in options.batches}
        for round_number in range(options.rounds + 1):
            for batch, found in speeds.items():
                speed = tokens_per_s(engine, batch, options.num_tokens)
                if round_number:  # the first round warms up
                    found.append(speed)
    medians = [statistics.median(found) for found in speeds.values()]
    for (batch, found), median in zip(speeds.items(), medians, strict=True):
        row = {"batch": batch, "tokens_per_s": round(median, 1), "lowest": round(min(found), 1)}
        print(json.dumps({**row, "highest": round(max(found), 1), **facts}))
    print(json.dumps({"ratio": round(medians[1] / medians[0], 2)}))


if __name__ == "__main__":
    main()
