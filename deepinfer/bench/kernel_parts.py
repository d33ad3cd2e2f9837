"""Splits the time of a step on a GPU by kernel family."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable

import torch
from torch._C._autograd import DeviceType

_KERNELS = "deepinfer.kernels."
_OTHER = "torch"
# Makes torch's profiler detach CUPTI after a profile: otherwise graph launches stay up to 10 %
# slower.
_LEAVE_CUPTI = "TEARDOWN_CUPTI"


def kernel_families() -> dict[str, str]:
    """The folder of ``kernels/`` for the name of every Triton function imported so far."""
    found = {}
    for module_name, module in list(sys.modules.items()):
        if not module_name.startswith(_KERNELS) or module is None:
            continue
        family, _, file = module_name.removeprefix(_KERNELS).partition(".")
        for name, value in list(vars(module).items()):
            if file and hasattr(value, "arg_names") and value.__module__ == module_name:
                found[name] = family
    return found


def kernel_parts(step: Callable[[], object], device: torch.device) -> dict[str, float]:
    """Seconds of GPU work of one call of ``step``, by family, without gaps between kernels.
    Empty if the device is not a GPU."""
    if device.type != "cuda":
        return {}
    families = kernel_families()
    os.environ.setdefault(_LEAVE_CUPTI, "1")
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile, torch.inference_mode():
        step()
        torch.cuda.synchronize()
    parts: dict[str, float] = defaultdict(float)
    for event in profile.events() or ():
        if event.device_type == DeviceType.CUDA:
            parts[families.get(event.name, _OTHER)] += event.self_device_time_total / 1e6
    return dict(parts)
