"""The layer schedule: what each layer computes, stores and reads, derived from the config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .config import ModelConfig

GlobalAttention = Literal["none", "full", "reindex", "reuse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """One layer.

    ratio                tokens per compressed entry; 0 = window attention only
    rope_theta, use_yarn rotary table of this layer's queries, window keys and compressed keys
    kv_source            layer whose compressed KV and index keys are read; None if ratio is 0
    index_source         layer whose top-k selection is used; None if ratio is 0
    mode                 "full" produces KV and scores it, "reindex" scores the source's keys with
                         its own queries, "reuse" reuses a selection, "none" has no global part
    is_candidate_source  selects candidate blocks for later layers
    uses_candidates      scores only entries in candidate blocks
    engram_index         position in ``engram_layer_ids``, or None
    is_decoder           at or after the split layer
    tap                  position in ``dspark_target_layer_ids`` whose hidden state is this layer's
                         input, or None
    n_routed_experts, num_experts_per_tok   of this layer's MoE
    """

    layer_id: int
    ratio: int
    rope_theta: float
    use_yarn: bool
    kv_source: int | None
    index_source: int | None
    mode: GlobalAttention
    is_candidate_source: bool
    uses_candidates: bool
    engram_index: int | None
    is_decoder: bool
    tap: int | None
    n_routed_experts: int
    num_experts_per_tok: int

    @property
    def is_kv_source(self) -> bool:
        return self.mode == "full"

    @property
    def is_index_source(self) -> bool:
        return self.mode in ("full", "reindex")


def last_source(layer_id: int, source_layer_ids: Sequence[int]) -> int | None:
    """The last source at or before a layer."""
    return max((source for source in source_layer_ids if source <= layer_id), default=None)


def plan_layers(config: ModelConfig) -> tuple[LayerPlan, ...]:
    return tuple(_plan_layer(config, layer_id) for layer_id in range(config.num_hidden_layers))


def plan_draft_stages(config: ModelConfig) -> tuple[LayerPlan, ...]:
    first = config.num_hidden_layers
    return tuple(
        LayerPlan(
            layer_id=first + stage,
            ratio=0,
            rope_theta=config.rope_theta,
            use_yarn=False,
            kv_source=None,
            index_source=None,
            mode="none",
            is_candidate_source=False,
            uses_candidates=False,
            engram_index=None,
            is_decoder=True,
            tap=None,
            n_routed_experts=config.dspark_n_routed_experts,
            num_experts_per_tok=config.dspark_num_experts_per_tok,
        )
        for stage in range(config.num_nextn_predict_layers)
    )


def _plan_layer(config: ModelConfig, layer_id: int) -> LayerPlan:
    ratio = config.compress_ratios[layer_id]
    mode = _mode(config, layer_id)
    return LayerPlan(
        layer_id=layer_id,
        ratio=ratio,
        rope_theta=config.compress_rope_theta if ratio else config.rope_theta,
        use_yarn=ratio > 0,
        kv_source=last_source(layer_id, config.kv_source_layer_ids) if ratio else None,
        index_source=last_source(layer_id, config.index_source_layer_ids) if ratio else None,
        mode=mode,
        is_candidate_source=layer_id == config.candidate_source_layer_id,
        uses_candidates=layer_id > config.candidate_source_layer_id and mode == "reindex",
        engram_index=_position(layer_id, config.engram_layer_ids),
        is_decoder=layer_id >= config.split_layer,
        tap=_position(layer_id, config.dspark_target_layer_ids),
        n_routed_experts=config.n_routed_experts,
        num_experts_per_tok=config.num_experts_per_tok,
    )


def _mode(config: ModelConfig, layer_id: int) -> GlobalAttention:
    if config.compress_ratios[layer_id] == 0:
        return "none"
    if layer_id in config.kv_source_layer_ids:
        return "full"
    return "reindex" if layer_id in config.index_source_layer_ids else "reuse"


def _position(layer_id: int, layer_ids: Sequence[int]) -> int | None:
    return layer_ids.index(layer_id) if layer_id in layer_ids else None
