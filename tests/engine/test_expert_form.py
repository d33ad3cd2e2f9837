"""Experts become FP8 where steps are large and the caches still fit; GPUs here are two numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from deepinfer.engine.cache.kv_cache import block_bytes
from deepinfer.engine.config import EngineConfig
from deepinfer.engine.memory.capacity import size_cache, wanted_bytes
from deepinfer.engine.memory.device_memory import DeviceMemory
from deepinfer.engine.memory.expert_form import (
    ROWS_WORTH_FP8,
    is_worth_fp8,
    more_bytes_as_fp8,
    with_expert_form,
)
from deepinfer.engine.memory.memory_plan import memory_plan
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.tensors import fp4_linear
from deepinfer.errors import ConfigError
from deepinfer.kernels.gemm import Weight, native_weight, recast_weight
from deepinfer.kernels.gemm.hopper_weights import prepare_weight

GIB = 2**30
FLASH = ModelConfig.flash()
H200 = DeviceMemory(total_bytes=139 * GIB, free_bytes=138 * GIB)
# A rank of eight that only reads prompts of 64 k tokens.
PREFILL = EngineConfig(
    max_num_seqs=2, max_num_batched_tokens=8192, max_model_len=65_536, device="cuda"
)


def _form(config: EngineConfig, memory: DeviceMemory | None = H200, tokens: int = 65_536) -> str:
    return with_expert_form(config, FLASH, memory, held=1 / 8, tokens=tokens).expert_weights


def test_auto_asks_for_rows_and_room() -> None:
    enough = ROWS_WORTH_FP8 * FLASH.n_routed_experts // FLASH.num_experts_per_tok
    assert (is_worth_fp8(FLASH, enough), is_worth_fp8(FLASH, enough - 1)) == (True, False)
    assert _form(PREFILL) == "fp8"
    assert _form(PREFILL, tokens=enough) == "fp8"
    assert _form(PREFILL, tokens=enough - 1) == "fp4", "few rows for each expert"
    assert _form(PREFILL, memory=None) == "fp4", "no GPU that has another form"
    many = replace(PREFILL, max_num_seqs=512, max_model_len=131_072)
    assert _form(many) == "fp4", "their caches would not fit any more"
    assert _form(replace(many, cache_memory_gib=4.0)) == "fp8", "caches were limited anyway"
    assert _form(replace(PREFILL, gpu_memory=0.3)) == "fp4", "nothing fits: that error comes later"


def test_auto_never_takes_blocks_from_caches() -> None:
    """Whatever memory there is: with FP8 as many blocks remain as were wanted."""
    chosen, config = set(), replace(PREFILL, max_num_seqs=40)
    as_fp8 = replace(config, num_blocks=1, expert_weights="fp8")
    plan = memory_plan(FLASH, as_fp8, num_expert_ranks=8)
    for free in range(60, 139, 6):
        memory = DeviceMemory(total_bytes=139 * GIB, free_bytes=free * GIB)
        form = _form(config, memory)
        chosen.add(form)
        if form == "fp8":
            tables = 2 * FLASH.engram_vocab_size  # not on the GPU; more than nothing
            left = memory.less(min(plan.weight_bytes, 70 * GIB) - tables)
            sized = size_cache(FLASH, config, left)
            assert sized.num_blocks == wanted_bytes(FLASH, config) // block_bytes(FLASH, 64)
    assert chosen == {"fp4", "fp8"}


def test_what_is_asked_for_is_done_where_it_can_be() -> None:
    assert _form(replace(PREFILL, expert_weights="fp4")) == "fp4"
    assert _form(replace(PREFILL, expert_weights="fp8"), tokens=1) == "fp8"
    assert _form(replace(PREFILL, expert_weights="fp8"), memory=None) == "fp4"
    with pytest.raises(ConfigError, match="expert_weights='int4': expected auto or fp4 or fp8"):
        EngineConfig(expert_weights="int4")


def test_more_bytes_are_what_recast_weights_take() -> None:
    values = torch.zeros(1, 128, 256, dtype=torch.int8)
    scales = torch.full((1, 128, 16), 120, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    packed = prepare_weight(Weight(values, scales))
    assert packed is not None and packed.exponents is not None
    recast = recast_weight(packed)
    more = recast.values.nbytes - packed.values.nbytes - packed.exponents.nbytes
    specs = dict(fp4_linear("w", 128, 512))
    codes, steps = specs["w.weight"].num_bytes, specs["w.scale"].num_bytes
    assert more == codes - steps
    assert native_weight(Weight(values, scales)).values is values, "a CPU keeps what is stored"
    # 40 layers of 384 experts with three linears of 5,120 x 2,304, and the draft stages.
    stages = sum(plan.n_routed_experts for plan in FLASH.draft_stages)
    experts = 40 * 384 + stages
    assert more_bytes_as_fp8(FLASH) == experts * 3 * 5120 * 2304 * 15 // 32


def test_the_memory_plan_counts_them() -> None:
    config = replace(PREFILL, num_blocks=10)
    packed = memory_plan(FLASH, replace(config, expert_weights="fp4"), num_expert_ranks=8)
    recast = memory_plan(FLASH, replace(config, expert_weights="fp8"), num_expert_ranks=8)
    assert recast.weight_bytes - packed.weight_bytes == more_bytes_as_fp8(FLASH) // 8
