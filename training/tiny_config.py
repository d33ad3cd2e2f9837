"""Writes the embedded model's configuration to recipes/tiny/config.json.

python -m training.tiny_config
"""

from __future__ import annotations

import json
from pathlib import Path

from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.engram_buckets import bucket_primes
from deepinfer.recipes.token_compression import token_compression
from deepinfer.recipes.tokenizer import Tokenizer

FOLDER = Path(__file__).parent.parent / "recipes" / "tiny"
NUM_LAYERS, NUM_ENCODER_LAYERS, NUM_DRAFT_STAGES = 8, 4, 3
ENGRAM_BUCKETS, ENGRAM_HEADS, ENGRAM_LAYERS = 2048, 2, (1, 3)


def tiny_config(tokenizer_file: Path = FOLDER / "tokenizer.json") -> ModelConfig:
    """All mechanisms of the model family, with about 9.4 M active parameters and 23 MB."""
    compression = token_compression(Tokenizer.from_file(tokenizer_file))
    primes = bucket_primes(
        num_layers=len(ENGRAM_LAYERS),
        num_orders=3,
        num_heads=ENGRAM_HEADS,
        vocab_size=ENGRAM_BUCKETS,
    )
    half, layers = NUM_ENCODER_LAYERS, NUM_LAYERS
    return ModelConfig(
        vocab_size=len(compression),
        hidden_size=256,
        num_hidden_layers=layers,
        max_position_embeddings=8192,
        image_token_id=10,
        num_attention_heads=8,
        head_dim=96,
        qk_rope_head_dim=32,
        q_lora_rank=128,
        o_lora_rank=128,
        o_groups=2,
        sliding_window=128,
        rope_original_max_position=512,
        compress_ratios=(0,) + (2,) * (half - 1) + (1,) * (layers - half) + (0,) * NUM_DRAFT_STAGES,
        kv_source_layer_ids=(1, half),
        index_source_layer_ids=(1, half, half + 2),
        candidate_source_layer_id=half,
        candidate_topk_blocks=32,
        candidate_block_size=8,
        index_n_heads=4,
        index_head_dim=64,
        index_topk=64,
        n_routed_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=256,
        engram_layer_ids=ENGRAM_LAYERS,
        engram_num_embeddings=tuple(sum(map(sum, orders)) for orders in primes),
        engram_n_heads=ENGRAM_HEADS,
        engram_head_dim=32,
        engram_vocab_size=ENGRAM_BUCKETS,
        engram_compressed_vocab_size=int(compression.max()) + 1,
        num_nextn_predict_layers=NUM_DRAFT_STAGES,
        dspark_noise_token_id=3,  # the system marker, as in the released model
        dspark_target_layer_ids=tuple(range(layers - 3, layers)),
        dspark_markov_rank=64,
        dspark_n_routed_experts=4,
        dspark_num_experts_per_tok=2,
    )


def main() -> None:
    text = json.dumps(tiny_config().to_dict(), indent=2) + "\n"
    (FOLDER / "config.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
