"""The vendor's tools, in a folder that precedes the installed packages on the path.

triton-ascend replaces the package ``triton``, so it must not be installed beside it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from deepinfer.errors import EngineError
from deepinfer.kernels.bundle import cache_folder

# Tested together.  triton-ascend imports pybind11.
PINS: Mapping[str, str] = {
    "triton-ascend": "3.2.0",
    "ascendnpu-ir": "1.2.0",
    "pybind11": "3.1.0",
}
_PYTHON = (3, 11)  # the only one that triton-ascend 3.2.0 has a wheel for
_MARK = "complete"


def ascend_environment(on_install: Callable[[], None] = lambda: None) -> Path:
    """The folder with the tools; installed on first use with pip (220 MB of downloads).

    Raises: EngineError with the command to run manually, if that fails.
    """
    if sys.version_info[:2] != _PYTHON:
        found = ".".join(map(str, sys.version_info[:2]))
        raise EngineError(
            f"triton-ascend {PINS['triton-ascend']} is for Python 3.11, this is {found}: install "
            "deepinfer into a Python 3.11 environment and build there"
        )
    folder = environment_folder()
    if not (folder / _MARK).exists():
        on_install()
        _install(folder)
    return folder


def environment_folder() -> Path:
    """The folder of the tools, one for each set of versions."""
    return cache_folder() / "-".join(["ascend", *PINS.values()])


def install_command(folder: Path) -> list[str]:
    """The command that installs the tools to ``folder``."""
    packages = [f"{name}=={version}" for name, version in PINS.items()]
    return [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(folder), *packages]


def worker_environment(folder: Path) -> dict[str, str]:
    """Environment variables of a process that uses the Triton in ``folder``."""
    path = [str(folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        "PYTHONPATH": os.pathsep.join(entry for entry in path if entry),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }


def code_generator() -> str | None:
    """The path of CANN's closed-source code generator, if it is installed."""
    return shutil.which("hivmc-a5")


def _install(folder: Path) -> None:
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    by_hand = " ".join(install_command(folder)) + f" && touch {folder / _MARK}"
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        command = [*install_command(partial), "--quiet", "--disable-pip-version-check"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            reason = lines[-1] if lines else done.stderr.strip()[-300:]
            raise EngineError(
                f"the tools for Ascend cannot be installed ({reason}); with network access, run: "
                f"{by_hand}"
            )
        (partial / _MARK).touch()
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    except OSError as error:
        raise EngineError(f"{folder}: {(error.strerror or str(error)).lower()}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
