"""Accuracy of plans, compared with the runs, on three files: wall-clock time, CPU time, steps.

Each plan is followed immediately by its run, so that both see the same machine load; one JSON
object per pair, then the median ratios per file.  An estimate is good if "wall" is between 0.8 and
1.2.  Both use the command line, with the embedded model.

python -m benchmarks.plan_accuracy [--repeats 3] [--files fixed mixed free] [--calibrate 20s]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from training.calibrate import prompts

_TEXT = "the old lamp by a quiet river kept its small light for ships that never came back"
_WORDS = _TEXT.split()


def fixed(chance: Random) -> Iterator[dict[str, Any]]:
    """Short prompts, all answers equally long."""
    for number in range(400):
        yield {"prompt": f"Tell me about thing {number}.", "max_tokens": 64, "ignore_eos": True}


def mixed(chance: Random) -> Iterator[dict[str, Any]]:
    """Prompts of 3 to 600 words, a few with a common prefix; three answer lengths."""
    start = " ".join(chance.choices(_WORDS, k=200))
    for number in range(300):
        words = " ".join(chance.choices(_WORDS, k=chance.choice((3, 40, 150, 600))))
        prompt = f"{start} {words}" if number % 5 == 0 else words
        yield {"prompt": prompt, "max_tokens": chance.choice((8, 40, 120)), "ignore_eos": True}


def free(chance: Random) -> Iterator[dict[str, Any]]:
    """Questions and stories whose answers end with EOS."""
    for row in prompts("plan_accuracy", 400):
        yield row | {"max_tokens": 256}


FILES = {"fixed": fixed, "mixed": mixed, "free": free}


def deepinfer(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "deepinfer_cli.main", *arguments, "--json", "--quiet"],
        stdout=subprocess.PIPE,
        check=True,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def compare(name: str, source: Path, calibrate: str, num_threads: str) -> dict[str, Any]:
    """Plan, then run; each number as (plan, run)."""
    threads = ("--num-threads", num_threads)
    output = str(source.with_suffix(".out.jsonl"))
    plan = deepinfer("plan", str(source), "--calibrate", calibrate, *threads)["estimate"]
    run = deepinfer("run", str(source), "-o", output, "--force", *threads)
    wall = (plan["answer_s"], run["throughput"]["answer_s"])
    cpu = (plan["cpu_s"], run["time_s"]["cpu"])
    return {
        "file": name,
        "wall": round(wall[0] / wall[1], 3),
        "cpu": round(cpu[0] / cpu[1], 3),
        "wall_s": wall,
        "cpu_s": cpu,
        "decode_steps": (plan["decode_steps"], run["engine"]["num_decode_steps"]),
        "answer_tokens": (plan["answer_tokens"], run["tokens"]["completion_tokens"]),
        "guessed_share": plan["guessed_share"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--files", nargs="+", choices=FILES, default=list(FILES))
    parser.add_argument("--calibrate", default="20s")
    parser.add_argument("--num-threads", default="1")
    parser.add_argument("--rows", type=int, help="only so many of each file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in given.files}
        for name in found:
            rows = list(FILES[name](Random(name)))[: given.rows]
            Path(folder, f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        for _ in range(given.repeats):
            for name, pairs in found.items():
                source = Path(folder, f"{name}.jsonl")
                pairs.append(compare(name, source, given.calibrate, given.num_threads))
                print(json.dumps(pairs[-1]), flush=True)
        for name, pairs in found.items():
            medians = {what: median(pair[what] for pair in pairs) for what in ("wall", "cpu")}
            print(json.dumps({"file": name, "pairs": len(pairs), "median_ratio": medians}))


if __name__ == "__main__":
    main()
