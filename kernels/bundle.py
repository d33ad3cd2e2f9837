"""A bundle: the compiled kernels of one model for one target, as a folder.

``manifest.json`` lists them and what they were built from; the folder also has the machine code and
Triton's metadata of each kernel.  A folder of bundles is a store.  The name of a bundle is derived
from what it was built from, so the right one is found by name; for the others a run can report why
they do not fit.  This module needs neither torch nor Triton, which take longer to import.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from deepinfer.errors import ConfigError

Json = dict[str, Any]
FORMAT = 1
_MANIFEST = "manifest.json"
_OLDEST_TRITON = (3, 6)
_PACKAGE = Path(__file__).parents[1]
# The code that determines which kernels are launched, and their source.
_SOURCES = ("kernels", "engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a bundle is built from; bundles with equal identities have the same kernels.

    target      "sm90a", "ascend950"
    stage       the compilation stage that was requested: "binary", or an earlier one (Ascend)
    model       digest of the model's config
    model_name  name of the model when it was built; not compared
    sources     digest of this program's code
    compilers   name and version of each
    """

    target: str
    model: str
    model_name: str
    sources: str
    compilers: Mapping[str, str]
    stage: str = "binary"

    @property
    def name(self) -> str:
        """The folder's name in its store."""
        compared = asdict(self) | {"model_name": "", "format": FORMAT}
        return f"{self.target}-{digest(compared)[:16]}"

    def difference(self, other: Identity) -> str:
        """Why ``other`` cannot be used instead; empty if it can."""
        if other.target != self.target:
            return f"it is for {other.target}, this is {self.target}"
        if other.model != self.model:
            return f"it is for the config {other.model_name}, this is {self.model_name}"
        for name, wanted in self.compilers.items():
            if (found := other.compilers.get(name)) != wanted:
                return f"it was compiled with {name} {found}, this machine has {wanted}"
        return "" if other.sources == self.sources else "the program has changed since"


@dataclass(frozen=True, slots=True)
class Bundle:
    """A folder with the files that its manifest lists."""

    folder: Path
    identity: Identity
    kernels: tuple[Json, ...]
    manifest: Json


def nvidia_identity(config: Mapping[str, Any], model_name: str, target: str) -> Identity:
    """The identity of a bundle for an NVIDIA target, built or used by this installation.

    Raises: ConfigError if Triton is not installed or too old.
    """
    return Identity(
        target=target,
        model=digest(config),
        model_name=model_name,
        sources=source_digest(),
        compilers={"triton": _triton_version()},
    )


def ascend_identity(
    config: Mapping[str, Any], model_name: str, stage: str, compilers: Mapping[str, str]
) -> Identity:
    """The identity of a bundle for Ascend 950, compiled up to ``stage``."""
    return Identity(
        target="ascend950",
        model=digest(config),
        model_name=model_name,
        sources=source_digest(),
        compilers=compilers,
        stage=stage,
    )


def default_store() -> Path:
    """The default folder of bundles: ``deepinfer/kernels`` in the user's cache."""
    return cache_folder() / "kernels"


def cache_folder() -> Path:
    """The folder for data that this program keeps between runs and can recreate."""
    folder = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(folder).expanduser() / "deepinfer"


def find_bundle(store: Path, wanted: Identity) -> Bundle:
    """The bundle with that identity.

    Raises: ConfigError with the reasons why those in the store do not fit, and what to do.
    """
    folder = store / wanted.name
    if folder.is_dir():
        return read_bundle(folder)
    advice = f"make it with `{build_command(wanted, store)}`"
    if not store.is_dir():
        raise ConfigError(f"kernels={store}: no such folder; {advice}")
    reasons = []
    for found in sorted(store.glob(f"*/{_MANIFEST}")):
        try:
            reason = wanted.difference(read_bundle(found.parent, check_files=False).identity)
        except ConfigError as error:
            reason = str(error)
        reasons.append(f"{found.parent.name}: {reason}")
    listed = "; ".join(reasons) or "it holds no bundle"
    raise ConfigError(f"kernels={store} has none for this run ({listed}); {advice}")


def build_command(wanted: Identity, store: Path) -> str:
    """The shell command that builds a bundle."""
    words = ["deepinfer", "build", "--arch", wanted.target, "--config", wanted.model_name]
    return shlex.join([*words, *([] if store == default_store() else ["-o", str(store)])])


def read_bundle(folder: Path, *, check_files: bool = True) -> Bundle:
    """The bundle in ``folder``.

    Raises: ConfigError if it has another format, or if a file is missing or was changed.
    """
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        found = manifest["format"]
        if found != FORMAT:
            raise ConfigError(f"{folder}: format {found}, this program reads {FORMAT}; build again")
        bundle = Bundle(
            folder, Identity(**manifest["identity"]), tuple(manifest["kernels"]), manifest
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{folder} is not a bundle of kernels: {error}") from error
    if check_files:
        for kernel in bundle.kernels:
            for file, expected in kernel["files"].items():
                _check_file(folder / file, expected)
    return bundle


def write_manifest(folder: Path, identity: Identity, kernels: list[Json], **more: Any) -> None:
    """Write the manifest, as the last file: a folder that has one is complete."""
    manifest = {"format": FORMAT, "identity": asdict(identity), **more, "kernels": kernels}
    text = json.dumps(manifest, indent=1, sort_keys=False)
    (folder / _MANIFEST).write_text(text + "\n", encoding="utf-8")


def file_digest(content: bytes) -> str:
    """The digest of a file in the manifest."""
    return hashlib.sha256(content).hexdigest()


def _check_file(path: Path, expected: str) -> None:
    try:
        found = file_digest(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): build again") from error
    if found != expected:
        raise ConfigError(f"{path} is not the file that was built: remove its folder, build again")


def digest(content: Any) -> str:
    """The digest of anything that JSON can represent."""
    return file_digest(json.dumps(content, sort_keys=True, default=str).encode())


@cache
def source_digest() -> str:
    """The digest of the code that determines the kernels."""
    hasher = hashlib.sha256()
    for folder in _SOURCES:
        for path in sorted((_PACKAGE / folder).rglob("*.py")):
            hasher.update(path.relative_to(_PACKAGE).as_posix().encode() + b"\0")
            hasher.update(path.read_bytes())
    return hasher.hexdigest()


def _triton_version() -> str:
    found = installed_version("triton")
    if tuple(int(number) for number in re.findall(r"\d+", found)[:2]) < _OLDEST_TRITON:
        raise ConfigError(
            f"Triton {found} is too old: kernels need 3.6 or newer; pip install 'triton>=3.6'"
        )
    return found


def installed_version(package: str) -> str:
    """Raises: ConfigError if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        raise ConfigError(f"{package} is not installed: pip install {package}") from None
