"""``ModelConfig``: sizes, schedules and constants of a model, as stated in its config.json.

Names are those of the official ``text_config``.  Everything that differs between layers is derived
from the configuration (see ``schedule``); no layer number is hard-coded anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from deepinfer.errors import CheckpointError, ConfigError

from .config_checks import check_config
from .config_json import official_json, read_json_object, require_fields, typed_fields
from .engram_buckets import bucket_primes
from .schedule import LayerPlan, plan_draft_stages, plan_layers


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Immutable and validated.  Raises: ConfigError if values contradict each other."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-20
    bos_token_id: int = 0
    eos_token_id: int = 1
    pad_token_id: int = 2
    image_token_id: int | None = None

    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    # As in V4: each head's query is normalized, too.  A key of this project; off by default.
    q_head_norm: bool = False
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    sliding_window: int
    rope_theta: float = 10000.0
    compress_rope_theta: float = 160000.0
    rope_factor: float = 16.0
    rope_beta_fast: float = 32.0
    rope_beta_slow: float = 1.0
    rope_original_max_position: int = 65536

    compress_ratios: tuple[int, ...]
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    candidate_source_layer_id: int
    candidate_topk_blocks: int
    candidate_block_size: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int

    n_routed_experts: int
    n_shared_experts: int = 1
    num_experts_per_tok: int
    moe_intermediate_size: int
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.5
    swiglu_limit: float = 10.0

    hc_mult: int = 4
    hc_sinkhorn_iters: int = 20
    hc_eps: float = 1e-6

    engram_layer_ids: tuple[int, ...] = ()
    engram_num_embeddings: tuple[int, ...] = ()
    engram_max_ngram_size: int = 4
    engram_n_heads: int = 8
    engram_head_dim: int = 256
    engram_vocab_size: int = 16_000_000
    engram_compressed_vocab_size: int = 99_092
    engram_pad_token_id: int = 2

    num_nextn_predict_layers: int = 0
    dspark_block_size: int = 5
    dspark_noise_token_id: int = 0
    dspark_target_layer_ids: tuple[int, ...] = ()
    dspark_markov_rank: int = 256
    dspark_n_routed_experts: int = 128
    dspark_num_experts_per_tok: int = 3

    def __post_init__(self) -> None:
        check_config(self)

    @classmethod
    def from_dict(
        cls,
        raw: Mapping[str, Any],
        *,
        where: str = "config.json",
        tensor_names: Collection[str] = (),
    ) -> ModelConfig:
        """The config in ``raw``, either in the nested HF form or the flat official inference form.

        ``where`` names the source in errors.  ``tensor_names`` are those of the checkpoint, which
        give the number of draft stages if the config does not (older inference files).
        Raises: CheckpointError naming field, value and expectation.
        """
        try:
            values = typed_fields(raw, {field.name: str(field.type) for field in fields(cls)})
            if "num_nextn_predict_layers" not in values:
                stages = {name.split(".")[1] for name in tensor_names if name.startswith("mtp.")}
                values["num_nextn_predict_layers"] = len(stages)
            require_fields(values, [field.name for field in fields(cls)])
            return cls(**values)
        except ConfigError as error:
            raise CheckpointError(f"{where}: {error}") from None

    @classmethod
    def from_file(cls, folder: Path | str, *, tensor_names: Collection[str] = ()) -> ModelConfig:
        """The config of a checkpoint folder (or path of the JSON file)."""
        path = Path(folder)
        path = path / "config.json" if path.is_dir() else path
        return cls.from_dict(read_json_object(path), where=str(path), tensor_names=tensor_names)

    @classmethod
    def flash(cls) -> ModelConfig:
        """DeepSeek-V4.1-Flash as released; for planning, benchmarks and full-size tests."""
        text = (files("deepinfer.engine.model") / "flash.json").read_text(encoding="utf-8")
        return cls.from_dict(json.loads(text), where="flash.json")

    def to_dict(self) -> dict[str, Any]:
        """The nested official form; ``from_dict`` restores this config."""
        return official_json({field.name: getattr(self, field.name) for field in fields(self)})

    @cached_property
    def layers(self) -> tuple[LayerPlan, ...]:
        """The plan of each backbone layer, in order."""
        return plan_layers(self)

    @cached_property
    def draft_stages(self) -> tuple[LayerPlan, ...]:
        """The plan of each DSpark stage; ``layer_id`` continues after the backbone."""
        return plan_draft_stages(self)

    @property
    def split_layer(self) -> int:
        """First decoder layer, which is the last producer of global KV.  A prompt needs the decoder
        layers only for its last window."""
        return self.kv_source_layer_ids[-1]

    @property
    def num_encoder_layers(self) -> int:
        return self.split_layer

    @property
    def num_decoder_layers(self) -> int:
        return self.num_hidden_layers - self.split_layer

    @cached_property
    def engram_primes(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Bucket counts ``[engram layer][n-gram order - 2][head]``, all different primes."""
        return bucket_primes(
            num_layers=len(self.engram_layer_ids),
            num_orders=self.engram_max_ngram_size - 1,
            num_heads=self.engram_n_heads,
            vocab_size=self.engram_vocab_size,
        )

    @property
    def engram_columns(self) -> int:
        """Table rows gathered per token and Engram layer."""
        return (self.engram_max_ngram_size - 1) * self.engram_n_heads

    @property
    def main_entry_bytes(self) -> int:
        """One compressed KV entry: E2M1 values and one E4M3 scale per 16."""
        return self.head_dim // 2 + self.head_dim // 16

    @property
    def index_entry_bytes(self) -> int:
        """One index key: E2M1 values and one E8M0 scale per 32."""
        return self.index_head_dim // 2 + self.index_head_dim // 32

    @property
    def window_slot_bytes(self) -> int:
        """One window ring slot: E4M3 values and one E8M0 scale per 32."""
        return self.head_dim + self.head_dim // 32

    @property
    def global_kv_bytes_per_token(self) -> float:
        """Bytes of global KV per token over all producers (fractional with a ratio of 2)."""
        entry = self.main_entry_bytes + self.index_entry_bytes
        return sum(entry / self.compress_ratios[layer] for layer in self.kv_source_layer_ids)
