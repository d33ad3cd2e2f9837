"""Lets Triton take kernels from a bundle, where it would look into its own cache."""

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
    """Names of the kernels that this process compiled itself, since the counter was made."""

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
    """From now on kernels of ``bundle`` are loaded, not compiled.

    Others are still compiled when they are launched first; the counter names them.
    Raises: ConfigError if this process, though its Triton is of the same version, would not take
    them.
    """
    _check_settings(bundle)
    _check_keys(bundle)
    files = {kernel["key"]: _files(bundle, kernel["files"]) for kernel in bundle.kernels}
    base = knobs.cache.manager_class or FileCacheManager

    class BundleFirst(base):  # type: ignore[misc, valid-type]
        """A cache that looks into the bundle first."""

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
    """Also settles Triton's digests of all kernels, before they are launched."""
    for kernel in bundle.kernels:
        if lookup_key(kernel) != kernel["key"]:
            raise ConfigError(
                f"kernels in {bundle.folder}: {kernel['kernel']} is not what this Triton "
                f"{triton.__version__} would look for: it is another build of it, or has another "
                "ptxas (TRITON_PTXAS_PATH); build again"
            )


def _files(bundle: Bundle, names: dict[str, str]) -> dict[str, str]:
    return {Path(name).suffix: str(bundle.folder / name) for name in names}
