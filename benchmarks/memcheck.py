"""Runs the engine on a GPU under ``compute-sanitizer --tool memcheck`` to find bad memory accesses.

    PYTHONPATH=.:tests/gpu python benchmarks/memcheck.py

The embedded model answers two requests with two drafts, without graphs and with a separate
allocation per tensor; first without the tool, to compile kernels.  The answers must be equal.
Needs torch, triton, numpy, safetensors and the tool, which comes with CUDA.  Returns 0 if nothing
was found.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

NUM_REQUESTS, NUM_DRAFTS, NUM_TOKENS = 2, 2, 6
TOOL = "compute-sanitizer"
FOUND = 9  # exit code by which the tool reports errors


def answers() -> list[list[int]]:
    """Answers of the embedded model on the GPU."""
    import gpu_models

    engine = gpu_models.make_engine(
        "embedded",
        "cuda",
        captures=False,
        num_blocks=64,
        max_num_seqs=NUM_REQUESTS,
        num_speculative_tokens=NUM_DRAFTS,
    )
    done = gpu_models.ask(engine, gpu_models.greedy_requests(NUM_REQUESTS, NUM_TOKENS))
    return [list(done[str(number)].output_token_ids) for number in range(NUM_REQUESTS)]


def run(*before: str) -> tuple[int, str]:
    """Run this file in a process, prefixed by ``before``; returns exit code and output."""
    command = [*before, sys.executable, __file__, "answers"]
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout


def main() -> int:
    if sys.argv[1:] == ["answers"]:
        print(json.dumps(answers()))
        return 0
    tool = shutil.which(TOOL) or shutil.which(TOOL, path="/usr/local/cuda/bin")
    if tool is None:
        print(f"{TOOL} is not here: it comes with CUDA", file=sys.stderr)
        return 1
    code, plain = run()
    if code:
        return code
    options = ["--tool", "memcheck", "--target-processes", "application-only"]
    code, checked = run(tool, *options, "--error-exitcode", str(FOUND))
    print(checked)
    if code:
        return code
    if plain.strip() not in checked.splitlines():
        print(f"the answers differ from those without the tool: {plain}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
