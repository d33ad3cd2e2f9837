"""One process per rank on this machine: one failure ends all, and none outlives the driver."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from deepinfer.errors import DeepInferError, EngineError

from .mailbox import Bye, Failed, Lost, Mailbox, PeerLostError

# How long to wait, after the first failure, for others that may be its cause.
_GRACE_S = 1.0
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


RankMain = Callable[[Mailbox, Any], None]


class RankProcesses:
    """Runs ``main(mailbox, argument)`` in one process per argument.

    main         an importable function; errors that it raises are raised here
    preload      modules to import once, besides that of ``main``, in the fresh process from which
                 the ranks are forked
    expendable   ranks whose end is reported as a message (``Lost``) instead of a failure
    remote       connections to ranks that a launcher has started, which wait for their argument

    Raises: EngineError, or the rank's own DeepInferError with the rank's name, as soon as
    ``receive`` or ``send`` finds that a rank has failed; all ranks are stopped then.
    """

    def __init__(
        self,
        main: RankMain,
        arguments: Sequence[Any],
        *,
        preload: Sequence[str] = (),
        expendable: frozenset[int] = frozenset(),
        remote: Mapping[int, Connection] | None = None,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch.distributed", main.__module__, *preload])
        self._expendable = expendable
        self._connections: list[Connection | None] = []
        self._processes: list[BaseProcess | None] = []
        for rank, argument in enumerate(arguments):
            if remote is not None and rank in remote:
                remote[rank].send(argument)
                self._connections.append(remote[rank])
                self._processes.append(None)
                continue
            ours, theirs = context.Pipe()
            process = context.Process(target=_run, args=(main, theirs, argument), daemon=True)
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    def __len__(self) -> int:
        return len(self._processes)

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the ranks that this process started."""
        return [process.pid or 0 for process in self._processes if process is not None]

    def send(self, rank: int, message: Any) -> None:
        """Send a message to a rank; messages for a lost expendable rank are dropped."""
        connection = self._connections[rank]
        if connection is None:
            return
        try:
            connection.send(message)
        except OSError:
            if rank not in self._expendable:
                self._fail(rank)

    def receive(self, timeout_s: float | None = None) -> list[tuple[int, Any]]:
        """(rank, message) pairs received so far; waits for at least one until the timeout."""
        ranks = {c: rank for rank, c in enumerate(self._connections) if c is not None}
        messages: list[tuple[int, Any]] = []
        for connection in wait(list(ranks), timeout_s):
            assert isinstance(connection, Connection)
            rank = ranks[connection]
            message = self._read(connection)
            if not isinstance(message, Failed):
                messages.append((rank, message))
            elif rank in self._expendable:
                self._connections[rank] = None
                messages.append((rank, Lost(rank, self._ending(rank, message))))
            else:
                self._fail(rank, message)
        return messages

    def close(self) -> None:
        """Stop all processes; ranks of a launcher end when the connection closes.  Idempotent."""
        own = [process for process in self._processes if process is not None]
        for process in own:
            process.kill()
        for process in own:
            process.join()
        for place, connection in zip(self._processes, self._connections, strict=True):
            if connection is not None:
                with contextlib.suppress(OSError):
                    if place is None:
                        connection.send(Bye())
                connection.close()

    def _fail(self, rank: int, message: Failed | None = None) -> None:
        """Stop all ranks and raise the original failure: the loss of a peer is only a consequence
        of one."""
        failures = {rank: message or self._last_message(rank)}
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline and all(map(_is_consequence, failures.values())):
            for other, connection in enumerate(self._connections):
                if other not in failures and connection is not None:
                    with contextlib.suppress(OSError):
                        if connection.poll(0.02) and isinstance(
                            found := self._read(connection), Failed
                        ):
                            failures[other] = found
        first = next((r for r in failures if not _is_consequence(failures[r])), rank)
        found = failures[first]
        text = self._ending(first, found)
        self.close()
        ours = isinstance(found.error, PeerLostError | _Gone)
        kind = EngineError if ours else type(found.error)
        error = kind.__new__(kind)
        error.args = (text,)
        raise error from found.error

    def _last_message(self, rank: int) -> Failed:
        connection = self._connections[rank]
        while connection is not None:
            message = self._read(connection)
            if isinstance(message, Failed):
                return message
        return Failed(EngineError("gone"))

    def _read(self, connection: Connection) -> Any:
        try:
            return connection.recv()
        except (EOFError, OSError):
            return Failed(_Gone())

    def _ending(self, rank: int, message: Failed) -> str:
        process = self._processes[rank]
        where = "of the launcher" if process is None else f"process {process.pid}"
        name = f"rank {rank} of {len(self)} ({where})"
        if not isinstance(message.error, _Gone):
            return f"{name}: {message.error}"
        if process is None:
            return f"{name} is gone: check the launcher's output"
        process.join(_GRACE_S)
        code = process.exitcode
        if code is not None and code < 0:
            return f"{name} was killed by {signal.Signals(-code).name}"
        hint = " (a script that starts ranks needs: if __name__ == '__main__')" if code == 1 else ""
        return f"{name} ended unexpectedly with exit code {code}{hint}"


class _Gone(EngineError):
    """The process ended without a message."""


def _is_consequence(failure: Failed) -> bool:
    return isinstance(failure.error, PeerLostError)


def _run(main: RankMain, connection: Connection, argument: Any) -> None:
    """Entry point of a rank's process.  It ignores Ctrl-C, which the driver handles."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    run_rank(main, connection, argument)


def run_rank(main: RankMain, connection: Connection, argument: Any) -> None:
    """Run ``main`` and end this process; an error is sent to the driver."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        main(Mailbox(connection), argument)
    except DeepInferError as error:
        _send_failure(connection, error)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        _send_failure(
            connection,
            EngineError(f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"),
        )
    # Threads of communication libraries must not keep a finished rank alive.
    sys.stderr.flush()
    os._exit(0)


def _send_failure(connection: Connection, error: DeepInferError) -> None:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = EngineError(str(error))
    with contextlib.suppress(OSError):
        connection.send(Failed(error))
