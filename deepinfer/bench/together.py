"""Measures the ranks of a deployment on the present devices, one process each.  The exchange
between them is real, that with absent ranks is modeled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import mean

import torch

from deepinfer.engine.parallel.groups import Group, connect, host_store, join
from deepinfer.engine.parallel.launch import RankProcesses
from deepinfer.engine.parallel.lockstep import LockstepModel
from deepinfer.engine.parallel.mailbox import Mailbox

from .present_share import PresentShare
from .rank_steps import Deployment
from .results import Measurement


@dataclass(frozen=True, slots=True)
class _Place:
    """A process's rank, and the rendezvous of all."""

    deployment: Deployment
    devices: tuple[str, ...]
    rank: int
    port: int


def measure_together(
    deployment: Deployment, devices: Sequence[str], tick: Callable[[str], None]
) -> Iterator[Measurement]:
    """The rows measured by one rank per device, merged by ``combined``.

    Raises: EngineError, or the rank's own error, if one fails; all are stopped then.
    """
    torch.cuda.empty_cache()  # memory of earlier measurements on the first GPU
    store = host_store()
    places = [_Place(deployment, tuple(devices), rank, store.port) for rank in range(len(devices))]
    rows: list[list[Measurement]] = [[] for _ in places]
    num_done = num_combined = 0
    with closing(RankProcesses(_run_rank, places)) as processes:
        while num_done < len(places):
            for rank, message in processes.receive():
                if message is None:
                    num_done += 1
                elif isinstance(message, Measurement):
                    rows[rank].append(message)
                elif rank == 0:
                    tick(message)
            while num_combined < min(map(len, rows)):
                yield combined([found[num_combined] for found in rows])
                num_combined += 1


def combined(rows: Sequence[Measurement]) -> Measurement:
    """Merge the same row of all ranks: step times of the slowest, mean tokens and drafts."""
    first = rows[0]
    joules = [row.energy_j for row in rows if row.energy_j is not None]
    lengths = [row.accepted_length for row in rows if row.accepted_length is not None]
    return dataclasses.replace(
        first,
        step_s=tuple(map(max, zip(*(row.step_s for row in rows), strict=True))),
        num_tokens=mean(row.num_tokens for row in rows),
        num_drafts=mean(row.num_drafts for row in rows),
        accepted_length=mean(lengths) if lengths else None,
        energy_j=mean(joules) if joules else None,
    )


def _run_rank(mailbox: Mailbox, place: _Place) -> None:
    """Run one rank's process, which sends its rows, and None at the end."""
    deployment, present = place.deployment, len(place.devices)
    device = torch.device(place.devices[place.rank])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    join(connect("127.0.0.1", place.port), place.rank, present, facts={}, device=str(device))
    everyone = [range(present)]
    group, control = Group.split(everyone), Group.split(everyone, backend="gloo")
    mailbox.send(f"random weights of {present} of {deployment.name}")
    share = PresentShare(deployment.ranks, group, deployment.most_tokens)
    rank = deployment.make_rank(str(device), share)
    together = LockstepModel(rank.model, control, share.before_pass)
    rank = dataclasses.replace(rank, present=present, runner=together)
    for row in deployment.measure(rank, mailbox.send):
        mailbox.send(row)
        together.finish()  # ranks may need different numbers of passes for a row
    mailbox.send(None)
    mailbox.wait()
