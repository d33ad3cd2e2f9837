"""What this machine has: the device to run on, and whether parallel sizes can be honoured."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch

from .errors import ConfigError


def resolve_device(device: str) -> str:
    """``auto`` is the first NVIDIA GPU, or the CPU.  Raises: ConfigError if it does not exist."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise ConfigError(f"device={device!r}: expected auto, cpu, cuda or cuda:N")
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if int(number or 0) >= count:
        raise ConfigError(f"device={device!r}: this machine has {count} of that kind")
    return device


def check_parallel_sizes(sizes: Mapping[str, int]) -> None:
    """Refuse parallel sizes that this machine or this version cannot honour.

    Raises: ConfigError with the reason.
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ConfigError(f"{name}={size!r}: expected a whole number of at least 1")
    num_ranks, num_gpus = prod(sizes.values()), torch.cuda.device_count()
    if num_ranks == 1:
        return
    asked = ", ".join(f"{name}={size}" for name, size in sizes.items() if size > 1)
    if num_ranks > num_gpus:
        raise ConfigError(
            f"{asked} needs {num_ranks} GPUs, and this machine has {num_gpus}; use sizes of 1"
        )
    raise ConfigError(f"{asked}: this version runs on one GPU only; use sizes of 1")
