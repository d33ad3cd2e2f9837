"""The trained parameters: fp32 master weights with the checkpoint's names, and the quantized weights of the model.

The routed experts of a layer are stacked: ``layers.L.ffn.experts.w1.weight`` is [E, I, d].
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor
from training.straight_through import fp4_weight, fp8_table, fp8_weight

from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.tensors import TensorSpec, expected_tensors

Weights = dict[str, Tensor]
Rounding = Callable[[Tensor], Tensor]

_EXPERT = re.compile(r"\.experts\.(\d+)\.")
NOT_TRAINED = (".gate.bias", ".gate.bias_vl")


def master_specs(config: ModelConfig) -> dict[str, TensorSpec]:
    """Checkpoint spec by name (of a single expert for stacked ones), without scales."""
    specs: dict[str, TensorSpec] = {}
    for name, spec in expected_tensors(config).items():
        if not spec.is_scale and not name.endswith("bias_vl"):
            specs.setdefault(_EXPERT.sub(".experts.", name), spec)
    return specs


def new_masters(config: ModelConfig, seed: int, device: torch.device) -> Weights:
    """Random initial master weights, f32."""
    generator = torch.Generator().manual_seed(seed)
    masters = {}
    for name, spec in master_specs(config).items():
        shape = master_shape(config, name, spec)
        masters[name] = _initial(config, name, shape, generator).to(device)
    return masters


def master_shape(config: ModelConfig, name: str, spec: TensorSpec) -> tuple[int, ...]:
    if ".ffn.experts." not in name:
        return spec.shape
    draft = name.startswith("mtp.")
    experts = config.dspark_n_routed_experts if draft else config.n_routed_experts
    rows, packed = spec.shape
    return experts, rows, 2 * packed


def _initial(
    config: ModelConfig, name: str, shape: tuple[int, ...], generator: torch.Generator
) -> Tensor:
    noise = torch.randn(shape, generator=generator)
    if name.endswith(("norm.weight", "q_weight", "k_weight")):
        return torch.ones(shape)
    if name.endswith(("_base", "_scale")):
        return _initial_mixing(config, name, noise)
    if name.endswith(("attn_sink", ".gate.bias")):
        return torch.zeros(shape)
    if name == "head.weight":
        return 0.02 * noise
    if name == "embed.weight":
        return 0.7 * noise
    if name.endswith(("engram.embed.weight", "markov_head.embed.weight")):
        return 0.5 * noise
    if name.endswith(("markov_head.head.weight", "confidence_head.proj.weight")):
        return torch.zeros(shape)
    std = shape[-1] ** -0.5
    if name.endswith(("wo_b.weight", "w2.weight")):  # small initial outputs of each layer
        std /= math.sqrt(2 * config.num_hidden_layers)
    return std * noise


def _initial_mixing(config: ModelConfig, name: str, noise: Tensor) -> Tensor:
    """Initially streams are almost separate, and read and written evenly, with small differences."""
    if name.endswith("_scale"):
        return torch.full_like(noise, 0.1)
    streams = config.hc_mult
    read = torch.full((streams,), math.log(1 / (streams - 1)))
    keep = 4 * torch.eye(streams).flatten()
    return torch.cat([read, torch.zeros(streams), keep]) + 0.3 * noise


def effective_weights(masters: Weights, config: ModelConfig) -> Weights:
    """The weights as the checkpoint would store them, dequantized to bf16 or f32; straight-through gradients.

    Weights of the same shape and format are rounded together.
    """
    specs = master_specs(config)
    weights: Weights = {}
    groups: dict[tuple[Rounding, torch.Size], list[str]] = defaultdict(list)
    for name, master in masters.items():
        rounding = _rounding(name, specs[name])
        if rounding is None:
            weights[name] = master.to(specs[name].dtype)
        else:
            groups[rounding, master.shape].append(name)
    for (rounding, _), names in groups.items():
        rounded = rounding(torch.stack([masters[name] for name in names]))
        weights.update(zip(names, rounded.unbind(), strict=True))
    return weights


def _rounding(name: str, spec: TensorSpec) -> Rounding | None:
    if spec.dtype == torch.int8:
        return fp4_weight
    if spec.dtype == torch.float8_e4m3fn:
        return fp8_table if ".engram.embed." in name else fp8_weight
    return None
