"""Where the time of a step goes on a GPU: seconds by family of kernels."""

from __future__ import annotations

import importlib
import pkgutil
from collections import defaultdict
from collections.abc import Callable

import torch
from torch._C._autograd import DeviceType

import deepinfer.kernels

_OTHER = "torch"


def kernel_families() -> dict[str, str]:
    """Every Triton function of the project: its name and the folder of ``kernels/`` it lies in."""
    found = {}
    folder = deepinfer.kernels
    for module in pkgutil.walk_packages(folder.__path__, folder.__name__ + "."):
        family = module.name.removeprefix(folder.__name__ + ".").partition(".")[0]
        if module.ispkg or family == module.name.rpartition(".")[2]:
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            if hasattr(value, "arg_names") and getattr(value, "__module__", "") == module.name:
                found[name] = family
    return found


def kernel_parts(step: Callable[[], object]) -> dict[str, float]:
    """Seconds of GPU work of one call of ``step`` by family; gaps between kernels are not in it."""
    families = kernel_families()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        step()
        torch.cuda.synchronize()
    parts: dict[str, float] = defaultdict(float)
    for event in profile.events() or ():
        if event.device_type == DeviceType.CUDA:
            parts[families.get(event.name, _OTHER)] += event.self_device_time_total / 1e6
    return dict(parts)
