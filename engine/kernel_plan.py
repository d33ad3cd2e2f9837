"""Finds the kernels that a model launches by rehearsing its forward passes."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepinfer.kernels.dspark import verify_drafts
from deepinfer.kernels.rehearsal import Launch, PretendedDevice, pretend, rehearse
from deepinfer.kernels.sampling import mask_logits, penalize_logits, sample

from .cache.kv_cache import KVCache
from .checkpoint.safetensors_file import MAP_NORESERVE
from .execution.batch import ForwardBatch
from .execution.decode_step import pieces_for
from .model.config import ModelConfig
from .model.model import Model
from .model.moe import MoE
from .model.schedule import LayerPlan
from .model.share import WHOLE_MODEL, Share, WholeModel
from .model.tensors import expected_tensors
from .parallel.exchange_plan import rehearse_exchanges

_BLOCK_SIZE = 64
_MOST_BYTES = 1 << 40  # more than any tensor: the largest is an Engram table of 98 GB
# Requests, and new tokens of each: decoding and verifying with one request to many, prompts of one
# token to large chunks.  There are sizes on both sides of every threshold in the launchers.
_SHAPES = (
    (1, 1), (16, 1), (17, 1), (40, 6), (128, 1), (128, 6), (256, 6), (1, 129), (1, 360), (1, 512),
    (1, 1280), (4, 512), (6, 440), (8, 512), (16, 512), (32, 384),
)  # fmt: skip
_FEW = (3, 1)
_PROMPT = (1, 1024)  # a whole prompt: its compressed rows are used many times
_LONG = 16384  # entries; launchers split longer contexts


def model_launches(config: ModelConfig, device: PretendedDevice) -> list[Launch]:
    """Every kernel that prefill, decode, drafts and sampling of this model launch on ``device``,
    and those of the exchange between GPUs of one host.

    Each specialization of a kernel is listed once.  Needs no weights and little memory.
    """
    share = _OneOfEachKind(config)
    model = model_of_zeros(config, device, share)
    as_fp8 = model_of_zeros(config, device, share, as_fp8=True)
    forms = (model, as_fp8)
    longest = max(_contexts(config))
    with rehearse(device) as launches, torch.inference_mode():
        for context in _contexts(config):
            _pass(model, *_FEW, context)
        _pass(model, *_FEW, longest, has_image=True)
        for form in forms:
            _pass(form, *_FEW, longest, piece_keys=pieces_for(_FEW[0]))
        _pass(model, *_PROMPT, 0)
        for num_requests, length in _SHAPES:
            context = min(longest, config.max_position_embeddings - length)
            for form in forms:
                _pass(form, num_requests, length, context)
        if device.capability is not None:
            cache = KVCache.allocate(config, num_blocks=1, block_size=_BLOCK_SIZE, num_slots=1)
            for form in forms:
                rehearse_exchanges(_experts(form), config.hidden_size, cache)
    return list(launches.values())


def _experts(model: Model) -> list[MoE]:
    """One layer's experts for each number of experts per token."""
    drafts = model.draft_model.blocks if model.draft_model is not None else []
    layers = [block.moe for block in (*model.blocks, *drafts)]
    return list({layer.num_experts_per_tok: layer for layer in layers}.values())


def _contexts(config: ModelConfig) -> list[int]:
    """Context lengths, from a few tokens to so many that candidate blocks must be selected.

    The numbers of entries and of candidate blocks include multiples of 16 and others: Triton
    specializes on that.
    """
    ratio = max(config.compress_ratios)
    pool = config.candidate_topk_blocks * config.candidate_block_size
    most = max(2 * pool, 2 * config.index_topk, _LONG)
    powers = [1 << exponent for exponent in range(6, most.bit_length() + 1)]
    lengths = [ratio * (entries + odd) - 1 for entries in powers for odd in (0, 16, 3, -3)]
    return [length for length in lengths if length < config.max_position_embeddings]


class _OneOfEachKind(WholeModel):
    """A model with one layer of each kind, their KV sources, and the taps of the draft stages."""

    def __init__(self, config: ModelConfig) -> None:
        last = {_kind(plan): plan for plan in config.layers}.values()
        read = {source for plan in last for source in (plan.kv_source, plan.index_source)}
        self._layer_ids = read | {plan.layer_id for plan in last}

    def has_layer(self, plan: LayerPlan) -> bool:
        return plan.layer_id in self._layer_ids or plan.tap is not None


def _kind(plan: LayerPlan) -> tuple[object, ...]:
    has_engram = plan.engram_index is not None
    return plan.mode, plan.ratio, plan.is_decoder, has_engram, plan.n_routed_experts


