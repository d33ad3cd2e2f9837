"""Times the cases of all families."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from deepinfer.bench.results import KernelRow

from . import attention, drafts, gemm, indexer, moe, rows, sampling
from .case import KernelCase
from .timing import kernel_seconds

FAMILIES: Mapping[str, Callable[[], Iterator[KernelCase]]] = {
    "attention": attention.cases,
    "indexer": indexer.cases,
    "gemm": gemm.cases,
    "moe": moe.cases,
    "rows": rows.cases,
    "sampling": sampling.cases,
    "drafts": drafts.cases,
}


def measure_kernels(
    families: Sequence[str] = tuple(FAMILIES),
    seed: int = 0,
    tick: Callable[[str], None] = lambda name: None,
) -> Iterator[KernelRow]:
    """One row per case of the ``families``, in order."""
    for family in families:
        tick(family)
        torch.manual_seed(seed)
        yield from (_measured(family, case) for case in FAMILIES[family]())


def _measured(family: str, case: KernelCase) -> KernelRow:
    return KernelRow(
        family=family,
        name=case.name,
        seconds=kernel_seconds(case.call),
        flop=case.flop,
        num_bytes=case.num_bytes,
        rate=case.rate,
    )
