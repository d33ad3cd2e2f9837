"""Devices and threads of this machine, and checks of arguments that depend on them."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from deepinfer.engine.checks import is_whole

from .ascend import load_torch_npu
from .errors import ConfigError

# Below this width a layer's matmuls are too small for several threads.  Measured on 2 cores with
# the embedded model: a second thread gains a quarter with 64 requests and nothing with one, and if
# other processes use the cores, waiting for it makes steps tens of times slower.
_SHARED_FROM_HIDDEN_SIZE = 1024
_MOST_THREADS = 1024
_DEVICE = re.compile("cpu|(cuda|npu)(:(0|[1-9][0-9]*))?")
_TESTED = _HOPPER = (9, 0)


def resolve_device(device: str) -> str:
    """A device by name; ``auto`` is the first GPU if it is of a kind that the engine is tested on
    (Hopper: H100, H200), else the CPU.  An Ascend NPU is used only on request.

    Raises: ConfigError if it does not exist.
    """
    if device == "auto":
        is_tested = torch.cuda.is_available() and torch.cuda.get_device_capability(0) == _TESTED
        return "cuda" if is_tested else "cpu"
    kind, _, number = str(device).partition(":")
    if not _DEVICE.fullmatch(str(device)):
        raise ConfigError(f"device={device!r}: expected auto, cpu, cuda, cuda:N, npu or npu:N")
    count = device_count(kind)
    if int(number or 0) >= count:
        seen = f"{count} such devices, numbered from 0" if count else "no such device"
        raise ConfigError(
            f"device={device!r}: torch sees {seen}; deepinfer doctor shows what this machine has"
        )
    return device


def is_hopper(device: str) -> bool:
    """Whether it is an NVIDIA SM90 (H100, H200)."""
    return device.startswith("cuda") and torch.cuda.get_device_capability(device) == _HOPPER


def device_count(kind: str) -> int:
    """Number of devices of a kind (cpu, cuda, npu).  Raises: as ``load_torch_npu``."""
    if kind == "npu":
        load_torch_npu()
    return 1 if kind == "cpu" else int(torch.get_device_module(kind).device_count())


def check_flash_mla(enable: bool, device: str) -> None:
    """Refuse to disable fused attention on an accelerator, which has no other.  Raises:
    ConfigError."""
    if not enable and not device.startswith("cpu"):
        raise ConfigError(
            f"enable_flash_mla=False on {device}: only fused attention is available; leave it "
            "on, or use device='cpu' for the reference operations"
        )


def set_cpu_threads(num_threads: int | None, hidden_size: int) -> int:
    """Set how many threads torch uses in this process, and return how many it used before.

    ``None`` keeps torch's number, except that a model with small layers gets one.
    """
    before = torch.get_num_threads()
    if num_threads is None:
        num_threads = before if hidden_size >= _SHARED_FROM_HIDDEN_SIZE else 1
    torch.set_num_threads(num_threads)
    return before


def check_kernels(store: str | Path | None, device: str) -> None:
    """Refuse compiled kernels on a CPU.  Raises: ConfigError."""
    if store is not None and device.startswith("cpu"):
        raise ConfigError(f"kernels={store}: compiled kernels are for GPUs, this run is on cpu")


def check_num_threads(num_threads: int | None) -> None:
    """Raises: ConfigError unless it is 1 to 1,024."""
    if num_threads is not None and not is_whole(num_threads, 1, _MOST_THREADS):
        raise ConfigError(
            f"num_threads={num_threads!r}: expected a whole number, 1 to {_MOST_THREADS}"
        )


def check_num_ranks(num_ranks: int, device: str) -> None:
    """Each rank needs a GPU or NPU of its own; on the CPU they share it.

    Raises: ConfigError if this machine has too few.
    """
    kind = device.partition(":")[0]
    if num_ranks == 1 or kind == "cpu":
        return
    name, count = {"cuda": "GPU", "npu": "NPU"}[kind], device_count(kind)
    if num_ranks > count:
        raise ConfigError(
            f"the parallel sizes need {num_ranks} {name}s, and this machine has {count}; use "
            "smaller sizes, or device='cpu'"
        )
    if device != kind:
        raise ConfigError(f"device={device!r} is one {name}; for {num_ranks} ranks say {kind!r}")
