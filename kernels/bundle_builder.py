"""Builds a bundle and publishes it in its store atomically."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from deepinfer.errors import EngineError

from .bundle import Bundle, Identity, Json, file_digest, read_bundle, write_manifest

Compile = Callable[[], tuple[list[Json], list[Json]]]
"""Returns the tasks and the result of each, see ``compile_all``."""


def build_bundle(
    store: Path, identity: Identity, compile: Compile, *, on_wait: Callable[[], None] = lambda: None
) -> Bundle:
    """The bundle with that identity: the one in the store, else a new one.

    A second builder of the same bundle waits for the first (``on_wait`` is called) and uses its
    result.  A killed builder leaves a ``.partial`` folder, which the next one removes.
    Raises: EngineError if a kernel does not compile or the disk is full; nothing is kept then.
    """
    folder = store / identity.name
    if folder.is_dir():  # works without write permission
        return read_bundle(folder)
    try:
        store.mkdir(parents=True, exist_ok=True)
        with _lock(store / f".{identity.name}.lock", on_wait):
            if folder.is_dir():
                return read_bundle(folder)
            for left in store.glob(f".{identity.name}.partial*"):
                shutil.rmtree(left, ignore_errors=True)
            tasks, results = compile()
            _check(results, tasks)
            partial = store / f".{identity.name}.partial-{os.getpid()}"
            try:
                partial.mkdir()
                kernels = [_keep(partial, *pair) for pair in zip(tasks, results, strict=True)]
                write_manifest(partial, identity, kernels)
                _publish(partial, folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise EngineError(f"{store}: {_disk_words(error)}; no bundle was written") from error
    return read_bundle(folder)


def _check(results: Sequence[Json], tasks: Sequence[Json]) -> None:
    failed = [
        f"{task['kernel']}: {result['error']}"
        for task, result in zip(tasks, results, strict=True)
        if "error" in result
    ]
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise EngineError(f"{failed[0][:500]}{more}; no bundle was written")


def _keep(folder: Path, task: Json, result: Json) -> Json:
    """Copy a kernel's files; returns its entry in the manifest."""
    stem = f"{task['kernel'].strip('_')}-{result['key'][:12].lower()}"
    files = {}
    for suffix, source in result["files"].items():
        content = Path(source).read_bytes()
        (folder / (stem + suffix)).write_bytes(content)
        files[stem + suffix] = file_digest(content)
    asked = {name: task[name] for name in task if name != "objects"}
    facts = {name: result[name] for name in result if name != "seconds"}
    return asked | facts | {"files": files}


def _publish(partial: Path, folder: Path) -> None:
    for path in partial.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    try:
        partial.rename(folder)
    except OSError as error:
        # If locks have no effect, as on some network disks, another builder may have been first.
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise


@contextmanager
def _lock(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _disk_words(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "the disk is full; free some space, or give another folder with -o"
    return (error.strerror or str(error)).lower()
