"""Caches take what weights and the largest step leave of a GPU; GPUs here are two numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.engine.cache.kv_cache import block_bytes, slot_bytes
from deepinfer.engine.config import EngineConfig
from deepinfer.engine.memory.capacity import size_cache
from deepinfer.engine.memory.device_memory import DeviceMemory, bytes_for_blocks, step_bytes
from deepinfer.engine.model.config import ModelConfig
from deepinfer.errors import ConfigError

GIB = 2**30
FLASH = ModelConfig.flash()
H200 = DeviceMemory(total_bytes=139 * GIB, free_bytes=138 * GIB)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 256),
    st.integers(256, 32_768),
    st.sampled_from([0, 5]),
    st.floats(0.5, 1.0),
    st.integers(0, 60),
)
def test_all_parts_stay_within_the_share(
    num_seqs: int, num_tokens: int, drafts: int, share: float, weights: int
) -> None:
    config = EngineConfig(
        max_num_seqs=num_seqs,
        max_num_batched_tokens=max(num_tokens, num_seqs * (1 + drafts)),
        num_speculative_tokens=drafts,
        gpu_memory=share,
        device="cuda",
    )
    memory = H200.less(min(weights, int(share * 70)) * GIB)
    used = memory.total_bytes - memory.free_bytes
    sized = size_cache(FLASH, config, memory)
    assert sized.num_blocks is not None
    blocks = sized.num_blocks * block_bytes(FLASH, config.block_size)
    rings = num_seqs * slot_bytes(FLASH)
    limit = share * memory.total_bytes
    assert used + blocks + rings + step_bytes(FLASH, config) <= limit
    wanted = num_seqs * -(-FLASH.max_position_embeddings // config.block_size)
    is_full = limit - used - blocks - rings - step_bytes(FLASH, config) < block_bytes(FLASH, 64)
    assert sized.num_blocks == wanted or is_full


def test_the_step_of_the_released_model_is_what_its_tensors_are() -> None:
    """Streams, queries and hidden rows of 8,192 tokens, the logits of 256 requests and what they
    have seen, by hand."""
    config = EngineConfig(max_num_seqs=256, max_num_batched_tokens=8192, device="cuda")
    logits = 256 * 129_280 * 4
    streams, queries, hidden = 4 * 5120 * 2, 64 * 512 * 2, 6 * 2 * 2304 * 2
    least = 3 * logits + 8192 * (2 * streams + 2 * queries + hidden)
    assert least < step_bytes(FLASH, config) < 4 * least


def test_more_drafts_leave_less() -> None:
    plain = EngineConfig(max_num_seqs=64, device="cuda")
    drafting = EngineConfig(max_num_seqs=64, device="cuda", num_speculative_tokens=5)
    assert bytes_for_blocks(FLASH, drafting, H200) < bytes_for_blocks(FLASH, plain, H200)


def test_nothing_left_is_an_error_with_all_parts() -> None:
    config = EngineConfig(gpu_memory=0.4, device="cuda")
    with pytest.raises(ConfigError, match=r"gpu_memory=40% is 55.6 GiB.*in use already 61.0.*step"):
        size_cache(FLASH, config, H200.less(60 * GIB))


def test_a_number_of_blocks_or_gib_overrules_it() -> None:
    few = EngineConfig(num_blocks=7, device="cuda")
    assert size_cache(FLASH, few, H200.less(138 * GIB)).num_blocks == 7
    some = EngineConfig(cache_memory_gib=2.0, device="cuda")
    sized = size_cache(FLASH, some, H200.less(138 * GIB))
    assert sized.num_blocks == 2 * GIB // block_bytes(FLASH, 64)


def test_a_cpu_has_no_plan() -> None:
    assert DeviceMemory.of("cpu") is None
    sized = size_cache(FLASH, EngineConfig())
    assert sized.num_blocks == GIB // block_bytes(FLASH, 64)


def test_a_gpu_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 * GIB, 8 * GIB))
    assert DeviceMemory.of("cuda:1") == DeviceMemory(total_bytes=8 * GIB, free_bytes=3 * GIB)


@pytest.mark.parametrize("share", [0.0, 1.2, -1.0, "90%", None])
def test_shares_that_are_none_are_refused(share: object) -> None:
    with pytest.raises(ConfigError, match="gpu_memory"):
        EngineConfig(gpu_memory=share)  # type: ignore[arg-type]
