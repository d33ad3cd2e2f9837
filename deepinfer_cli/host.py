"""Facts about machine and software for reports, read without importing torch."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import deepinfer
from deepinfer.engine.memory.host_memory import available_host_bytes, total_host_bytes

# CPU features that matter for speed, by their names in Linux.
_FEATURES = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_tile")
_PACKAGES = ("torch", "triton", "numpy", "deepseek-recipe", "tokenizers", "llguidance", "pyarrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine.  ``cores`` and ``available_bytes`` are those that this process may use; unknown
    sizes are None."""

    cpu: str
    cores: int
    features: tuple[str, ...]
    memory_bytes: int | None
    available_bytes: int | None
    system: str
    python: str


def host() -> Host:
    """This machine, now."""
    cpu = _key_values(Path("/proc/cpuinfo"))
    flags = cpu.get("flags", "").split()
    return Host(
        cpu=cpu.get("model name") or platform.processor() or platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        features=tuple(name for name in _FEATURES if name in flags),
        memory_bytes=total_host_bytes(),
        available_bytes=available_host_bytes(),
        system=platform.platform(),
        python=platform.python_version(),
    )


@cache
def versions() -> Mapping[str, str]:
    """Installed versions of this project and of packages that affect answers."""
    found = {"deepinfer": deepinfer.__version__}
    if commit := source_commit():
        found["commit"] = commit
    found["python"] = platform.python_version()
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found | {"platform": platform.platform()}


def source_commit(root: Path | None = None) -> str | None:
    """The commit of the checkout that this code is in, None if it is not a checkout."""
    git = (root or Path(deepinfer.__file__).resolve().parents[1]) / ".git"
    try:
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head[:12]
        name = head.removeprefix("ref: ")
        if (git / name).is_file():
            return (git / name).read_text().strip()[:12]
        packed = (git / "packed-refs").read_text().splitlines()
        return next((line[:12] for line in packed if line.endswith(" " + name)), None)
    except OSError:
        return None


def _key_values(path: Path) -> dict[str, str]:
    """The first value of each ``key : value`` line."""
    found: dict[str, str] = {}
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    return found
