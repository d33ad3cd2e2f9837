"""Two ranks of one host: correctness of the exchange, and its speed compared with a plain copy.

    PYTHONPATH=. python benchmarks/two_gpus.py                       two GPUs, NCCL, full width
    PYTHONPATH=. python benchmarks/two_gpus.py --device cpu --small  the same steps with gloo

With ``--one-gpu`` both ranks share a GPU and exchange through host memory, for the checks only.
Needs only torch, triton, numpy and safetensors.  One JSON line per check or time, from rank 0; if
one fails, the exit code is 1.  Bandwidth counts the bytes that leave one rank.
"""

from __future__ import annotations

import argparse
import sys

from rank_answers import check_answers, check_peer_answers
from rank_exchange import (
    check_exchange,
    check_peer_exchange,
    time_all_to_all,
    time_forms,
    time_kv_transfer,
    time_peer_exchange,
)
from rank_group import add_options, run_parts
from rank_overlap import time_overlap

CHECKS = {"exchange": check_exchange, "answers": check_answers}
ON_GPUS = {
    "peer-check": check_peer_exchange,
    "peer": time_peer_exchange,
    "overlap": time_overlap,
    "peer-answers": check_peer_answers,
}
TIMES = {
    "kv": time_kv_transfer,
    "all-to-all": time_all_to_all,
    "forms": time_forms,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help="default: all")
    add_options(parser, ranks=2)
    options = parser.parse_args()
    known = ON_GPUS | CHECKS | TIMES
    fitting = CHECKS if options.one_gpu else known if options.device == "cuda" else CHECKS | TIMES
    chosen = {name: known[name] for name in options.parts} if options.parts else fitting
    return min(run_parts(chosen, options), 1)


if __name__ == "__main__":
    sys.exit(main())
