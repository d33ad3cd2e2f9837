"""With a bundle nothing is compiled: every launch finds its machine code there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_LAUNCHES = """
import json, sys
from pathlib import Path
import torch
from triton.compiler import CompiledKernel
from deepinfer.kernels.bundle import Identity, find_bundle
from deepinfer.kernels.bundle_builder import build_bundle
from deepinfer.kernels.rehearsal import PretendedDevice, pretend, rehearse

store, device = Path(sys.argv[1]), PretendedDevice((9, 0))
identity = Identity(target="sm90a", model="a", model_name="tiny", sources="b", compilers={})

def launch_some(width):
    from deepinfer.kernels.moe import swiglu
    from deepinfer.kernels.norm import rms_norm
    x = torch.zeros(3, width, dtype=torch.bfloat16)
    rms_norm(x, x[0], 1e-6)
    swiglu(x, 10.0)
"""

_BUILD = (
    _LAUNCHES
    + """
from deepinfer.kernels.compile_pool import compile_all
from deepinfer.kernels.compile_task import task_of

with rehearse(device) as launches:
    launch_some(256)
tasks = [task_of(launch) | {"target": ["cuda", 90, 32]} for launch in launches.values()]
results = compile_all(tasks, jobs=2, environment={})
bundle = build_bundle(store, identity, lambda: (tasks, results))
print(json.dumps([kernel["kernel"] for kernel in bundle.kernels]))
"""
)

# The launch itself needs a driver; everything before it is as in a run.
_USE = (
    _LAUNCHES
    + """
import dataclasses, os
from deepinfer.errors import ConfigError
from deepinfer.kernels.bundle_loader import use_bundle

def load(kernel):
    kernel._run = lambda *arguments: ran.append(kernel.name)

CompiledKernel._init_handles = load
bundle, ran = find_bundle(store, identity), []
counter = use_bundle(bundle)
with pretend(device):
    launch_some(256)
    known, known_ran = list(counter.compiled), list(ran)
    launch_some(512)

def refusal(kernels):
    try:
        use_bundle(dataclasses.replace(bundle, kernels=kernels))
    except ConfigError as error:
        return str(error)

foreign = refusal([bundle.kernels[0], bundle.kernels[1] | {"key": "of another build"}])
os.environ["DISABLE_LLVM_OPT"] = "1"
print(json.dumps({
    "known": known, "ran": known_ran, "unknown": counter.compiled,
    "foreign": foreign, "changed": refusal(bundle.kernels),
}))
"""
)


def test_a_warm_start_compiles_nothing(in_own_process: Callable[..., Any], tmp_path: Path) -> None:
    store, caches = str(tmp_path / "store"), tmp_path / "triton"
    built = in_own_process(_BUILD, store)
    assert sorted(built) == ["row_kernel", "swiglu_kernel"]
    caches.rename(tmp_path / "elsewhere")
    found = in_own_process(_USE, store)
    assert found["ran"] == built
    assert found["known"] == []
    # The counter does count: another width is another kernel.
    assert sorted(found["unknown"]) == sorted(built)
    assert "it is another build" in found["foreign"]
    assert "were compiled without DISABLE_LLVM_OPT" in found["changed"]


# As ``compile_worker``, but for the work.
_KEY_WORKER = """
from deepinfer.kernels.compile_serve import serve
from deepinfer.kernels.compile_key import lookup_key
from deepinfer.kernels.compile_worker import forget_settings

forget_settings()
serve(lambda task: {"key": lookup_key(task)})
"""

# Launches are noted as in a build and go on as in a run, up to Triton's question to its cache,
# which is answered with yes.
_KEYS = """
import json, os, sys, warnings
from contextlib import contextmanager
import triton
from triton import knobs
from triton.runtime.cache import FileCacheManager
from triton.runtime.jit import JITFunction
from deepinfer import kernel_build
from deepinfer.engine import kernel_plan
from deepinfer.kernels.compile_key import settle
from deepinfer.kernels.compile_pool import compile_all
from deepinfer.kernels.rehearsal import rehearse

looked_for = []

class Yes(FileCacheManager):
    def get_group(self, filename):
        looked_for.append(self.key)
        return {filename: ""}

class Kernel:
    function = packed_metadata = None
    def __init__(self, *made_from): pass
    def launch_metadata(self, *arguments): pass
    def run(self, *arguments): pass

go_on = JITFunction._do_compile

@contextmanager
def rehearse_and_run(device):
    with rehearse(device) as launches:
        note = JITFunction._do_compile

        def note_and_go_on(kernel, *launch):
            note(kernel, *launch)
            settle(kernel)  # as a bundle is opened
            return go_on(kernel, *launch)

        JITFunction._do_compile = note_and_go_on
        yield launches

knobs.cache.manager_class = Yes
triton.compiler.compiler.CompiledKernel = Kernel
kernel_plan.rehearse = rehearse_and_run
warnings.simplefilter("error")  # Triton warns where a launch leaves a default to it
compiler = kernel_build._nvidia(sys.argv[1])
tasks = kernel_build._tasks(kernel_build.model_config("tiny"), compiler)
os.environ["DISABLE_LLVM_OPT"] = "1"
answers = compile_all(tasks[::-1], jobs=1, environment=compiler.environment, worker="key_worker")
print(json.dumps({"looked for": looked_for, "built": [answer["key"] for answer in answers]}))
"""


@pytest.mark.parametrize("target", ["sm90a", pytest.param("sm100a", marks=pytest.mark.slow)])
def test_runs_look_for_what_is_built(
    target: str,
    in_own_process: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every key of a run is one of a build, whatever was set and in whatever order that was made.

    There was a build that set a variable which runs did not have: nothing of it was ever found.
    And Triton 3.6 knows a kernel by another digest if another kernel came before it.
    """
    (tmp_path / "key_worker.py").write_text(_KEY_WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    keys = in_own_process(_KEYS, target)
    assert len(keys["built"]) > 40
    assert sorted(keys["looked for"]) == sorted(keys["built"])


@pytest.mark.slow
def test_the_whole_model_starts_warm(in_own_process: Callable[..., Any], tmp_path: Path) -> None:
    """Every launch of the embedded model, prompts, drafts and sampling, finds its code."""
    build = "from deepinfer_cli.main import main; main(sys.argv[1:])"
    in_own_process(
        f"import sys, json; {build}", "build", "--config", "tiny", "--arch", "sm90a", "--json",
        "-q", "-o", str(tmp_path / "store"),
    )  # fmt: skip
    code = """
import json, sys
from pathlib import Path
from contextlib import contextmanager
from triton.compiler import CompiledKernel
from deepinfer.engine import kernel_plan
from deepinfer.kernel_build import model_config
from deepinfer.kernels.bundle import find_bundle, nvidia_identity
from deepinfer.kernels.bundle_loader import use_bundle
from deepinfer.kernels.rehearsal import PretendedDevice, pretend

config = model_config("tiny")
bundle = find_bundle(Path(sys.argv[1]), nvidia_identity(config.to_dict(), "tiny", "sm90a"))
ran = []
def load(kernel):
    kernel._run = lambda *arguments: ran.append(kernel.name)

CompiledKernel._init_handles = load
counter = use_bundle(bundle)

@contextmanager
def for_real(device):
    with pretend(device):
        yield {}

kernel_plan.rehearse = for_real
kernel_plan.model_launches(config, PretendedDevice((9, 0)))
print(json.dumps({"compiled": counter.compiled, "ran": len(ran)}))
"""
    found = in_own_process(code, str(tmp_path / "store"))
    assert found["compiled"] == []
    assert found["ran"] > 1000
