"""An Ascend NPU is a device like others once torch_npu is there; here a stand-in takes its place.

What a real one computes is not tested here: no such device was at hand.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deepinfer.errors import ConfigError
from deepinfer.machine import resolve_device

_ROOT = Path(__file__).parents[2]
# As torch_npu does on import: torch's spare kind of device gets a name and a module.
_TORCH_NPU = """
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
import torch

npu = ModuleType("torch.npu")
npu.device_count = lambda: 2
npu.mem_get_info = lambda device: (60, 100)
npu.get_device_name = lambda device: "Ascend950"
torch.utils.rename_privateuse1_backend("npu")
torch._register_device_module("npu", npu)
"""
_TRITON_ASCEND = """
backend = ModuleType("triton.backends.ascend")
backend.__spec__ = ModuleSpec("triton.backends.ascend", None)
sys.modules["triton.backends.ascend"] = backend
"""
_QUESTIONS = """
import json, sys
import torch.distributed
from pathlib import Path
from deepinfer.arguments import EngineArguments
from deepinfer.compiled_kernels import load_kernels
from deepinfer.engine.config import EngineConfig
from deepinfer.engine.memory.device_memory import DeviceMemory
from deepinfer.engine.parallel import groups
from deepinfer.engine.speculation.measure_steps import device_name
from deepinfer.errors import ConfigError
from deepinfer.machine import check_num_ranks, resolve_device

def said(function, *arguments, **named):
    try:
        return function(*arguments, **named)
    except ConfigError as error:
        return f"refused: {error}"

found = {
    "device": said(resolve_device, "npu:1"),
    "too many": said(resolve_device, "npu:2"),
}
if not found["device"].startswith("refused"):
    def group(backend, **more):
        found["backend"] = backend

    groups.dist.init_process_group, groups.meet = group, lambda *a, **b: None
    groups.join(torch.distributed.HashStore(), 0, 2, facts={}, device="npu:1")
    memory = DeviceMemory.of("npu:0")
    found |= {
        "two ranks": said(check_num_ranks, 2, "npu"),
        "four ranks": said(check_num_ranks, 4, "npu"),
        "invariant": said(EngineConfig, device="npu", batch_invariant=True),
        "by variable": said(EngineConfig(device="npu").with_environment,
                            {"DEEPINFER_BATCH_INVARIANT": "1"}),
        "plain": said(EngineArguments, device="npu", enable_flash_mla=False),
        "cluster": said(EngineArguments, device="npu", cluster="auto"),
        "bundle": said(load_kernels, Path("kernels"), None, "tiny", "npu"),
        "memory": [memory.total_bytes, memory.free_bytes],
        "name": device_name("npu:1"),
    }
print(json.dumps(found))
"""


def _ask(folder: Path, torch_npu: str) -> Any:
    (folder / "torch_npu.py").write_text(torch_npu)
    path = os.pathsep.join(filter(None, [str(folder), str(_ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-P", "-c", _QUESTIONS],
        env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_an_npu_has_and_lacks(tmp_path: Path) -> None:
    found = _ask(tmp_path, _TORCH_NPU + _TRITON_ASCEND)
    assert found["device"] == "npu:1"
    assert found["name"] == "Ascend950"
    assert found["memory"] == [100, 60]
    assert found["backend"] == "cpu:gloo,npu:hccl"
    assert found["two ranks"] is None
    for question, words in {
        "too many": "torch sees 2 such devices, numbered from 0; deepinfer doctor",
        "four ranks": "need 4 NPUs, and this machine has 2",
        "invariant": "batch_invariant=True on npu: not supported on Ascend",
        "by variable": "unset DEEPINFER_BATCH_INVARIANT",
        "plain": "enable_flash_mla=False on npu",
        "cluster": "replicas take GPUs or CPUs, not NPUs",
        "bundle": "hold what was lowered, which no run loads",
    }.items():
        assert found[question].startswith("refused: ") and words in found[question]


@pytest.mark.slow
def test_another_triton_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    assert "needs triton-ascend" in _ask(tmp_path, _TORCH_NPU)["device"]


def test_a_torch_npu_that_does_not_load_is_named(tmp_path: Path) -> None:
    broken = 'raise ImportError("libhccl.so: cannot open shared object file")'
    refusal = _ask(tmp_path, broken)["device"]
    assert "does not load (libhccl.so" in refusal and "set_env.sh" in refusal


@pytest.mark.skipif("torch_npu" in sys.modules, reason="torch_npu is there")
def test_without_torch_npu_there_is_no_npu() -> None:
    with pytest.raises(ConfigError, match="No module named 'torch_npu'"):
        resolve_device("npu")
