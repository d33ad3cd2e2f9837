"""Times of steps on a device."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

_WARM_STEPS = 3


def repeat_s(
    call: Callable[[], object], count: int, device: torch.device, num_warm: int = _WARM_STEPS
) -> tuple[float, ...]:
    """Wall times of ``count`` calls, each from an idle device to an idle device.

    The first call of a step on a GPU compiles, the second captures its graph: three warm it up.
    """
    times = []
    with torch.inference_mode():
        for number in range(num_warm + count):
            wait(device)
            started = time.perf_counter()
            call()
            wait(device)
            if number >= num_warm:
                times.append(time.perf_counter() - started)
    return tuple(times)


def wait(device: torch.device) -> None:
    """Until the device has nothing left to do."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)
