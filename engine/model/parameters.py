"""Parameter counts of a config: total, and active per token."""

from __future__ import annotations

from dataclasses import dataclass

from .config import ModelConfig
from .tensors import TensorSpec, expected_tensors, is_engram_table


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCounts:
    """backbone         text model without Engram tables and draft stages
    engram_tables    rows of the hash tables
    draft            DSpark stages
    active_decode    per decoded token (embedding and Engram rows are look-ups, not counted)
    active_prefill   per prompt token with bounded replay: the encoder, and the projections that
                     produce the decoder's global KV
    """

    backbone: int
    engram_tables: int
    draft: int
    active_decode: int
    active_prefill: int


def count_parameters(config: ModelConfig) -> ParameterCounts:
    specs = expected_tensors(config)
    text = {name: spec for name, spec in specs.items() if not name.startswith("mtp.")}
    tables = _total({n: spec for n, spec in text.items() if is_engram_table(n)})
    used = {n: s for n, s in text.items() if not is_engram_table(n) and n != "embed.weight"}
    prefill = {name: spec for name, spec in used.items() if _runs_in_prefill(config, name)}
    return ParameterCounts(
        backbone=_total(text) - tables,
        engram_tables=tables,
        draft=_total(specs) - _total(text),
        active_decode=_active(config, used),
        active_prefill=_active(config, prefill),
    )


def _runs_in_prefill(config: ModelConfig, name: str) -> bool:
    if not name.startswith("layers."):
        return False
    layer, split = int(name.split(".")[1]), config.split_layer
    writes_kv = (".attn_norm.", ".compressor.", ".indexer.wk.", ".indexer.k_norm.")
    return layer < split or (layer == split and any(part in name for part in writes_kv))


def _active(config: ModelConfig, specs: dict[str, TensorSpec]) -> int:
    experts = _total({name: spec for name, spec in specs.items() if ".experts." in name})
    share = experts * config.num_experts_per_tok // config.n_routed_experts
    return _total(specs) - experts + share


def _total(specs: dict[str, TensorSpec]) -> int:
    return sum(spec.num_parameters for spec in specs.values())
