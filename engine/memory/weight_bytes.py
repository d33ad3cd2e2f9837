"""Bytes of a model's weights as stored in a checkpoint, by where they have to be kept."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.tensors import expected_tensors, is_engram_table


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBytes:
    """shared    on every rank
    experts   routed experts, which ranks can split
    tables    Engram tables, which may be kept in host memory
    """

    shared: int
    experts: int
    tables: int


@cache  # the released model has 96,000 tensors
def weight_bytes(config: ModelConfig) -> WeightBytes:
    shared = experts = tables = 0
    for name, spec in expected_tensors(config).items():
        if ".experts." in name:
            experts += spec.num_bytes
        elif is_engram_table(name):
            tables += spec.num_bytes
        else:
            shared += spec.num_bytes
    return WeightBytes(shared=shared, experts=experts, tables=tables)
