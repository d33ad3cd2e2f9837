"""Decode steps and tokens per second of the engine on a GPU, with and without drafts and graphs.

    PYTHONPATH=.:tests/gpu python benchmarks/gpu_engine.py

The embedded model on token ids of ``tests/gpu/data``, greedy.  Needs only torch, triton, numpy and
safetensors.  Each line is the third run of the same requests, with the seconds of the first run and
of capturing before it.
"""

from __future__ import annotations

import dataclasses
import sys
import time

import gpu_models
import torch

AUTO = -1  # as many drafts as pay off
CASES = ((1, 0), (1, 5), (1, AUTO), (64, 0), (64, 5), (64, AUTO), (256, 0), (256, 5), (256, AUTO))
NUM_TOKENS = 64
NUM_STORED = 200


def speed(num_requests: int, num_drafts: int, *, captures: bool) -> dict[str, list[int]]:
    """Print one line; returns the answers."""
    engine = gpu_models.make_engine(
        "embedded",
        "cuda",
        captures=captures,
        max_num_seqs=num_requests,
        num_speculative_tokens=5 if num_drafts == AUTO else num_drafts,
        schedule_drafts=num_drafts == AUTO,
    )
    stored = gpu_models.greedy_requests(min(num_requests, NUM_STORED), NUM_TOKENS)
    extra = range(num_requests - len(stored))
    requests = stored + [
        dataclasses.replace(stored[i % len(stored)], request_id=f"again {i}") for i in extra
    ]
    first_s = 0.0
    for warm in range(2):
        started = time.perf_counter()
        gpu_models.ask(
            engine,
            [dataclasses.replace(r, request_id=f"warm {warm} {r.request_id}") for r in requests],
        )
        torch.cuda.synchronize()
        first_s = first_s or time.perf_counter() - started
    before, started = engine.stats(), time.perf_counter()
    done = gpu_models.ask(engine, requests)
    torch.cuda.synchronize()
    seconds, after = time.perf_counter() - started, engine.stats()
    steps = after.num_decode_steps - before.num_decode_steps
    step_ms = (after.decode_s - before.decode_s) / steps * 1e3
    tokens = sum(len(completion.output_token_ids) for completion in done.values())
    print(
        f"{num_requests} requests, {'auto' if num_drafts == AUTO else num_drafts} drafts, "
        f"{engine.graphs.num_captured if captures else 'no'} graphs: {steps} decode steps of "
        f"{step_ms:.2f} ms, {tokens / seconds:,.0f} tokens/s with prefill; captured in "
        f"{after.capture_s:.1f} s, first run {first_s:.1f} s, this one {seconds:.1f} s",
        flush=True,
    )
    return {name: list(completion.output_token_ids) for name, completion in done.items()}


def main() -> int:
    if not torch.cuda.is_available():
        print("this needs an NVIDIA GPU", file=sys.stderr)
        return 1
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}")
    answers: dict[int, dict[str, list[int]]] = {}
    for num_requests, num_drafts in CASES:
        found = speed(num_requests, num_drafts, captures=True)
        if answers.setdefault(num_requests, found) != found:
            print("  the answers differ from those without drafts")
    if speed(64, 0, captures=False) != answers[64]:
        print("  the answers differ from those with graphs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