def _pass(
    model: Model,
    num_requests: int,
    length: int,
    context: int,
    *,
    has_image: bool = False,
    piece_keys: int | None = None,
) -> None:
    num_blocks = -(-(context + length) // _BLOCK_SIZE)
    cache = KVCache.allocate(
        model.config, num_blocks=num_blocks, block_size=_BLOCK_SIZE, num_slots=num_requests
    )
    run_pass(
        model, cache, num_requests, length, context, has_image=has_image, piece_keys=piece_keys
    )


def run_pass(
    model: Model,
    cache: KVCache,
    num_requests: int,
    length: int,
    context: int,
    *,
    has_image: bool = False,
    piece_keys: int | None = None,
    device: torch.device | str = "cpu",
) -> None:
    """A pass with ``length`` tokens for each of several requests that share all blocks, sampling,
    and drafting: everything that the workers run."""
    config = model.config
    starts = np.zeros(num_requests, dtype=np.int64)
    token_ids = np.zeros(num_requests * length, dtype=np.int64)
    if has_image:
        token_ids[0] = config.image_token_id or 0
    blocks = torch.arange(cache.num_blocks, device=device)
    batch = ForwardBatch.of(
        token_ids=token_ids,
        query_lens=(length,) * num_requests,
        first=starts + context,
        block_table=blocks.repeat(num_requests, 1),
        state_slots=np.arange(num_requests),
        encoder_start=starts,
        decoder_start=starts,
        write_start=starts,
        logit_rows=np.arange(0, len(token_ids), max(1, length // 8)),
        device=device,
        image_token_id=config.image_token_id,
    )
    batch = replace(batch, piece_keys=piece_keys)
    output = model.forward(batch, cache)
    _draw(output.logits, torch.zeros(len(output.logits), dtype=torch.int64, device=device))
    if model.draft_model is not None:
        slots = batch.state_slots
        kept = slots[batch.request_rows[output.main_rows]]
        positions = batch.positions[output.main_rows]
        model.seed_draft(output.main_hidden, positions, kept, batch.decoder_lens, cache)
        zeros = torch.zeros_like(slots)
        model.draft(zeros, zeros + context + length, slots, zeros, cache, _draw)


def _draw(logits: Tensor, positions: Tensor) -> Tensor:
    ones = torch.ones(len(logits), device=logits.device)
    zeros = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    masks = torch.full((1, -(-logits.shape[1] // 32)), -1, dtype=torch.int32, device=logits.device)
    mask_logits(logits, masks, zeros[:1])
    marks = torch.zeros(1, logits.shape[1], dtype=torch.int32, device=logits.device)
    penalize_logits(
        logits, zeros, zeros, zeros[None, :], marks, torch.zeros(1, 3, device=logits.device)
    )
    draft, one, zero = logits[:1, None].contiguous(), ones[:1], zeros[:1]
    verify_drafts(logits, draft, zero[:, None], zero, zero, one, one, zero, one, zero, positions)
    return sample(logits, ones, ones, zeros, ones, zeros, positions)


def model_of_zeros(
    config: ModelConfig,
    device: PretendedDevice,
    share: Share = WHOLE_MODEL,
    *,
    as_fp8: bool = False,
) -> Model:
    """A model whose weights are all views of the same zeros, which take no memory.

    ``as_fp8``: with the weights in FP8 that an engine has only on request.
    """
    specs = expected_tensors(config)
    tensors = {
        name: torch.empty(spec.shape, dtype=spec.dtype, device="meta")
        for name, spec in specs.items()
    }
    token_map = torch.zeros(config.vocab_size, dtype=torch.int64)
    with pretend(device):  # weights are converted to the device's format
        model = Model(
            config,
            tensors,
            device="meta",
            token_map=token_map,
            share=share,
            experts_as_fp8=as_fp8 and device.capability == (9, 0),
            output_as_fp8=as_fp8,
        )
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    memory = torch.frombuffer(mmap.mmap(-1, _MOST_BYTES, flags=flags), dtype=torch.uint8)
    _materialise(model, memory)
    return model


def _materialise(owner: object, memory: Tensor) -> None:
    """Replace every meta tensor that ``owner`` has by a view of ``memory``."""
    for name, value in _attributes(owner).items():
        real = _real(value, memory)
        if real is not value:
            object.__setattr__(owner, name, real)


def _attributes(owner: object) -> Mapping[str, Any]:
    if is_dataclass(owner):
        return {field.name: getattr(owner, field.name) for field in fields(owner)}
    return dict(vars(owner))


def _real(value: Any, memory: Tensor) -> Any:
    if isinstance(value, Tensor):
        if value.device.type != "meta":
            return value
        return memory[: value.nbytes].view(value.dtype).view(value.shape)
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "meta" else value
    if isinstance(value, list | tuple) and any(map(_holds_tensors, value)):
        return type(value)(_real(item, memory) for item in value)
    if isinstance(value, dict):
        return {key: _real(item, memory) for key, item in value.items()}
    if _holds_tensors(value):
        _materialise(value, memory)
    return value


def _holds_tensors(value: Any) -> bool:
    is_ours = type(value).__module__.startswith("deepinfer.")
    return (
        isinstance(value, Tensor)
        or (is_ours and hasattr(value, "__dict__"))
        or (is_dataclass(value) and is_ours)
    )
