"""One engine on all GPUs of a host: answers, exchange, decode, prefill and expert balance.

    PYTHONPATH=. python benchmarks/eight_gpus.py                               eight GPUs, full size
    PYTHONPATH=. python benchmarks/eight_gpus.py --ranks 2 --layers 6          what two can hold
    PYTHONPATH=. python benchmarks/eight_gpus.py --device cpu --small          the same steps, gloo

Needs only torch, triton, numpy and safetensors; takes at most ten minutes.  Prints a JSON line per
check or time, then a table; ``--json FILE`` saves the lines.  Random weights with the released
shapes and formats; the exchange between ranks is real.  If a part fails, the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rank_answers import check_answers, check_peer_answers
from rank_exchange import time_all_to_all, time_peer_exchange
from rank_group import Bench, add_options, run_parts
from rank_overlap import time_overlap
from torch import Tensor

from deepinfer.bench.limits import decode_row, prefill_row
from deepinfer.bench.plan import CHUNK_TOKENS, BenchPlan
from deepinfer.bench.rank_decode import begin
from deepinfer.bench.rank_model import RankModel
from deepinfer.bench.rank_prefill import batches
from deepinfer.bench.rank_tensors import RandomTensors
from deepinfer.engine.cache.kv_cache import KVCache
from deepinfer.engine.checkpoint.random_weights import random_tensors
from deepinfer.engine.checkpoint.weights import open_checkpoint
from deepinfer.engine.execution.batch import ForwardBatch
from deepinfer.engine.execution.decode import DecodeWorker
from deepinfer.engine.execution.prefill import PrefillWorker
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.layer_tensors import LayerTensors
from deepinfer.engine.model.model import Model
from deepinfer.engine.model.share import WHOLE_MODEL, Share
from deepinfer.engine.parallel.groups import Group
from deepinfer.engine.parallel.placed_experts import rebalance_layers
from deepinfer.engine.parallel.rank_share import RankShare
from deepinfer.kernels.testing import relative_error

ROOT = Path(__file__).parents[1]
DRAFTS, ACCEPTANCE = 5, 0.75
LOOSE = 0.0363  # tolerance of a block on golden streams, see tests/gpu/test_full_width.py
ZIPF = 0.8


def share_of(
    bench: Bench, capacity: int, *, is_exact: bool = False, redundant: int = 0
) -> RankShare:
    return RankShare(
        bench.group,
        Group.single(),
        num_redundant=redundant,
        is_exact=is_exact,
        capacity=capacity,
        uses_peer_memory=bench.has_own_gpu,
    )


def expect(share: RankShare, most_tokens: int) -> None:
    """Announce the pass's largest number of tokens, as ranks do before a pass."""
    for layer in share.layers:
        layer.expect(most_tokens)


def model_config(bench: Bench) -> ModelConfig:
    """The released model with the requested number of layers; the embedded one in a dry run."""
    if bench.is_small:
        return open_checkpoint(ROOT / "recipes" / "tiny").config
    layers: int = bench.options.layers
    config = ModelConfig.flash()
    return config if layers == config.num_hidden_layers else shortened(config, layers)


def shortened(config: ModelConfig, layers: int) -> ModelConfig:
    """The same widths and experts with fewer layers, including every kind of layer."""
    document = config.to_dict()
    half = layers // 2
    document["text_config"] |= {
        "num_hidden_layers": layers,
        "compress_ratios": [0] + [2] * (half - 1) + [1] * (layers - half),
        "kv_source_layer_ids": [1, half],
        "index_source_layer_ids": [1, half, half + 1],
        "candidate_source_layer_id": half,
        "engram_layer_ids": [1],
        "engram_num_embeddings": document["text_config"]["engram_num_embeddings"][:1],
        "dspark_target_layer_ids": list(range(layers - 3, layers)),
    }
    return ModelConfig.from_dict(document, where=f"{layers} layers")


