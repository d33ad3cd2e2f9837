"""The ``StepProfile`` of a device that runs steps as graphs of padded sizes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from deepinfer.engine.execution.step_sizes import StepSize

from .step_profile import StepProfile

_LEAST_S = 1e-6


def graph_profile(times: Mapping[StepSize, float], device: str, block_size: int) -> StepProfile:
    """The profile from the results of ``time_sizes``, whose depths must include the whole block.

    A batch size is used if all three kinds of steps were timed for it; there is at least one.
    The host's time for a step with drafts is assumed to be proportional to the drafts.
    """
    host_s = sum(seconds / step.size for step, seconds in times.items() if step.kind == "host")
    plain = {step.size: seconds for step, seconds in times.items() if step.kind == "plain"}
    verify = {step.size: seconds for step, seconds in times.items() if step.kind == "verify"}
    draft = {step[1:]: seconds for step, seconds in times.items() if step.kind == "draft"}
    sizes = tuple(sorted(verify))
    size_s = tuple(np.maximum.accumulate([verify[size] for size in sizes]).tolist())
    counts = [n for n in sorted(plain) if (n, block_size) in draft and n in verify]
    blocks = np.interp([n * (1 + block_size) for n in counts], sizes, size_s)
    return StepProfile(
        device=device,
        block_size=block_size,
        num_requests=tuple(counts),
        draft_s=tuple(draft[n, block_size] + n * host_s for n in counts),
        first_s=tuple(draft.get((n, 1), draft[n, block_size]) + n * host_s for n in counts),
        seed_s=tuple(max(verify[n] - plain[n], _LEAST_S) for n in counts),
        single_s=tuple(plain[n] for n in counts),
        block_s=tuple(blocks.tolist()),
        sizes=sizes,
        size_s=size_s,
    )
