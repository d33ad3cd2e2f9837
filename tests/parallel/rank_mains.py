"""What ranks run in tests of the launcher."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from deepinfer.engine.parallel.launch import RankProcesses
from deepinfer.engine.parallel.mailbox import Mailbox, PeerLostError
from deepinfer.errors import ConfigError


def echo(mailbox: Mailbox, argument: Any) -> None:
    """Sends back what comes, until a None."""
    mailbox.send(("started", argument, os.getpid()))
    while (message := mailbox.wait()) != "end":
        mailbox.send(message)


def fail(mailbox: Mailbox, how: str) -> None:
    """Ends in one of several ways after a message."""
    mailbox.wait()
    if how == "peer":
        raise PeerLostError("the exchange with the others broke")
    if how == "slow peer":
        time.sleep(0.3)
        raise ConfigError("max_num_seqs=0: expected at least 1")
    if how == "config":
        raise ConfigError("max_num_seqs=0: expected at least 1")
    if how == "bug":
        _ = 1 / 0
    if how == "exit":
        os._exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def drive() -> None:
    """A driver that says which ranks it has, then waits to be killed."""
    ranks = RankProcesses(echo, [0, 1])
    found: list[int] = []
    while len(found) < 2:
        found += [message[2] for _, message in ranks.receive()]
    print(*found, flush=True)
    time.sleep(60)
