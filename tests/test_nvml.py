"""Energy of GPUs through a stand-in for the driver's library, with its calling conventions."""

from __future__ import annotations

import ctypes

import pytest

from deepinfer.nvml import GpuEnergy, Nvml

UUIDS = {b"GPU-aaaa": 0, b"GPU-bbbb": 1}
FAILED = 999


class Driver:
    """Two GPUs with counters in millijoules."""

    def __init__(self, *, counts_energy: bool = True) -> None:
        self.millijoules = [5_000, 70_000]
        self.counts_energy = counts_energy

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetCount_v2(self, count) -> int:
        count._obj.value = len(self.millijoules)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, gpu) -> int:
        if index.value >= len(self.millijoules):
            return FAILED
        gpu._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetHandleByUUID(self, name: bytes, gpu) -> int:
        if name not in UUIDS:
            return FAILED
        gpu._obj.value = UUIDS[name] + 1
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu, used) -> int:
        if not self.counts_energy:
            return FAILED
        used._obj.value = self.millijoules[gpu.value - 1]
        return 0

    def nvmlSystemGetDriverVersion(self, text: ctypes.Array, size: int) -> int:
        text.value = b"580.1"[: size - 1]
        return 0


@pytest.mark.parametrize(
    "visible, joules",
    [
        (None, [5.0, 70.0]),
        ("1", [70.0]),
        ("1,0", [70.0, 5.0]),
        ("GPU-bbbb", [70.0]),
        ("0,7,1", [5.0]),
        ("", None),
    ],
)
def test_the_gpus_of_this_process_count(visible: str | None, joules: list[float] | None) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert Nvml(Driver(), environment).joules() == joules


def test_energy_is_what_was_used_since() -> None:
    driver = Driver()
    nvml = Nvml(driver, {})
    both, first = GpuEnergy(nvml), GpuEnergy(nvml, [0])
    driver.millijoules = [6_500, 70_250]
    assert both.joules() == pytest.approx(1.75) and first.joules() == pytest.approx(1.5)
    assert nvml.driver() == "580.1"


def test_without_a_counter_nothing_is_known() -> None:
    assert GpuEnergy(Nvml(Driver(counts_energy=False), {})).joules() is None


def test_without_a_driver_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr("deepinfer.nvml.ctypes.CDLL", missing)
    nvml = Nvml()
    assert nvml.gpus == [] and nvml.driver() is None and GpuEnergy(nvml).joules() is None
