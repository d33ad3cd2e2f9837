"""The folder ``<output>.partial`` of an unfinished run: who works there, with which settings."""

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
# Another shell that asks whether a run is alive holds the lock for an instant.
_LOCK_TRIES, _LOCK_WAIT_S = 5, 0.05


class PartialFolder:
    """The locked working folder of one output.  A context manager; leaving it gives the lock back,
    and the folder too if nothing was begun there.  An OSError of a full disk says where it is.

    The lock ends with the process that holds it, however that ends, so a dead holder's work is
    simply taken over.
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
        """Say on which basis the work here is done; True if there is earlier work to go on with.

        Work on the same basis is continued, also with ``force``: its answers would be the same.
        Raises: ConfigError if the results exist or the work was begun on another basis, unless
        ``force`` replaces the former and discards the latter.  can_retry: --retry-failed is a flag.
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
                f"{self.path} holds a run begun with {changed[0]}; "
                f"{changed[1]} to continue it, or --force to start over"
            )
        if earlier is not None and changed is None:
            with suppress(FileNotFoundError):  # what an earlier part said last
                (self.path / "report.json").replace(self.earlier_report)
            return True
        self.clear()
        write_manifest(self.path, basis)
        return False

    @property
    def earlier_report(self) -> Path:
        """The report of the parts before the one that is running, if they could write one."""
        return self.path / "earlier.json"

    @property
    def retried_report(self) -> Path:
        """The report of the finished run whose failed rows are answered again, if it is so."""
        return self.path / "retried.json"

    def clear(self) -> None:
        """Remove what earlier work left."""
        self._check_contents()
        for stale in self.path.iterdir():
            if stale.name != "lock":
                stale.unlink()

    def keep_report(self, report: bytes, *, is_last: bool = False) -> None:
        """Let the next part know what this one has measured, should it be killed; ``is_last``: how
        it ended.  On a full disk, which is told elsewhere, what was there before stays."""
        place = self.path / "report.json" if is_last else self.earlier_report
        fresh = place.with_suffix(".new")
        try:
            fresh.write_bytes(report)
            fresh.replace(place)
        except OSError:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)

    def remove(self) -> None:
        """The run is finished: nothing here is needed any more."""
        with suppress(FileNotFoundError):  # somebody else was faster
            shutil.rmtree(self.path)

    def _check_contents(self) -> None:
        foreign = sorted({path.name for path in self.path.iterdir()} - OUR_FILES)
        if foreign:
            raise ConfigError(
                f"{self.path} holds files of somebody else ({', '.join(foreign[:5])}); "
                "move it away, or give another output (-o)"
            )

    def _acquire(self) -> int:
        """Make, open and lock; once more if another run removed the folder in between."""
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
        with suppress(OSError):  # the folder is gone, or may not be listed
            names = {path.name for path in self.path.iterdir()}
            # Another run may have made the folder again.
            if self._is_current(lock) and names <= {"lock", "run.json.new"}:
                self.remove()  # nothing was begun, as by a run that is refused
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
        """Nothing that cannot be replaced or written stands where this run will write."""
        if not self.path.parent.is_dir():
            raise self._unwritable(f"there is no folder {self.path.parent}")
        for path in (self.paths.results, self.paths.errors, self.paths.report):
            if path.is_dir():
                raise self._unwritable(f"{path} is a folder")
        for path in (self.paths.results, self.paths.errors, self.paths.report, self.path):
            if path.is_symlink():  # which the finish would replace, and not what it points to
                raise self._unwritable(f"{path} is a link to {os.readlink(path)}")

    def _unwritable(self, reason: str) -> ConfigError:
        return ConfigError(f"cannot write {self.paths.results}: {reason}; give another output (-o)")

    def _take(self, lock: int) -> bool:
        """Lock for this process alone; False if another run has it."""
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
        """False if the folder was removed between opening its lock file and locking it."""
        try:
            return os.path.samestat(os.fstat(lock), os.stat(self.path / "lock"))
        except FileNotFoundError:
            return False


def is_locked(folder: Path) -> bool:
    """Whether a living process works in ``folder``, on whatever machine."""
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
