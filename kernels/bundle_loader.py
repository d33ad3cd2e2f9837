"""Makes Triton load kernels from a bundle before it looks into its own cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton.runtime.cache import FileCacheManager

from deepinfer.errors import ConfigError

from .bundle import Bundle
from .compile_key import compiler_settings, lookup_key


class KernelCounter:
    """Records the names of the kernels that this process has compiled since it was created."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self._before: Callable[..., None] | None = knobs.compilation.listener
        knobs.compilation.listener = self._listen

    def _listen(self, *, src: Any, cache_hit: bool, **more: Any) -> None:
        if not cache_hit:
            self.compiled.append(src.name)
        if self._before is not None:
            self._before(src=src, cache_hit=cache_hit, **more)


def use_bundle(bundle: Bundle) -> KernelCounter:
    """From now on, load kernels of ``bundle`` instead of compiling them.

    Others are compiled at their first launch; the counter records them.
    Raises: ConfigError if the Triton of this process, although of the same version, would look up
    other keys.
    """
    _check_settings(bundle)
    _check_keys(bundle)
    files = {kernel["key"]: _files(bundle, kernel["files"]) for kernel in bundle.kernels}
    base = knobs.cache.manager_class or FileCacheManager

    class BundleFirst(base):  # type: ignore[misc, valid-type]
        """A cache manager that looks into the bundle first."""

        def __init__(self, key: str, *more: Any, **named: Any) -> None:
            super().__init__(key, *more, **named)
            self._known = files.get(key)

        def get_group(self, filename: str) -> dict[str, str] | None:
            known = self._known
            if known is not None:
                return {filename: known[".json"], Path(filename).stem + ".cubin": known[".cubin"]}
            found: dict[str, str] | None = super().get_group(filename)
            return found

    knobs.cache.manager_class = BundleFirst
    return KernelCounter()


def _check_settings(bundle: Bundle) -> None:
    if names := sorted(compiler_settings()):
        raise ConfigError(
            f"kernels in {bundle.folder} were compiled without {', '.join(names)}, which this "
            "process has set and which changes what Triton compiles: unset it to use them"
        )


def _check_keys(bundle: Bundle) -> None:
    """Compare keys; this also settles Triton's digests of all kernels before they are launched."""
    for kernel in bundle.kernels:
        if lookup_key(kernel) != kernel["key"]:
            raise ConfigError(
                f"kernels in {bundle.folder}: this Triton {triton.__version__} has another key for "
                f"{kernel['kernel']}: it is another build, or has another ptxas "
                "(TRITON_PTXAS_PATH); build again"
            )


def _files(bundle: Bundle, names: dict[str, str]) -> dict[str, str]:
    return {Path(name).suffix: str(bundle.folder / name) for name in names}
