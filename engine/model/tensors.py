"""The tensors of a checkpoint in the official format: every name with its dtype and shape.

``X.weight`` in FP8 has an ``X.scale`` with one power of two per 32 x 32 tile; packed FP4 has one
per 32 inputs of a row.  Vision tensors are accepted by prefix and never read.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch

from deepinfer.errors import CheckpointError

from .config import ModelConfig
from .config_checks import QUANT_BLOCK
from .schedule import LayerPlan

VISION_PREFIXES = ("vision.", "aligner.", "image_")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """``is_optional``: not needed for text (the router bias of image tokens)."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    is_optional: bool = False

    @property
    def is_scale(self) -> bool:
        return self.dtype == torch.float8_e8m0fnu

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    @property
    def num_parameters(self) -> int:
        """Number of parameters: two per byte of packed FP4, none for scales."""
        if self.is_scale:
            return 0
        return prod(self.shape) * (2 if self.dtype == torch.int8 else 1)


Named = Iterator[tuple[str, TensorSpec]]


def expected_tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """Every text tensor of a checkpoint with this config, in the order of the official files."""
    specs = dict(_top(config))
    for plan in config.layers:
        specs.update(layer_tensors(config, plan, f"layers.{plan.layer_id}"))
    for stage, plan in enumerate(config.draft_stages):
        specs.update(layer_tensors(config, plan, f"mtp.{stage}"))
    if config.draft_stages:
        specs.update(_draft_ends(config))
    return specs


def layer_tensors(config: ModelConfig, plan: LayerPlan, prefix: str) -> dict[str, TensorSpec]:
    """The tensors of one backbone layer or draft stage."""
    specs = dict(_block(config, prefix))
    specs.update(_attention(config, f"{prefix}.attn"))
    if plan.is_kv_source:
        specs.update(_compressor(config, plan.ratio, f"{prefix}.attn.compressor"))
    if plan.is_index_source:
        specs.update(_indexer(config, plan.is_kv_source, f"{prefix}.attn.indexer"))
    if plan.engram_index is not None:
        specs.update(_engram(config, plan.engram_index, f"{prefix}.engram"))
    specs.update(_moe(config, plan.n_routed_experts, f"{prefix}.ffn"))
    return specs


def is_engram_table(name: str) -> bool:
    """Whether a tensor is an Engram table or its scales: large, and read a few rows at a time."""
    return ".engram.embed." in name


def bf16(*shape: int) -> TensorSpec:
    return TensorSpec(torch.bfloat16, shape)


def f32(*shape: int, is_optional: bool = False) -> TensorSpec:
    return TensorSpec(torch.float32, shape, is_optional)


