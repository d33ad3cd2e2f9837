"""Roofline limits: the minimum time of a decode step or a prefill on a device.

Divides the work of one rank (``step_work``) by peak rates.  Numbers are per rank and step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from deepinfer.engine.model.config import ModelConfig
from deepinfer.errors import ConfigError

from .device_profiles import DeviceProfile
from .links import Link, device_link
from .step_work import (
    Work,
    attention_work,
    dense_work,
    draft_work,
    global_kv_work,
    head_work,
    scan_work,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """overlap_s   with compute, memory and link fully overlapped
    serial_s    with each computation overlapping only its own reads
    local_s     ``overlap_s`` without the link
    link_s      the link alone
    num_tokens  tokens that the step yields
    """

    work: Work
    num_tokens: float
    local_s: float
    link_s: float
    overlap_s: float
    serial_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.overlap_s

    @property
    def serial_tokens_per_s(self) -> float:
        return self.num_tokens / self.serial_s


def decode_limit(
    config: ModelConfig,
    device: DeviceProfile,
    *,
    num_requests: int,
    context: int,
    expert_parallel_size: int = 1,
    num_verified_drafts: int = 0,
    acceptance: float = 0.75,
    link: Link | None = None,
    experts_as_fp8: bool = False,
) -> Limit:
    """One decode step of ``num_requests`` per rank, each verifying ``num_verified_drafts``.

    ``acceptance`` is the probability that a draft is accepted if those before it were.
    ``link`` carries the exchange; the device's own fabric if None.  ``experts_as_fp8``: FP4 weights
    of experts are stored, and read, as FP8 in twice the bytes.
    """
    link = link or device_link(device)
    _check_positive(num_requests=num_requests, context=context, ranks=expert_parallel_size)
    if num_verified_drafts > (config.dspark_block_size if config.draft_stages else 0):
        raise ConfigError(
            f"num_verified_drafts={num_verified_drafts}: the model drafts at most "
            f"{config.dspark_block_size if config.draft_stages else 0}"
        )
    rows = num_requests * (1 + num_verified_drafts)
    ranks = expert_parallel_size
    receivers = link.num_receivers(ranks)
    dense = partial(
        dense_work, config, ranks=ranks, receivers=receivers, experts_as_fp8=experts_as_fp8
    )
    parts = [dense(plan, rows) for plan in config.layers]
    parts += [
        attention_work(config, plan, num_requests, 1 + num_verified_drafts, context)
        for plan in config.layers
    ]
    parts.append(head_work(config, rows))
    if num_verified_drafts:
        drafts = draft_work(
            config, num_requests, rows, ranks, receivers, experts_as_fp8=experts_as_fp8
        )
        parts.append(drafts)
    work = Work.total(parts)
    return _limit(
        [work], num_requests * accepted_length(num_verified_drafts, acceptance), device, link
    )


def accepted_length(num_verified_drafts: int, acceptance: float) -> float:
    """Expected tokens per request and step: one, plus each draft if all before it are accepted."""
    return float(sum(acceptance**position for position in range(num_verified_drafts + 1)))


def prefill_limit(
    config: ModelConfig,
    device: DeviceProfile,
    *,
    prompt_len: int,
    num_prompts: int = 1,
    expert_parallel_size: int = 1,
    replay_tokens: int | None = None,
    link: Link | None = None,
    experts_as_fp8: bool = False,
) -> Limit:
    """One prefill of whole prompts: the encoder on every token, then the decoder layers on the last
    ``replay_tokens`` of each (one window if None).  ``experts_as_fp8`` as in ``decode_limit``."""
    link = link or device_link(device)
    replay = min(prompt_len, config.sliding_window if replay_tokens is None else replay_tokens)
    ranks = expert_parallel_size
    _check_positive(prompt_len=prompt_len, num_prompts=num_prompts, ranks=ranks, replay=replay)
    receivers = link.num_receivers(ranks)
    rows, split = num_prompts * prompt_len, config.split_layer
    dense = partial(
        dense_work, config, ranks=ranks, receivers=receivers, experts_as_fp8=experts_as_fp8
    )
    encoder = [dense(plan, rows) for plan in config.layers[:split]]
    encoder += [scan_work(config, plan, num_prompts, prompt_len) for plan in config.layers[:split]]
    encoder.append(global_kv_work(config, rows))
    tail = num_prompts * replay
    decoder = [dense(plan, tail) for plan in config.layers[split:]]
    decoder += [
        attention_work(config, plan, num_prompts, replay, prompt_len)
        for plan in config.layers[split:]
    ]
    decoder.append(head_work(config, num_prompts))
    # The decoder can only start when the encoder is done, so their limits add up.
    return _limit([Work.total(encoder), Work.total(decoder)], rows, device, link)


def _check_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ConfigError(f"{name}={value}: expected 1 or more")


def _limit(passes: list[Work], num_tokens: float, device: DeviceProfile, link: Link) -> Limit:
    """The sum of passes, each of which waits for the one before."""
    times = [_times(work, device, link) for work in passes]
    local_s, link_s, overlap_s, serial_s = (sum(column) for column in zip(*times, strict=True))
    return Limit(
        work=Work.total(passes),
        num_tokens=num_tokens,
        local_s=local_s,
        link_s=link_s,
        overlap_s=overlap_s,
        serial_s=serial_s,
    )


def _times(work: Work, device: DeviceProfile, link: Link) -> tuple[float, float, float, float]:
    """(local, link, overlapped, serial) seconds of one pass; see ``Limit``."""
    gemm_s = work.gemm_flops / device.fp8_flops
    attention_s = work.attention_flops / device.bf16_flops + work.index_flops / device.fp4_flops
    weights_s, kv_s, streams_s = (
        amount / device.memory_bytes_per_s
        for amount in (work.weight_bytes, work.kv_bytes, work.stream_bytes)
    )
    link_s = work.link_bytes / link.bytes_per_s
    local_s = max(gemm_s + attention_s, weights_s + kv_s + streams_s)
    serial_s = max(gemm_s, weights_s) + max(attention_s, kv_s) + streams_s + link_s
    return local_s, link_s, max(local_s, link_s), serial_s
