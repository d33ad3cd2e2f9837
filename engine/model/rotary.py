"""Rotary tables: one set of frequencies per (theta, with or without YaRN) of the schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepinfer.kernels.rope import rope_frequencies, rope_table

from .schedule import LayerPlan

if TYPE_CHECKING:
    from .config import ModelConfig

RopeKey = tuple[float, bool]
RopeTables = dict[RopeKey, tuple[Tensor, Tensor]]


def rope_key(plan: LayerPlan) -> RopeKey:
    return plan.rope_theta, plan.use_yarn


class Rotary:
    """Makes rotary tables of given positions for every kind of layer."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        keys = {rope_key(plan) for plan in (*config.layers, *config.draft_stages)}
        self._frequencies = {key: _frequencies(config, key).to(device) for key in sorted(keys)}

    def tables(self, positions: Tensor) -> RopeTables:
        """For positions [T] i64, two factors [T, rotary] f32 per key."""
        return {key: rope_table(f, positions) for key, f in self._frequencies.items()}

    def table(self, plan: LayerPlan, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The table of one layer for arbitrary positions."""
        return rope_table(self._frequencies[rope_key(plan)], positions)


def _frequencies(config: ModelConfig, key: RopeKey) -> Tensor:
    theta, use_yarn = key
    return rope_frequencies(
        config.qk_rope_head_dim,
        theta,
        yarn_factor=config.rope_factor if use_yarn else 1.0,
        original_max_position=config.rope_original_max_position,
        beta_fast=config.rope_beta_fast,
        beta_slow=config.rope_beta_slow,
    )
