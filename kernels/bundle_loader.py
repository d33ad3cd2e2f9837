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
from .compile_task import kernel_of, options_of, source_of


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
    Raises: ConfigError if this Triton, though of the same version, would not take them.
    """
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
    counter = KernelCounter()
    for task in bundle.kernels[:1]:
        target = triton.backends.compiler.GPUTarget(*task["target"])
        triton.compile(source_of(task), target=target, options=options_of(task))
        if counter.compiled:
            knobs.cache.manager_class = base
            raise ConfigError(
                f"kernels in {bundle.folder}: {kernel_of(task).__name__} is not found by this "
                f"Triton {triton.__version__}; it is another build, or a TRITON_* variable differs "
                "from when they were made; build again"
            )
    return counter


def _files(bundle: Bundle, names: dict[str, str]) -> dict[str, str]:
    return {Path(name).suffix: str(bundle.folder / name) for name in names}
