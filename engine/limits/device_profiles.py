"""Peak rates of the devices that plans and benchmarks compare with.

Dense rates as published by the vendors, quoted from secondary sources; none was measured here.
"""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer.errors import ConfigError, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """FLOP/s without sparsity, bytes and bytes/s; the rate of the link is for one direction.

    ``fp4_flops`` is the rate of FP4 x FP4 GEMMs: that of FP8 where FP4 is not native.
    """

    name: str
    fp8_flops: float
    fp4_flops: float
    bf16_flops: float
    memory_bytes: float
    memory_bytes_per_s: float
    link_bytes_per_s: float
    source: str


H200 = DeviceProfile(
    name="h200",
    fp8_flops=1.979e15,
    fp4_flops=1.979e15,
    bf16_flops=0.9895e15,
    memory_bytes=141e9,
    memory_bytes_per_s=4.8e12,
    link_bytes_per_s=450e9,
    source="published by NVIDIA for the H200 SXM, from secondary pages; "
    "NVLink 4, 900 GB/s in both directions together",
)
B200 = DeviceProfile(
    name="b200",
    fp8_flops=4.5e15,
    fp4_flops=9e15,
    bf16_flops=2.25e15,
    memory_bytes=180e9,
    memory_bytes_per_s=8e12,
    link_bytes_per_s=900e9,
    source="published by NVIDIA for a GPU of HGX B200, from secondary pages; "
    "NVLink 5, 1.8 TB/s in both directions together",
)
GB300 = DeviceProfile(
    name="gb300",
    fp8_flops=5e15,
    fp4_flops=15e15,
    bf16_flops=2.5e15,
    memory_bytes=279e9,
    memory_bytes_per_s=8e12,
    link_bytes_per_s=900e9,
    source="published by NVIDIA for a GPU of GB300 NVL72, from secondary pages; "
    "288 GB fitted, 279 GB usable",
)
ASCEND950DT = DeviceProfile(
    name="ascend950dt",
    fp8_flops=1e15,
    fp4_flops=2e15,
    bf16_flops=0.5e15,
    memory_bytes=144e9,
    memory_bytes_per_s=4e12,
    link_bytes_per_s=1e12,
    source="announced by Huawei on 18 September 2025, from secondary pages "
    "(2 TB/s link in both directions together); "
    "the bf16 rate was not announced and is taken as half of FP8",
)

DEVICE_PROFILES = {device.name: device for device in (H200, B200, GB300, ASCEND950DT)}


def device_profile(name: str) -> DeviceProfile:
    """The profile called ``name``, case-insensitive.  Raises: ConfigError naming the known ones."""
    known = DEVICE_PROFILES.get(name.lower())
    if known is None:
        hint = nearest(name.lower(), DEVICE_PROFILES)
        raise ConfigError(
            f"device_profile={name!r}: expected one of {', '.join(DEVICE_PROFILES)}{hint}"
        )
    return known
