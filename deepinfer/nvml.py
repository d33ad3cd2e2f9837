"""Information about this machine's GPUs from the NVIDIA driver's management library (NVML).

``libnvidia-ml`` is part of the driver, so no package is needed; without a driver there is none.
Source: NVML API reference (nvmlInit_v2, nvmlDeviceGetTotalEnergyConsumption, ...).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection, Mapping
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_VERSION_BYTES = 80


class Nvml:
    """``gpus``: handles of the GPUs visible to this process (CUDA_VISIBLE_DEVICES), in that
    order."""

    def __init__(self, library: Any = None, environment: Mapping[str, str] | None = None) -> None:
        self._library = _loaded() if library is None else library
        visible = (os.environ if environment is None else environment).get("CUDA_VISIBLE_DEVICES")
        self.gpus: list[ctypes.c_void_p] = []
        if self._library is not None and self._library.nvmlInit_v2() == 0:
            self.gpus = self._find(visible)

    def joules(self) -> list[float] | None:
        """Energy of each GPU since the driver was loaded; None if it has no counter."""
        found = []
        for gpu in self.gpus:
            used = ctypes.c_ulonglong()
            if self._library.nvmlDeviceGetTotalEnergyConsumption(gpu, ctypes.byref(used)) != 0:
                return None
            found.append(used.value / 1e3)
        return found or None

    def driver(self) -> str | None:
        """The driver's version."""
        text = ctypes.create_string_buffer(_VERSION_BYTES)
        if not self.gpus or self._library.nvmlSystemGetDriverVersion(text, _VERSION_BYTES) != 0:
            return None
        return text.value.decode()

    def _find(self, visible: str | None) -> list[ctypes.c_void_p]:
        count = ctypes.c_uint()
        if self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return []
        wanted = list(map(str, range(count.value))) if visible is None else visible.split(",")
        found = []
        for name in wanted:
            gpu = ctypes.c_void_p()
            if name.strip().isdecimal():
                number = ctypes.c_uint(int(name))
                code = self._library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(gpu))
            else:
                uuid = name.strip().encode()
                code = self._library.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(gpu))
            if code != 0:
                break  # as in CUDA: names after one that does not exist are ignored
            found.append(gpu)
        return found


class GpuEnergy:
    """Joules since its creation, of all visible GPUs or of those with these ``numbers``."""

    def __init__(self, nvml: Nvml | None = None, numbers: Collection[int] | None = None) -> None:
        self._nvml = Nvml() if nvml is None else nvml
        self._numbers = numbers
        self._first = self._nvml.joules()

    def joules(self) -> float | None:
        """None if there are no counters."""
        now = self._nvml.joules()
        if now is None or self._first is None:
            return None
        numbers = range(len(now)) if self._numbers is None else self._numbers
        return sum(now[number] - self._first[number] for number in numbers)


def _loaded() -> Any:
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