def fp8_linear(name: str, out_features: int, in_features: int) -> Named:
    yield f"{name}.weight", TensorSpec(torch.float8_e4m3fn, (out_features, in_features))
    scale_shape = (out_features // QUANT_BLOCK, in_features // QUANT_BLOCK)
    yield f"{name}.scale", TensorSpec(torch.float8_e8m0fnu, scale_shape)


def fp4_linear(name: str, out_features: int, in_features: int) -> Named:
    yield f"{name}.weight", TensorSpec(torch.int8, (out_features, in_features // 2))
    yield (
        f"{name}.scale",
        TensorSpec(torch.float8_e8m0fnu, (out_features, in_features // QUANT_BLOCK)),
    )


def _top(config: ModelConfig) -> Named:
    yield "embed.weight", bf16(config.vocab_size, config.hidden_size)
    yield "head.weight", bf16(config.vocab_size, config.hidden_size)
    yield "norm.weight", bf16(config.hidden_size)


def _block(config: ModelConfig, prefix: str) -> Named:
    streams = config.hc_mult
    mixes = streams * (2 + streams)
    for part in ("attn", "ffn"):
        yield f"{prefix}.{part}_norm.weight", bf16(config.hidden_size)
        yield f"{prefix}.hc_{part}_fn", f32(mixes, streams * config.hidden_size)
        yield f"{prefix}.hc_{part}_base", f32(mixes)
        yield f"{prefix}.hc_{part}_scale", f32(3)


def _attention(config: ModelConfig, prefix: str) -> Named:
    heads_dim = config.num_attention_heads * config.head_dim
    output_rank = config.o_groups * config.o_lora_rank
    yield f"{prefix}.attn_sink", f32(config.num_attention_heads)
    yield from fp8_linear(f"{prefix}.wq_a", config.q_lora_rank, config.hidden_size)
    yield f"{prefix}.q_norm.weight", bf16(config.q_lora_rank)
    yield from fp8_linear(f"{prefix}.wq_b", heads_dim, config.q_lora_rank)
    yield from fp8_linear(f"{prefix}.wkv", config.head_dim, config.hidden_size)
    yield f"{prefix}.kv_norm.weight", bf16(config.head_dim)
    yield from fp8_linear(f"{prefix}.wo_a", output_rank, heads_dim // config.o_groups)
    yield from fp8_linear(f"{prefix}.wo_b", config.hidden_size, output_rank)


def _compressor(config: ModelConfig, ratio: int, prefix: str) -> Named:
    yield f"{prefix}.wkv.weight", bf16(config.head_dim, config.hidden_size)
    if ratio > 1:
        yield f"{prefix}.wgate.weight", bf16(config.head_dim, config.hidden_size)
    yield f"{prefix}.norm.weight", bf16(config.head_dim)


def _indexer(config: ModelConfig, has_keys: bool, prefix: str) -> Named:
    width = config.index_n_heads * config.index_head_dim
    yield from fp8_linear(f"{prefix}.wq_b", width, config.q_lora_rank)
    yield f"{prefix}.weights_proj.weight", bf16(config.index_n_heads, config.hidden_size)
    if has_keys:
        yield f"{prefix}.wk.weight", bf16(config.index_head_dim, config.head_dim)
        yield f"{prefix}.k_norm.weight", bf16(config.index_head_dim)


def _engram(config: ModelConfig, engram_index: int, prefix: str) -> Named:
    rows, width = config.engram_num_embeddings[engram_index], config.engram_head_dim
    yield f"{prefix}.embed.weight", TensorSpec(torch.float8_e4m3fn, (rows, width))
    yield f"{prefix}.embed.scale", TensorSpec(torch.float8_e8m0fnu, (rows, width // QUANT_BLOCK))
    outputs = (config.hc_mult + 1) * config.hidden_size
    yield from fp8_linear(f"{prefix}.wkv", outputs, config.engram_columns * width)
    yield f"{prefix}.q_weight", bf16(config.hc_mult, config.hidden_size)
    yield f"{prefix}.k_weight", bf16(config.hc_mult, config.hidden_size)


def _moe(config: ModelConfig, num_experts: int, prefix: str) -> Named:
    yield f"{prefix}.gate.weight", bf16(num_experts, config.hidden_size)
    yield f"{prefix}.gate.bias", f32(num_experts)
    yield f"{prefix}.gate.bias_vl", f32(num_experts, is_optional=True)
    hidden, inner = config.hidden_size, config.moe_intermediate_size
    for name, out_features, in_features in (
        ("w1", inner, hidden),
        ("w2", hidden, inner),
        ("w3", inner, hidden),
    ):
        yield from fp8_linear(f"{prefix}.shared_experts.{name}", out_features, in_features)
        pair = tuple(fp4_linear("", out_features, in_features))
        for expert in range(num_experts):
            for suffix, spec in pair:  # one shared spec object: there are thousands of experts
                yield f"{prefix}.experts.{expert}.{name}{suffix}", spec


def _draft_ends(config: ModelConfig) -> Named:
    taps = len(config.dspark_target_layer_ids)
    hidden, rank, vocab = config.hidden_size, config.dspark_markov_rank, config.vocab_size
    yield from fp8_linear("mtp.0.main_proj", hidden, taps * hidden)
    yield "mtp.0.main_norm.weight", bf16(hidden)
    last = f"mtp.{config.num_nextn_predict_layers - 1}"
    yield f"{last}.norm.weight", bf16(hidden)
    yield f"{last}.markov_head.embed.weight", bf16(vocab, rank)
    yield f"{last}.markov_head.head.weight", bf16(vocab, rank)
    yield f"{last}.confidence_head.proj.weight", bf16(1, hidden + rank)


class HasLayout(Protocol):
    """A tensor, or its entry in a file header."""

    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def shape(self) -> Sequence[int]: ...


def check_tensors(
    expected: Mapping[str, TensorSpec],
    found: Mapping[str, HasLayout],
    *,
    where: Callable[[str], str],
) -> None:
    """Compare a checkpoint's tensors with the expected ones; vision tensors are ignored.

    ``where`` gives the file of a tensor, or where a missing one should be.
    Raises: CheckpointError on a missing or unexpected tensor, or a wrong dtype or shape.
    """
    missing = [n for n, spec in expected.items() if n not in found and not spec.is_optional]
    extra = [n for n in found if n not in expected and not n.startswith(VISION_PREFIXES)]
    if missing:
        name = missing[0]
        near = difflib.get_close_matches(name, extra[:1000], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise CheckpointError(
            f"{where(name)}: tensor {name!r} is missing{_others(missing)}; config.json requires it "
            f"as {_layout(expected[name])}{hint}"
        )
    if extra:
        raise CheckpointError(
            f"{where(extra[0])}: unexpected tensor {extra[0]!r}{_others(extra)}; config.json has "
            f"no place for it"
        )
    for name, spec in expected.items():
        tensor = found.get(name)
        if tensor is None:
            continue
        if tensor.dtype != spec.dtype or tuple(tensor.shape) != spec.shape:
            raise CheckpointError(
                f"{where(name)}: tensor {name!r} is {_layout(tensor)}, expected {_layout(spec)} "
                f"by config.json"
            )


def _layout(tensor: HasLayout) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _others(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
