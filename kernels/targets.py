"""Targets that kernels are compiled for, by their names on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deepinfer.errors import ConfigError, nearest

NVIDIA_TARGETS: Mapping[str, tuple[int, int]] = {
    "sm90a": (9, 0),
    "sm100a": (10, 0),
    "sm103a": (10, 3),
}
ASCEND_TARGETS: Sequence[str] = ("ascend950",)
# Why no machine code for Ascend was generated on a machine without CANN.
NO_CODE_GENERATOR = "CANN is not installed"
_DEVICES: Mapping[str, str] = {
    "h100": "sm90a",
    "h200": "sm90a",
    "b200": "sm100a",
    "gb200": "sm100a",
    "b300": "sm103a",
    "gb300": "sm103a",
}


def nvidia_target(capability: tuple[int, int]) -> str | None:
    """The target for a GPU's compute capability; None if there are no kernels for it."""
    names = {value: name for name, value in NVIDIA_TARGETS.items()}
    return names.get(capability)


def check_targets(names: Sequence[str], accelerator: str) -> None:
    """Raises: ConfigError that names the nearest known target."""
    known = list(NVIDIA_TARGETS) if accelerator == "nvidia" else list(ASCEND_TARGETS)
    every = [*NVIDIA_TARGETS, *ASCEND_TARGETS]
    for name in names:
        if name in known:
            continue
        if name in every:
            raise ConfigError(
                f"--arch {name} is not of --accelerator {accelerator}: {_list(known)}"
            )
        plain = name.lower().replace("_", "").replace("-", "")
        hint = nearest(_DEVICES.get(plain, plain), every) or "."
        raise ConfigError(f"--arch {name!r} is not known{hint} Known: {', '.join(every)}")


def _list(names: Sequence[str]) -> str:
    return "expected " + " or ".join(names)
