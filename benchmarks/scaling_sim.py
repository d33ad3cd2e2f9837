"""Load of 64 ranks with and without expert balancing (EPLB), simulated from routing counts.

    python benchmarks/scaling_sim.py [--ranks 64] [--redundant 32] [--batch 256]

Loads: Zipf popularity of 384 experts in an order drawn for each layer; and what the embedded model
routes.  That has 8 experts, so the sorted loads of its skewed layers (one expert with 1.8 times the
mean or more) are interpolated to 384 in sorted order, neighbors alike.  Placement is made from one
sample and judged on that sample and on another.
One JSON line per load: imbalance is the largest rank's load over the mean, the worst layer counts.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepinfer.engine.parallel.expert_balance import lower_bound, plain_placement, rebalance

EXPERTS, CHOSEN, LAYERS = 384, 6, 40
SKEWED = 1.8
Counts = NDArray[np.int64]


def zipf_popularity(exponent: float, generator: np.random.Generator) -> NDArray[np.float64]:
    """Fractions [LAYERS, EXPERTS], in another order in each layer."""
    shares = np.arange(1, EXPERTS + 1) ** -exponent
    return np.stack([generator.permutation(shares) for _ in range(LAYERS)])


def recorded_popularity() -> NDArray[np.float64]:
    """The loads of the embedded model's skewed layers, interpolated to [LAYERS, EXPERTS]."""
    loads = np.sort(record_embedded(), axis=1)
    loads = loads[loads.max(1) >= SKEWED * loads.mean(1)]
    places = np.linspace(0, loads.shape[1] - 1, EXPERTS)
    rows = [np.interp(places, np.arange(loads.shape[1]), row) for row in loads]
    return np.stack([rows[i % len(rows)] for i in range(LAYERS)])


def record_embedded() -> Counts:
    """[layers, experts] tokens per expert while the embedded model reads its own card."""
    import torch

    from deepinfer.engine.checkpoint.weights import open_checkpoint
    from deepinfer.engine.config import EngineConfig
    from deepinfer.engine.engine import LLMEngine
    from deepinfer.engine.model.model import Model
    from deepinfer.engine.types import Request, SamplingParams
    from deepinfer.loading import engram_token_map
    from deepinfer.recipes.embedded import embedded_model_path
    from deepinfer.recipes.tokenizer import Tokenizer

    torch.set_num_threads(1)
    checkpoint = open_checkpoint(embedded_model_path())
    tokenizer = Tokenizer.from_file(checkpoint.folder / "tokenizer.json")
    token_map = engram_token_map(tokenizer, checkpoint.config)
    model = Model(checkpoint.config, checkpoint.load(), token_map=token_map)
    counts = np.zeros((len(model.blocks), model.blocks[0].plan.n_routed_experts), dtype=np.int64)
    for block, row in zip(model.blocks, counts, strict=True):
        block.moe.routed = Recorder(block.moe.routed, row)
    engine = LLMEngine(model, EngineConfig(max_num_seqs=8, exact=True, max_model_len=512))
    ids = tokenizer.encode_plain((checkpoint.folder / "MODEL_CARD.md").read_text(encoding="utf-8"))
    for number, start in enumerate(range(0, min(len(ids), 2048) - 256, 256)):
        prompt = tuple(ids[start : start + 256])
        sampling = SamplingParams(max_tokens=16, temperature=0)
        engine.add_request(
            Request(request_id=str(number), prompt_token_ids=prompt, sampling=sampling, seed=0)
        )
    while engine.has_unfinished():
        engine.step()
    return counts


class Recorder:
    """Routed experts that count in ``counts`` [E] how often each is chosen."""

    def __init__(self, routed: Any, counts: Counts) -> None:
        self.routed = routed
        self.counts = counts

    def begin(self, rows: Any, ids: Any, weights: Any) -> Any:
        self.counts += np.bincount(ids.flatten().numpy(), minlength=len(self.counts))
        return self.routed.begin(rows, ids, weights)


def sample(popularity: NDArray[np.float64], tokens: int, generator: np.random.Generator) -> Counts:
    """Loads [LAYERS, EXPERTS] of ``tokens`` tokens."""
    shares = popularity / popularity.sum(1, keepdims=True)
    return generator.multinomial(tokens * CHOSEN, shares)


def measure(
    name: str, popularity: NDArray[np.float64], options: argparse.Namespace
) -> dict[str, object]:
    generator = np.random.default_rng(options.seed)
    tokens = options.ranks * options.batch * options.steps
    loads, later = (sample(popularity, tokens, generator) for _ in range(2))
    sizes = {"num_replicas": EXPERTS + options.redundant, "num_devices": options.ranks}
    placement = rebalance(loads, **sizes)
    bound = lower_bound(loads, **sizes) / (loads.sum(1) / options.ranks)
    balanced = placement.imbalance(loads)
    plain = plain_placement(LAYERS, EXPERTS, options.ranks).imbalance(loads)
    return {
        "load": name,
        "ranks": options.ranks,
        "redundant_experts": options.redundant,
        "tokens": tokens,
        "plain": round(float(plain.min()), 3),
        "balanced": round(float(balanced.max()), 3),
        "balanced_later": round(float(placement.imbalance(later).max()), 3),
        "lower_bound": round(float(bound.max()), 3),
        "over_bound": round(float((balanced / bound).max()), 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--redundant", type=int, default=32)
    parser.add_argument("--batch", type=int, default=256, help="tokens per rank and step")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generator = np.random.default_rng(options.seed)
    for exponent in (0.5, 0.8, 1.0):
        popularity = zipf_popularity(exponent, generator)
        print(json.dumps(measure(f"zipf {exponent}", popularity, options)))
    print(json.dumps(measure("embedded model", recorded_popularity(), options)))


if __name__ == "__main__":
    main()
