"""Consistency checks of ``ModelConfig``, one function per part of the model.

Each message names the field, its value and what was expected.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from deepinfer.errors import ConfigError

from .engram_buckets import bucket_primes
from .schedule import last_source

if TYPE_CHECKING:
    from .config import ModelConfig

QUANT_BLOCK = 32
_MOST_EXPERTS = 16_384  # opening a checkpoint lists the tensors of each


def check_config(config: ModelConfig) -> None:
    """Raises: ConfigError on the first contradiction."""
    _check_sizes(config)
    _check_blocks(config)
    _check_sources(config)
    _check_candidates(config)
    _check_engram(config)
    _check_draft(config)


def _require(config: ModelConfig, ok: bool, name: str, expected: str) -> None:
    if not ok:
        raise ConfigError(f"{name}={getattr(config, name)!r}: expected {expected}")


def _check_sizes(config: ModelConfig) -> None:
    positive = (
        *("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings"),
        *("num_attention_heads", "head_dim", "q_lora_rank", "o_lora_rank", "o_groups"),
        *("sliding_window", "rope_original_max_position", "candidate_topk_blocks"),
        *("candidate_block_size", "index_n_heads", "index_head_dim", "index_topk"),
        *("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "hc_mult"),
        *("hc_sinkhorn_iters", "rms_norm_eps", "rope_theta", "compress_rope_theta"),
        *("rope_factor", "rope_beta_fast", "rope_beta_slow", "routed_scaling_factor"),
        *("swiglu_limit", "hc_eps"),
    )
    for name in positive:
        value = getattr(config, name)
        _require(config, 0 < value < float("inf"), name, "a finite number above 0")
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "engram_pad_token_id"):
        _require(config, 0 <= getattr(config, name) < config.vocab_size, name, _vocab(config))
    image = config.image_token_id
    _require(config, image is None or 0 <= image < config.vocab_size, "image_token_id", "a token")
    _require(config, config.n_shared_experts == 1, "n_shared_experts", "1 (no other is supported)")
    for name in ("n_routed_experts", "dspark_n_routed_experts"):
        _require(config, getattr(config, name) <= _MOST_EXPERTS, name, f"at most {_MOST_EXPERTS:,}")
    experts = config.n_routed_experts
    chosen = config.num_experts_per_tok
    _require(
        config, chosen <= experts, "num_experts_per_tok", f"at most n_routed_experts={experts}"
    )
    heads = config.num_attention_heads
    _require(config, heads % config.o_groups == 0, "o_groups", f"a divisor of {heads} heads")
    limit = min(config.head_dim, config.index_head_dim)
    rope = config.qk_rope_head_dim
    expected = f"an even number from 2 to {limit} (head_dim and index_head_dim hold it)"
    _require(config, rope % 2 == 0 and 2 <= rope <= limit, "qk_rope_head_dim", expected)


def _vocab(config: ModelConfig) -> str:
    return f"a token id below vocab_size={config.vocab_size}"


def _check_blocks(config: ModelConfig) -> None:
    expected = f"a multiple of {QUANT_BLOCK} (quantisation block)"
    names = (
        *("hidden_size", "head_dim", "q_lora_rank", "moe_intermediate_size", "index_head_dim"),
        *(("engram_head_dim",) if config.engram_layer_ids else ()),
    )
    for name in names:
        _require(config, getattr(config, name) % QUANT_BLOCK == 0, name, expected)
    width = config.o_groups * config.o_lora_rank
    ok = width % QUANT_BLOCK == 0
    _require(config, ok, "o_lora_rank", f"o_groups * o_lora_rank = {width} to be {expected}")


def _check_layer_ids(config: ModelConfig, name: str) -> None:
    ids = getattr(config, name)
    ok = all(a < b for a, b in pairwise(ids)) and all(
        0 <= i < config.num_hidden_layers for i in ids
    )
    _require(config, ok, name, f"ascending layer ids from 0 to {config.num_hidden_layers - 1}")


def _check_sources(config: ModelConfig) -> None:
    layers, ratios = config.num_hidden_layers, config.compress_ratios
    stages = config.num_nextn_predict_layers
    lengths = {layers, layers + stages}
    expected = f"{layers} entries, or {layers + stages} with the {stages} draft stages"
    _require(config, len(ratios) in lengths, "compress_ratios", expected)
    _require(config, set(ratios) <= {0, 1, 2}, "compress_ratios", "0, 1 or 2 for every layer")
    _require(config, not any(ratios[layers:]), "compress_ratios", "0 for the draft stages")
    for name in ("kv_source_layer_ids", "index_source_layer_ids"):
        _check_layer_ids(config, name)
        ok = all(ratios[layer] for layer in getattr(config, name))
        _require(config, ok, name, "layers whose compress_ratios entry is not 0")
    kv, index = config.kv_source_layer_ids, config.index_source_layer_ids
    _require(config, len(kv) > 0, "kv_source_layer_ids", "at least one layer")
    missing = sorted(set(kv) - set(index))
    expected = f"to contain every kv_source_layer_ids entry; {missing} missing"
    _require(config, not missing, "index_source_layer_ids", expected)
    for layer in range(layers):
        source = last_source(layer, kv)
        if ratios[layer] and (source is None or ratios[source] != ratios[layer]):
            found = "none" if source is None else f"layer {source} with ratio {ratios[source]}"
            raise ConfigError(
                f"compress_ratios[{layer}]={ratios[layer]}: expected the last KV source at or "
                f"before this layer to have the same ratio, found {found}"
            )


def _check_candidates(config: ModelConfig) -> None:
    source, last_kv = config.candidate_source_layer_id, config.kv_source_layer_ids[-1]
    ok = source in config.index_source_layer_ids and source >= last_kv
    expected = f"an index_source_layer_ids entry reading the last KV source, layer {last_kv}"
    _require(config, ok, "candidate_source_layer_id", expected)
    block, needed = config.candidate_block_size, config.index_topk
    # The newest block is always included, and may have a single entry.
    pool = config.candidate_topk_blocks * block - (block - 1)
    blocks = -(-(needed + block - 1) // block)
    expected = f"at least {blocks}, so that {pool} sure candidates cover index_topk={needed}"
    _require(config, pool >= needed, "candidate_topk_blocks", expected)


def _check_engram(config: ModelConfig) -> None:
    _check_layer_ids(config, "engram_layer_ids")
    if not config.engram_layer_ids:
        _require(config, not config.engram_num_embeddings, "engram_num_embeddings", "no entry")
        return
    # Upper bounds, so that a corrupt file cannot start an endless search for primes.
    ranges = {
        "engram_max_ngram_size": (2, 16),
        "engram_n_heads": (1, 256),
        "engram_vocab_size": (1, 2**32),
        "engram_compressed_vocab_size": (1, config.vocab_size),
    }
    for name, (low, high) in ranges.items():
        _require(config, low <= getattr(config, name) <= high, name, f"{low} to {high}")
    _require(config, len(config.engram_layer_ids) <= 64, "engram_layer_ids", "at most 64 layers")
    primes = bucket_primes(
        num_layers=len(config.engram_layer_ids),
        num_orders=config.engram_max_ngram_size - 1,
        num_heads=config.engram_n_heads,
        vocab_size=config.engram_vocab_size,
    )
    rows = tuple(sum(map(sum, layer)) for layer in primes)
    ok = config.engram_num_embeddings == rows
    _require(config, ok, "engram_num_embeddings", f"{rows}, the sums of the bucket primes")


def _check_draft(config: ModelConfig) -> None:
    _check_layer_ids(config, "dspark_target_layer_ids")
    stages = config.num_nextn_predict_layers
    _require(config, stages >= 0, "num_nextn_predict_layers", "0 or more")
    if not stages:
        return
    targets = config.dspark_target_layer_ids
    _require(config, len(targets) > 0, "dspark_target_layer_ids", "at least one layer to tap")
    for name in ("dspark_block_size", "dspark_markov_rank", "dspark_n_routed_experts"):
        _require(config, getattr(config, name) > 0, name, "a number above 0")
    experts, chosen = config.dspark_n_routed_experts, config.dspark_num_experts_per_tok
    _require(config, 0 < chosen <= experts, "dspark_num_experts_per_tok", f"1 to {experts}")
    noise = config.dspark_noise_token_id
    _require(config, 0 <= noise < config.vocab_size, "dspark_noise_token_id", _vocab(config))
