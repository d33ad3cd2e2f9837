"""The folder ``<output>.partial`` of an unfinished run: its lock, and the basis of its answers."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from deepinfer.errors import ConfigError, LockedError

from .basis import Basis
from .disk import disk_full
from .manifest import is_begun, read_manifest, write_manifest
from .paths import OUR_FILES, OutputPaths

_ATTEMPTS = 100
# ``deepinfer status`` in another shell may hold the lock for an instant.
_LOCK_TRIES, _LOCK_WAIT_S = 5, 0.05


class PartialFolder:
    """The locked working folder of one output, as a context manager that releases the lock, and
    removes the folder if no run was begun in it.  An OSError for a full disk names the place.

    The lock ends with its process, however that ends, so the next run simply takes over.
    """

    def __init__(self, paths: OutputPaths) -> None:
        self.paths = paths
        self.path = paths.partial
        self._lock = -1

    def __enter__(self) -> Self:
        self._lock = self._acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._release(self._lock)
        if isinstance(error, OSError) and (full := disk_full(error, self.path.parent, None)):
            raise full from error

    def begin(self, basis: Basis, *, force: bool, can_retry: bool = True) -> bool:
        """Begin or resume a run with this basis; returns True if there is a run to resume.

        A run with the same basis is resumed even with ``force``: its answers would be the same.
        Raises: ConfigError if the results exist or there is a run with another basis, unless
        ``force`` replaces the former and discards the latter.  can_retry: the verb has the flag
        --retry-failed.
        """
        self._check_contents()
        if not is_begun(self.path) and self.paths.results.exists() and not force:
            ways = "--retry-failed for its failed rows, or --force to replace it"
            if not can_retry:
                ways = "or --force to replace it"
            raise ConfigError(
                f"{self.paths.results} already exists; give another output (-o), {ways}"
            )
        earlier = read_manifest(self.path)
        changed = None if earlier is None else basis.changed_since(earlier)
        if changed is not None and not force:
            raise ConfigError(
                f"{self.path} holds a run started with {changed[0]}; "
                f"{changed[1]} to resume it, or --force to start over"
            )
        if earlier is not None and changed is None:
            with suppress(FileNotFoundError):  # the report of an earlier part
                (self.path / "report.json").replace(self.earlier_report)
            return True
        self.clear()
        write_manifest(self.path, basis)
        return False

    @property
    def earlier_report(self) -> Path:
        """The report of the parts before the current one, if there is one."""
        return self.path / "earlier.json"

    @property
    def retried_report(self) -> Path:
        """The report of the finished run whose failed rows are being retried, if any."""
        return self.path / "retried.json"

    def clear(self) -> None:
        """Remove everything that earlier runs left."""
        self._check_contents()
        for stale in self.path.iterdir():
            if stale.name != "lock":
                stale.unlink()

    def keep_report(self, report: bytes, *, is_last: bool = False) -> None:
        """Save the report so far, for the next part if this one is killed; ``is_last``: the final
        one.  On a full disk, which is reported elsewhere, the previous report stays."""
        place = self.path / "report.json" if is_last else self.earlier_report
        fresh = place.with_suffix(".new")
        try:
            fresh.write_bytes(report)
            fresh.replace(place)
        except OSError:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder of a finished run."""
        with suppress(FileNotFoundError):  # removed already
            shutil.rmtree(self.path)

    def _check_contents(self) -> None:
        foreign = sorted({path.name for path in self.path.iterdir()} - OUR_FILES)
        if foreign:
            raise ConfigError(
                f"{self.path} holds files that are not from a run ({', '.join(foreign[:5])}); "
                "move it away, or give another output (-o)"
            )

    def _acquire(self) -> int:
        """Create and lock the folder; retry if another run removed it in between."""
        for _ in range(_ATTEMPTS):
            try:
                lock = self._open_lock()
            except FileNotFoundError:
                continue
            if not self._take(lock):
                holder = os.pread(lock, 1_000, 0).decode("utf-8", "replace").strip()
                os.close(lock)
                raise LockedError(
                    f"another run is writing {self.paths.results} ({holder or 'just started'}); "
                    "wait for it, stop it, or give another output (-o)"
                )
            if self._is_current(lock):
                self._sign(lock)
                return lock
            os.close(lock)
        raise self._unwritable("no folder can be made there")

    def _sign(self, lock: int) -> None:
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        me = f"process {os.getpid()} on {socket.gethostname()} since {started}\n"
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, me.encode(), 0)
        except OSError as error:
            self._release(lock)
            if full := disk_full(error, self.path.parent, None):
                raise full from error
            raise

    def _release(self, lock: int) -> None:
        with suppress(OSError):  # the folder is gone, or cannot be listed
            names = {path.name for path in self.path.iterdir()}
            # Another run may have created the folder again.
            if self._is_current(lock) and names <= {"lock", "run.json.new"}:
                self.remove()  # nothing was begun, such as by a refused run
        os.close(lock)

    def _open_lock(self) -> int:
        try:
            self._check_places()
            self.path.mkdir(exist_ok=True)
            return os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._unwritable((error.strerror or str(error)).lower()) from error

    def _check_places(self) -> None:
        """Check that everything this run will write can be written or replaced."""
        if not self.path.parent.is_dir():
            raise self._unwritable(f"there is no folder {self.path.parent}")
        for path in (self.paths.results, self.paths.errors, self.paths.report):
            if path.is_dir():
                raise self._unwritable(f"{path} is a folder")
        for path in (self.paths.results, self.paths.errors, self.paths.report, self.path):
            if path.is_symlink():  # publishing would replace the link, not its target
                raise self._unwritable(f"{path} is a link to {os.readlink(path)}")

    def _unwritable(self, reason: str) -> ConfigError:
        return ConfigError(f"cannot write {self.paths.results}: {reason}; give another output (-o)")

    def _take(self, lock: int) -> bool:
        """Lock exclusively; False if another run has the lock."""
        for attempt in range(_LOCK_TRIES):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                time.sleep(_LOCK_WAIT_S if attempt < _LOCK_TRIES - 1 else 0)
            except OSError as error:  # some network file systems
                os.close(lock)
                self.remove()
                reason = (error.strerror or str(error)).lower()
                raise self._unwritable(f"its file system has no locks ({reason})") from error
        return False

    def _is_current(self, lock: int) -> bool:
        """Whether the locked file is still the one in the folder."""
        try:
            return os.path.samestat(os.fstat(lock), os.stat(self.path / "lock"))
        except FileNotFoundError:
            return False


def is_locked(folder: Path) -> bool:
    """Whether a live process, on any machine, works in ``folder``."""
    try:
        lock = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
