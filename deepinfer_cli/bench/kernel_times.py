"""``deepinfer bench kernels``: the times of all kernels, and their page."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from deepinfer.bench.results import Ceiling, KernelRow
from deepinfer.errors import ConfigError
from deepinfer_cli.host import versions
from deepinfer_cli.typed_json import to_json

from .collected import collect
from .page import table, unit

SCHEMA = "deepinfer.bench_kernels/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimes:
    """Times of one device's kernels, and its ceilings in the same run."""

    schema: str = SCHEMA
    created: str
    command: str
    versions: Mapping[str, str]
    device: str
    seed: int
    ceilings: Sequence[Ceiling]
    rows: Sequence[KernelRow]
    is_complete: bool = True


def time_kernels(
    families: Sequence[str], seed: int, tick: Callable[[str], None]
) -> tuple[KernelTimes, BaseException | None]:
    """The times, and what ended them early, as in ``collect``.

    Raises: ConfigError without a GPU, or for a family that does not exist.
    """
    import torch

    if not torch.cuda.is_available():
        raise ConfigError("bench kernels needs an NVIDIA GPU, and torch finds none here")
    from deepinfer.bench.ceilings import gpu_ceilings
    from deepinfer.bench.kernels.families import FAMILIES, measure_kernels

    for family in families:
        if family not in FAMILIES:
            raise ConfigError(f"family {family!r}: expected any of {', '.join(FAMILIES)}")
    ceilings = gpu_ceilings()
    rows, ended = collect(measure_kernels(families or tuple(FAMILIES), seed, tick))
    times = KernelTimes(
        created=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        command=shlex.join(["deepinfer", *sys.argv[1:]]),
        versions=versions(),
        device=torch.cuda.get_device_name(),
        seed=seed,
        ceilings=tuple(ceilings),
        rows=tuple(rows),
        is_complete=ended is None,
    )
    return times, ended


def kernels_page(times: KernelTimes) -> str:
    """One table per family; the last column is the minimum time according to the ceilings over the
    measured time."""
    status = "" if times.is_complete else "\n\n**Stopped early: rows are missing.**"
    found = "; ".join(f"{c.name} {unit(c.value, c.unit)}" for c in times.ceilings)
    named = ", ".join(f"{name} {version}" for name, version in times.versions.items())
    head = (
        f"# deepinfer bench kernels\n\n`{times.command}`\n\n{times.created}, {times.device}; "
        f"{named}\n\nCeilings in the same run: {found}{status}\n"
    )
    return "\n".join([head, *_tables(times)])


def _tables(times: KernelTimes) -> Iterator[str]:
    for family, rows in groupby(times.rows, lambda row: row.family):
        body = []
        for row in rows:
            seconds = row.median_s
            body.append(
                [
                    row.name,
                    f"{seconds * 1e6:,.1f}",
                    f"{row.flop / seconds / 1e12:,.0f}" if row.flop else "",
                    f"{row.num_bytes / seconds / 1e12:,.2f}",
                    f"{row.limit_s(times.ceilings) / seconds:.0%}",
                ]
            )
        head = ["kernel, shape", "µs", "TFLOP/s", "TB/s", "of ceiling"]
        yield f"## {family}\n\n" + table(head, body)


def kernels_json(times: KernelTimes) -> str:
    return json.dumps(to_json(times), indent=1) + "\n"
