"""Compiles the kernels of a model ahead of time, on any machine."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

from deepinfer.engine.model.config import ModelConfig
from deepinfer.errors import CheckpointError, EngineError, nearest
from deepinfer.kernels.ascend.environment import (
    PINS,
    ascend_environment,
    code_generator,
    worker_environment,
)
from deepinfer.kernels.bundle import (
    Bundle,
    Identity,
    Json,
    ascend_identity,
    cache_folder,
    nvidia_identity,
)
from deepinfer.kernels.bundle_builder import build_bundle
from deepinfer.kernels.targets import NVIDIA_TARGETS
from deepinfer.recipes.embedded import embedded_model_path

Progress = Callable[[str, int, int], None]
"""What is being done, how much of it is done, and of how much (0: not known yet)."""


@dataclass(frozen=True, slots=True)
class Built:
    """A bundle, and whether it existed already."""

    bundle: Bundle
    was_there: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compiler:
    """How to compile: worker module, environment of its process, and additions to each task."""

    worker: str
    environment: Mapping[str, str]
    capability: tuple[int, int] | None
    more: Json


def num_cores() -> int:
    """Cores that this process may use; more compilers need memory and save no time."""
    return len(os.sched_getaffinity(0))


def model_config(name: str) -> ModelConfig:
    """``full``, ``tiny`` (the model in the package), or the folder or file of a config.json.

    Raises: CheckpointError if there is none.
    """
    if name == "full":
        return ModelConfig.flash()
    if name == "tiny":
        return ModelConfig.from_file(embedded_model_path())
    if not Path(name).exists():
        raise CheckpointError(
            f"--config {name!r}: expected full, tiny, or a checkpoint folder or its config.json"
            f"{nearest(name, ('full', 'tiny'))}"
        )
    return ModelConfig.from_file(name)


def build_kernels(
    config_name: str,
    target: str,
    store: Path,
    *,
    stage: str = "binary",
    jobs: int | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Built:
    """The bundle of a model for ``target`` (of ``targets.py``); needs no accelerator.

    ``stage``: the last stage for Ascend kernels; the bundle says which ones did not get that far.
    Raises: ConfigError about the config; EngineError if the tools are not available, or a kernel
    for NVIDIA does not compile.
    """
    config = model_config(config_name)
    is_nvidia = target in NVIDIA_TARGETS
    identity = (
        nvidia_identity(config.to_dict(), config_name, target)
        if is_nvidia
        else ascend_identity(config.to_dict(), config_name, stage, _ascend_versions())
    )
    was_there = (store / identity.name).is_dir()

    def compile() -> tuple[list[Json], list[Json]]:
        compiler = _nvidia(target) if is_nvidia else _ascend(stage, progress)
        progress("finding the kernels", 0, 0)
        tasks = _tasks(config, compiler)
        return tasks, _compile(tasks, identity, compiler, jobs or num_cores(), progress)

    bundle = build_bundle(
        store,
        identity,
        compile,
        on_wait=lambda: progress("waiting for another build of the same kernels", 0, 0),
    )
    return Built(bundle, was_there)


def _nvidia(target: str) -> _Compiler:
    major, minor = NVIDIA_TARGETS[target]
    return _Compiler(
        worker="deepinfer.kernels.compile_worker",
        environment={"TRITON_CACHE_DIR": str(_objects())},
        capability=(major, minor),
        more={"target": ["cuda", 10 * major + minor, 32]},
    )


def _ascend(stage: str, progress: Progress) -> _Compiler:
    folder = ascend_environment(lambda: progress("installing the tools for Ascend", 0, 0))
    return _Compiler(
        worker="deepinfer.kernels.ascend.worker",
        environment=worker_environment(folder),
        capability=None,
        more={"stage": stage, "objects": str(_objects() / "ascend")},
    )


def _ascend_versions() -> dict[str, str]:
    found = code_generator()
    return {**PINS, "cann": "none" if found is None else found}


def _objects() -> Path:
    """The folder of compiled objects, from which an interrupted build continues."""
    return cache_folder() / "objects"


def _tasks(config: ModelConfig, compiler: _Compiler) -> list[Json]:
    # Imported here: torch and Triton take seconds to load.
    from deepinfer.engine.kernel_plan import model_launches
    from deepinfer.kernels.compile_task import task_of
    from deepinfer.kernels.rehearsal import PretendedDevice

    launches = model_launches(config, PretendedDevice(compiler.capability))
    return [task_of(launch) | compiler.more for launch in launches]


def _compile(
    tasks: list[Json], identity: Identity, compiler: _Compiler, jobs: int, progress: Progress
) -> list[Json]:
    from deepinfer.kernels.compile_pool import compile_all

    done = 0

    def count(task: Json, result: Json) -> None:
        nonlocal done
        done += 1
        progress(f"{identity.target} {task['kernel'].strip('_')}", done, len(tasks))

    results = compile_all(
        tasks,
        jobs=jobs,
        environment=compiler.environment,
        worker=compiler.worker,
        on_result=count,
    )
    if any(result.get("errno") == errno.ENOSPC for result in results):
        raise EngineError(
            f"{_objects()} or {gettempdir()}: the disk is full; free some space, or set "
            "XDG_CACHE_HOME and TMPDIR to folders elsewhere; no bundle was written"
        )
    return results