def check_full_width(bench: Bench) -> None:
    """Six layers of the released widths: experts divided over all ranks, compared with one rank."""
    if bench.is_small:
        config = model_config(bench)
    else:
        document = shortened(ModelConfig.flash(), 6).to_dict()
        document["text_config"] |= {
            "n_routed_experts": 16 * bench.size,
            "vocab_size": 4096,
            "engram_vocab_size": 2048,
            "engram_num_embeddings": [51_342],
            "engram_compressed_vocab_size": 4096,
            "num_nextn_predict_layers": 0,
            "dspark_target_layer_ids": [],
            "dspark_noise_token_id": 5,
        }
        document["image_token_id"] = None
        config = ModelConfig.from_dict(document, where="six layers")
    tensors = random_tensors(config, 7, device=bench.device)
    generator = torch.Generator().manual_seed(bench.rank)
    token_ids = torch.randint(3, config.vocab_size, (96,), generator=generator)
    expected = logits_of(bench, config, tensors, WHOLE_MODEL, token_ids)
    for is_exact in (True, False):
        share = share_of(bench, len(token_ids), is_exact=is_exact)
        runs = [logits_of(bench, config, tensors, share, token_ids) for _ in range(2)]
        error = bench.worst(float(relative_error(runs[0], expected).quantile(0.9)))
        repeats = bench.all_ok(torch.equal(*runs))
        # Reduced combine rounds differently, and routers with random weights amplify that.
        ok = repeats and (error <= LOOSE or not is_exact)
        name = "exact" if is_exact else "reduced"
        bench.say(check=f"six layers of full width, {name}", error=error, repeats=repeats, ok=ok)


def logits_of(
    bench: Bench, config: ModelConfig, tensors: dict[str, Tensor], share: Share, token_ids: Tensor
) -> Tensor:
    """Logits [T, V] of one prompt, in one pass."""
    token_map = torch.arange(config.vocab_size) % max(1, config.engram_compressed_vocab_size)
    model = Model(config, tensors, device=bench.device, token_map=token_map, share=share)
    cache = KVCache.allocate(config, num_blocks=2, block_size=64, num_slots=1, device=bench.device)
    if isinstance(share, RankShare):
        expect(share, len(token_ids))
    batch = ForwardBatch.of(
        token_ids=token_ids,
        query_lens=[len(token_ids)],
        first=[0],
        block_table=np.array([[0, 1]]),
        state_slots=[0],
        encoder_start=[0],
        decoder_start=[0],
        write_start=[0],
        logit_rows=range(len(token_ids)),
        device=bench.device,
        image_token_id=config.image_token_id,
    )
    logits = model.forward(batch, cache).logits.float().clone()
    if isinstance(share, RankShare):
        share.layers.clear()
    return logits


def time_decode(bench: Bench) -> None:
    """Time steps of drafting, verification and sampling; all requests have the same length."""
    config = model_config(bench)
    requests = (2,) if bench.is_small else (8, 60, 256)
    context = 256 if bench.is_small else bench.options.context
    most = max(requests) * (1 + DRAFTS)
    share = share_of(bench, most)
    rank = real_rank(bench, config, share, context, max(requests))
    accepted = sum(ACCEPTANCE**place for place in range(DRAFTS + 1))
    plan = BenchPlan(context=context, acceptance=ACCEPTANCE)
    for number in requests:
        expect(share, number * (1 + DRAFTS))
        step = rank.worker(DRAFTS)
        worker, batch = DecodeWorker(step), begin(step, rank.decoding([context] * number), DRAFTS)
        step_s = step_seconds(bench, lambda w=worker, b=batch: w.run(b))
        limit = decode_row(plan, config, bench.size, number, DRAFTS).limit
        per_gpu = number * accepted / step_s
        bench.say(time="decode", requests=number, context=context, layers=config.num_hidden_layers,
                  step_ms=1e3 * step_s, tokens_per_s_gpu=per_gpu,
                  tokens_per_s_user=per_gpu / number,
                  percent_of_limit=100 * per_gpu / limit.tokens_per_s)  # fmt: skip


def time_prefill(bench: Bench) -> None:
    """Time whole prompts in chunks, with the decoder layers on the last window only."""
    config = model_config(bench)
    counts = (64,) if bench.is_small else (4096, 65536)
    share = share_of(bench, min(max(counts), CHUNK_TOKENS))
    rank = real_rank(bench, config, share, max(counts), 1)
    plan = BenchPlan(context=max(counts))
    for count in counts:
        expect(share, min(count, CHUNK_TOKENS))
        worker = PrefillWorker(rank.worker(0))
        passes = list(batches(rank.prompts([count], plan.replay_tokens)))

        def once(worker: PrefillWorker = worker, passes: list = passes) -> None:
            for batch in passes:
                worker.run(batch)

        seconds = step_seconds(bench, once, rounds=3)
        limit = prefill_row(plan, config, bench.size, count, plan.replay_tokens).limit
        bench.say(time="prefill", tokens=count, layers=config.num_hidden_layers,
                  seconds=seconds, tokens_per_s_gpu=count / seconds,
                  percent_of_limit=100 * count / seconds / limit.tokens_per_s)  # fmt: skip


