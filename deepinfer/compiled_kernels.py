"""Finds the compiled kernels for a run: a bundle from ``deepinfer build``, or none."""

from __future__ import annotations

from pathlib import Path

import torch

from deepinfer.engine.model.config import ModelConfig
from deepinfer.errors import ConfigError
from deepinfer.kernels.bundle import (
    Bundle,
    build_command,
    default_store,
    find_bundle,
    nvidia_identity,
    read_bundle,
)
from deepinfer.kernels.targets import NVIDIA_TARGETS, nvidia_target

from .machine import check_kernels


def load_kernels(
    store: Path | None, config: ModelConfig, model_name: str, device: str
) -> str | None:
    """Make ``device`` use the kernels for ``config`` from a bundle in ``store``; or return why not.

    Raises: as ``find_kernels``, also for a bundle that this process cannot use.
    """
    found = find_kernels(store, config, model_name, device)
    if not isinstance(found, Bundle):
        return found
    try:
        _use(found)
    except ConfigError as error:
        if store is not None:
            raise
        return f"compiled as they are first launched: {error}"
    return None


def find_kernels(
    store: Path | None, config: ModelConfig, model_name: str, device: str
) -> Bundle | str | None:
    """The bundle in ``store`` with the kernels for ``config`` on ``device``; None on a CPU.

    Without ``store`` the default one is searched.  If it has no bundle, a note is returned: the run
    then compiles kernels at their first launch.
    Raises: ConfigError if ``store`` was given and has no bundle for this run.
    """
    kind = torch.device(device).type
    check_kernels(store, device)
    if kind == "cpu":
        return None
    if kind == "npu":
        return _without(store, "bundles for Ascend 950 hold what was lowered, which no run loads")
    target = nvidia_target(torch.cuda.get_device_capability(device))
    if target is None:
        return _without(store, f"no bundle is made for {torch.cuda.get_device_name(device)}: "
                        f"there are {', '.join(NVIDIA_TARGETS)}")  # fmt: skip
    wanted = nvidia_identity(config.to_dict(), model_name, target)
    if store is not None:
        return find_bundle(store, wanted)
    folder = default_store() / wanted.name
    advice = f"`{build_command(wanted, default_store())}` compiles them ahead of time"
    if not folder.is_dir():
        return f"compiled as they are first launched; {advice}"
    try:
        return read_bundle(folder)
    except ConfigError as error:
        return f"compiled as they are first launched: {error}"


def _without(store: Path | None, reason: str) -> str:
    if store is not None:
        raise ConfigError(f"kernels={store}: {reason}")
    return f"compiled as they are first launched: {reason}"


def _use(bundle: Bundle) -> None:
    from deepinfer.kernels.bundle_loader import use_bundle

    use_bundle(bundle)
