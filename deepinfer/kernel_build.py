"""Compiles the kernels of a model ahead of time, on any machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepinfer.engine.model.config import ModelConfig
from deepinfer.kernels.bundle import Bundle, Identity, Json, cache_folder, nvidia_identity
from deepinfer.kernels.bundle_builder import build_bundle
from deepinfer.kernels.targets import NVIDIA_TARGETS
from deepinfer.recipes.embedded import embedded_model_path

Progress = Callable[[str, int, int], None]
"""What is being done, how much of it is done, and of how much (0: not known yet)."""


@dataclass(frozen=True, slots=True)
class Built:
    """A bundle, and whether it was there already."""

    bundle: Bundle
    was_there: bool


def model_config(name: str) -> ModelConfig:
    """``full``, ``tiny`` (the model in the package), or the folder or file of a config.json.

    Raises: CheckpointError if there is none.
    """
    if name == "full":
        return ModelConfig.flash()
    if name == "tiny":
        return ModelConfig.from_file(embedded_model_path())
    return ModelConfig.from_file(name)


def build_nvidia(
    config_name: str,
    target: str,
    store: Path,
    *,
    jobs: int | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Built:
    """The bundle of a model for ``target`` (a key of ``NVIDIA_TARGETS``); needs no GPU.

    Raises: ConfigError about the config; EngineError if a kernel does not compile.
    """
    config = model_config(config_name)
    identity = nvidia_identity(config.to_dict(), config_name, target)
    was_there = (store / identity.name).is_dir()

    def compile() -> tuple[list[Json], list[Json]]:
        progress("finding the kernels", 0, 0)
        tasks = _nvidia_tasks(config, target)
        return tasks, _compile(tasks, identity, jobs or os.cpu_count() or 1, progress)

    bundle = build_bundle(
        store,
        identity,
        compile,
        on_wait=lambda: progress("waiting for another build of the same kernels", 0, 0),
    )
    return Built(bundle, was_there)


def _nvidia_tasks(config: ModelConfig, target: str) -> list[Json]:
    # Here, because torch and Triton take seconds to load.
    from deepinfer.engine.kernel_plan import model_launches
    from deepinfer.kernels.compile_task import task_of
    from deepinfer.kernels.rehearsal import PretendedDevice

    device = PretendedDevice(NVIDIA_TARGETS[target])
    made_for = [device.target.backend, device.target.arch, device.target.warp_size]
    launches = model_launches(config, device)
    return [task_of(launch) | {"target": made_for} for launch in launches]


def _compile(tasks: list[Json], identity: Identity, jobs: int, progress: Progress) -> list[Json]:
    from deepinfer.kernels.compile_pool import compile_all

    done = 0

    def count(task: Json, result: Json) -> None:
        nonlocal done
        done += 1
        progress(f"{identity.target} {task['kernel'].strip('_')}", done, len(tasks))

    objects = cache_folder() / "objects"
    environment: dict[str, Any] = {
        "TRITON_CACHE_DIR": str(objects),
        "TRITON_DEFAULT_FP_FUSION": "1",
    }
    return compile_all(tasks, jobs=jobs, environment=environment, on_result=count)
