"""Roofline figures against an independent derivation of per-token costs and step limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.engine.limits.device_profiles import (
    B200,
    DEVICE_PROFILES,
    GB300,
    H200,
    device_profile,
)
from deepinfer.engine.limits.links import NVLINK, RDMA400, link
from deepinfer.engine.limits.roofline import Limit, decode_limit, prefill_limit
from deepinfer.engine.model.config import ModelConfig
from deepinfer.errors import ConfigError

FLASH = ModelConfig.flash()
CONTEXT = 131_072


def test_decode_work_of_one_position() -> None:
    work = decode_limit(FLASH, B200, num_requests=1, context=CONTEXT).work
    assert work.gemm_flops == pytest.approx(32.18e9, rel=1e-3)
    # 38 layers with 128 + 512 keys and two with 128; 131,072 FLOP per key.
    assert work.attention_flops == (38 * 640 + 2 * 128) * 131_072
    # 8,192 FLOP for each of 3 half-length scans, a full one, and four of the candidate pool.
    assert work.index_flops == (3 * CONTEXT // 2 + CONTEXT + 4 * 16_384) * 8_192
    scan = 170 * CONTEXT
    assert work.kv_bytes == scan + 4 * 16_384 * 68 + 38 * 512 * 288 + 40 * 128 * 528
    assert work.stream_bytes == pytest.approx(8.2e6, rel=0.01)
    assert work.link_bytes == 0


def test_attention_cost_stops_growing_with_the_context_but_the_scan_does_not() -> None:
    short = decode_limit(FLASH, B200, num_requests=1, context=2 * CONTEXT).work
    long = decode_limit(FLASH, B200, num_requests=1, context=4 * CONTEXT).work
    assert short.attention_flops == long.attention_flops
    assert long.kv_bytes - short.kv_bytes == 170 * 2 * CONTEXT


def test_prefill_work_of_one_token() -> None:
    work = prefill_limit(FLASH, B200, prompt_len=65_536).work
    assert work.gemm_flops / 65_536 == pytest.approx(15.75e9, rel=0.01)
    assert work.attention_flops / 65_536 == pytest.approx(1.54e9, rel=0.02)
    assert work.index_flops / 65_536 == pytest.approx(0.40e9, rel=0.03)


# device, ranks, requests per rank, overlap ms, serial ms, tokens/s per GPU at the overlap limit:
# five drafts verified, acceptance 0.75, context 131,072.
DECODE_TABLE = [
    (B200, 64, 8, 1.81, 2.00, 14_544),
    (B200, 64, 16, 1.94, 2.32, 27_074),
    (B200, 64, 60, 3.48, 5.26, 56_742),
    (B200, 64, 128, 7.42, 11.2, 56_742),
    (B200, 64, 256, 14.83, 22.4, 56_742),
    (B200, 8, 8, 5.84, 5.97, 4_501),
    (B200, 8, 16, 5.99, 6.25, 8_783),
    (B200, 8, 60, 6.73, 7.69, 29_315),
    (B200, 8, 128, 7.87, 10.25, 53_458),
    (B200, 8, 256, 14.83, 20.5, 56_742),
    (H200, 8, 8, 9.74, 10.1, 2_700),
    (H200, 8, 16, 9.98, 10.7, 5_270),
    (H200, 8, 60, 11.2, 13.8, 17_589),
    (H200, 8, 128, 17.5, 22.9, 24_064),
    (H200, 8, 256, 35.0, 45.8, 24_064),
]


@pytest.mark.parametrize(("device", "ranks", "requests", "overlap", "serial", "rate"), DECODE_TABLE)
def test_decode_limits(device, ranks, requests, overlap, serial, rate) -> None:  # type: ignore[no-untyped-def]
    limit = decode_limit(
        FLASH,
        device,
        num_requests=requests,
        context=CONTEXT,
        expert_parallel_size=ranks,
        num_verified_drafts=5,
    )
    assert limit.num_tokens / requests == pytest.approx(3.288, rel=1e-3)
    assert limit.overlap_s * 1e3 == pytest.approx(overlap, rel=0.04)
    assert limit.serial_s * 1e3 == pytest.approx(serial, rel=0.04)
    assert limit.tokens_per_s == pytest.approx(rate, rel=0.04)


@pytest.mark.parametrize(
    ("requests", "overlap", "serial", "rate"),
    [(8, 16.5, 16.9, 1_592), (60, 18.0, 20.6, 10_950), (256, 35.0, 45.8, 24_064)],
)
def test_decode_limits_with_experts_as_fp8(
    requests: int, overlap: float, serial: float, rate: float
) -> None:
    """An H200 reads 78.4 instead of 45.7 GB, whatever the requests."""
    stored, recast = (
        decode_limit(
            FLASH, H200, num_requests=requests, context=CONTEXT, expert_parallel_size=8,
            num_verified_drafts=5, experts_as_fp8=as_fp8,
        )
        for as_fp8 in (False, True)
    )  # fmt: skip
    assert recast.overlap_s * 1e3 == pytest.approx(overlap, rel=0.04)
    assert recast.serial_s * 1e3 == pytest.approx(serial, rel=0.04)
    assert recast.tokens_per_s == pytest.approx(rate, rel=0.04)
    assert recast.work.weight_bytes == pytest.approx(78.4e9, rel=0.01)
    assert replace(recast.work, weight_bytes=stored.work.weight_bytes) == stored.work


@pytest.mark.parametrize(("tokens", "rate"), [(4_096, 87_100), (65_536, 101_600)])
def test_prefill_limits_of_an_h200(tokens: int, rate: float) -> None:
    """Experts as FP8, read in both halves of a prefill."""

    def limit(as_fp8: bool) -> Limit:
        return prefill_limit(
            FLASH, H200, prompt_len=tokens, expert_parallel_size=8, replay_tokens=140,
            experts_as_fp8=as_fp8,
        )  # fmt: skip

    assert limit(True).tokens_per_s == pytest.approx(rate, rel=0.01)
    assert limit(True).local_s > limit(False).local_s


@pytest.mark.parametrize(("tokens", "overlap", "serial"), [(4_096, 22.2, 27.9), (65_536, 282, 372)])
def test_prefill_limits(tokens: int, overlap: float, serial: float) -> None:
    limit = prefill_limit(FLASH, B200, prompt_len=tokens, expert_parallel_size=4, replay_tokens=140)
    assert limit.overlap_s * 1e3 == pytest.approx(overlap, rel=0.01)
    assert limit.serial_s * 1e3 == pytest.approx(serial, rel=0.01)


@settings(deadline=None)
@given(
    requests=st.integers(1, 512),
    context=st.integers(1, 2**20),
    ranks=st.sampled_from([1, 2, 8, 64, 384]),
    drafts=st.integers(0, 5),
)
def test_limits_are_ordered_and_faster_devices_are_faster(
    requests: int, context: int, ranks: int, drafts: int
) -> None:
    def at(device: object) -> tuple[float, float]:
        limit = decode_limit(
            FLASH,
            device,  # type: ignore[arg-type]
            num_requests=requests,
            context=context,
            expert_parallel_size=ranks,
            num_verified_drafts=drafts,
        )
        return limit.overlap_s, limit.serial_s

    for device in (H200, B200, GB300):
        overlap_s, serial_s = at(device)
        assert 0 < overlap_s <= serial_s * (1 + 1e-9)
    assert at(GB300)[1] <= at(B200)[1] <= at(H200)[1]
    assert at(replace(H200, memory_bytes_per_s=9.6e12))[1] <= at(H200)[1]


def test_more_ranks_read_fewer_expert_weights_and_send_more() -> None:
    def work(ranks: int):  # type: ignore[no-untyped-def]
        return decode_limit(
            FLASH, H200, num_requests=64, context=4096, expert_parallel_size=ranks
        ).work

    eight, sixty_four = work(8), work(64)
    assert eight.weight_bytes > sixty_four.weight_bytes
    assert 0 < eight.link_bytes < sixty_four.link_bytes
    # A position reaches 3.86 other ranks of 8, 5.68 of 64: 5,280 bytes out, 10,240 back, 40 layers.
    per_rank = 64 * 40 * 15_520
    assert eight.link_bytes / per_rank == pytest.approx(3.86, rel=0.01)
    assert sixty_four.link_bytes / per_rank == pytest.approx(5.68, rel=0.01)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_verified_drafts=6"):
        decode_limit(FLASH, H200, num_requests=1, context=1, num_verified_drafts=6)
    with pytest.raises(ConfigError, match="num_requests=0"):
        decode_limit(FLASH, H200, num_requests=0, context=1)
    with pytest.raises(ConfigError, match="replay=0"):
        prefill_limit(FLASH, H200, prompt_len=10, replay_tokens=0)
    with pytest.raises(ConfigError, match="did you mean b200"):
        device_profile("gb200")


def test_profiles_state_their_source() -> None:
    assert set(DEVICE_PROFILES) == {"h200", "b200", "gb300", "ascend950dt"}
    assert all(device.source for device in DEVICE_PROFILES.values())
    assert device_profile("H200") is H200


def test_a_node_receives_a_token_once_for_all_its_ranks() -> None:
    """48 us of wire per position over 400 Gb/s, as an independent derivation has it."""
    limit = decode_limit(
        FLASH, H200, num_requests=60, context=CONTEXT, expert_parallel_size=64, link=RDMA400
    )
    assert limit.link_s / 60 == pytest.approx(48e-6, rel=0.01)
    assert limit.overlap_s == max(limit.local_s, limit.link_s)
    over_ranks = decode_limit(
        FLASH, H200, num_requests=60, context=CONTEXT, expert_parallel_size=64, link=NVLINK
    )
    assert over_ranks.work.link_bytes > limit.work.link_bytes


def test_ranks_fill_whole_nodes() -> None:
    with pytest.raises(ConfigError, match="12 ranks over rdma400: expected a multiple of the 8"):
        decode_limit(FLASH, H200, num_requests=1, context=1, expert_parallel_size=12, link=RDMA400)


def test_an_unknown_link_is_told_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean rdma400"):
        link("rdma40")