def real_rank(
    bench: Bench, config: ModelConfig, share: RankShare, context: int, num_slots: int
) -> RankModel:
    return RankModel.make(
        config,
        ranks=bench.size,
        context=context,
        num_slots=num_slots,
        seed=0,
        device=bench.device,
        real_share=share,
    )


def step_seconds(bench: Bench, call: Callable[[], object], rounds: int = 10) -> float:
    """Median time of a step that all ranks start together, on the slowest rank."""
    times = []
    with torch.inference_mode():
        for number in range(3 + rounds):  # the first compiles, the second captures
            bench.begin_together()
            started = time.perf_counter()
            call()
            bench.wait()
            if number >= 3:
                times.append(bench.worst(time.perf_counter() - started))
    return statistics.median(times)


def time_balance(bench: Bench) -> None:
    """Time one layer with skewed routing, before and after rebalancing its experts."""
    config = model_config(bench)
    plan = config.layers[-1]
    count = 64 if bench.is_small else 4096
    share = share_of(bench, count, redundant=bench.size)
    tensors = RandomTensors(config, 0, bench.device)
    layer = LayerTensors(tensors, f"layers.{plan.layer_id}.", bench.device, share)
    experts = share.routed_experts(plan, layer, config.swiglu_limit)
    generator = torch.Generator().manual_seed(bench.rank)
    chances = torch.arange(1, plan.n_routed_experts + 1) ** -ZIPF
    order = torch.randperm(len(chances), generator=torch.Generator().manual_seed(1))
    ids = torch.multinomial(
        chances[order].expand(count, -1), plan.num_experts_per_tok, generator=generator
    )
    ids = ids.sort(-1).values.to(bench.device)
    x = torch.randn(count, config.hidden_size, generator=generator).bfloat16().to(bench.device)
    weights = torch.full(ids.shape, 1 / ids.shape[1], device=bench.device)
    expect(share, count)
    before = step_seconds(bench, lambda: experts(x, ids, weights))
    balance = rebalance_layers(share.layers)
    expect(share, count)
    after = step_seconds(bench, lambda: experts(x, ids, weights))
    bench.say(time="one layer of experts, skewed", tokens_per_rank=count, zipf=ZIPF,
              imbalance_before=balance.before, imbalance_after=balance.after,
              before_us=1e6 * before, after_us=1e6 * after,
              ok=balance.after <= balance.before)  # fmt: skip


PARTS = {
    "peer-answers": check_peer_answers,
    "answers": check_answers,
    "full-width": check_full_width,
    "exchange": time_peer_exchange,
    "all-to-all": time_all_to_all,
    "overlap": time_overlap,
    "decode": time_decode,
    "prefill": time_prefill,
    "balance": time_balance,
}


def table(rows: list[dict[str, object]]) -> str:
    """One line per check and measurement."""
    lines = []
    for row in rows:
        name = row.get("check") or row.get("time")
        if name:
            rest = {k: v for k, v in row.items() if k not in ("check", "time")}
            lines.append(f"{name!s:<40} " + "  ".join(f"{k} {v}" for k, v in rest.items()))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; default: all")
    add_options(parser, ranks=8)
    parser.add_argument("--layers", type=int, default=ModelConfig.flash().num_hidden_layers)
    parser.add_argument("--context", type=int, default=131_072)
    parser.add_argument("--json", type=Path, help="keep all lines here")
    options = parser.parse_args()
    skipped = set() if options.device == "cuda" else {"peer-answers", "exchange", "overlap"}
    names = options.parts or [name for name in PARTS if name not in skipped]
    rows: list[dict[str, object]] = []
    failures = run_parts({name: PARTS[name] for name in names}, options, rows)
    print(table(rows))
    if options.json is not None:
        options.json.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
