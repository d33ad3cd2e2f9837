"""``deepinfer bench kernels``: its page, and what it says without a GPU."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from deepinfer.bench.results import Ceiling, KernelRow
from deepinfer_cli.bench.kernel_times import KernelTimes, kernels_json, kernels_page
from deepinfer_cli.typed_json import from_json

CEILINGS = (
    Ceiling(name="copy, read and written", value=4e12, unit="B/s"),
    Ceiling(name="FP8 8192 cubed", value=1e15, unit="FLOP/s"),
    Ceiling(name="bf16 8192 cubed", value=5e14, unit="FLOP/s"),
)


def _row(**change: object) -> KernelRow:
    fields = {
        "family": "gemm", "name": "a product", "seconds": (3e-6, 1e-6, 2e-6), "flop": 1e9,
        "num_bytes": 1e6, "rate": "FP8",
    }  # fmt: skip
    return KernelRow(**(fields | change))  # type: ignore[arg-type]


def _times(*rows: KernelRow, is_complete: bool = True) -> KernelTimes:
    return KernelTimes(
        created="2026-11-30T12:00:00+0000", command="deepinfer bench kernels",
        versions={"deepinfer": "0.1.0"}, device="a device", seed=0, ceilings=CEILINGS, rows=rows,
        is_complete=is_complete,
    )  # fmt: skip


@pytest.mark.parametrize(
    "change, limit_s",
    [
        ({}, 1e-6),
        ({"rate": "bf16"}, 2e-6),
        ({"num_bytes": 8e6}, 2e-6),
        ({"flop": 0, "num_bytes": 4e6}, 1e-6),
    ],
)
def test_the_longer_of_both_limits_counts(change: dict[str, object], limit_s: float) -> None:
    assert _row(**change).limit_s(CEILINGS) == pytest.approx(limit_s)


def test_the_page_follows_from_the_file() -> None:
    times = _times(_row(), _row(family="rows", name="a norm", flop=0, num_bytes=4e6))
    again = from_json(KernelTimes, json.loads(kernels_json(times)))
    assert again == times
    page = kernels_page(again)
    assert re.search(r"\| +a product \| +2\.0 \| +500 \| +0\.50 \| +50% \|", page)
    assert re.search(r"\| +a norm \| +2\.0 \| +\| +2\.00 \| +50% \|", page)
    assert page.index("## gemm") < page.index("## rows")
    assert "Stopped early" in kernels_page(_times(is_complete=False))


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_it_says_so(cli, in_tmp: Path) -> None:
    outcome = cli("bench", "kernels", "-o", "times.json")
    assert outcome.exit_code == 2 and "needs an NVIDIA GPU" in outcome.err
    assert list(in_tmp.iterdir()) == []
