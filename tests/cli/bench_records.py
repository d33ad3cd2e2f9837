"""A result of ``deepinfer bench`` that nothing had to be measured for."""

from __future__ import annotations

import dataclasses

from deepinfer.bench.plan import BenchPlan
from deepinfer.bench.results import Ceiling, LimitRow, Measurement
from deepinfer.engine.limits.roofline import Limit
from deepinfer.engine.limits.step_work import Work
from deepinfer_cli.bench.record import BenchRecord
from deepinfer_cli.host import Host

HOST = Host(
    cpu="a processor",
    cores=2,
    features=(),
    memory_bytes=1 << 34,
    available_bytes=1 << 33,
    system="Linux",
    python="3.12",
)


LIMIT = Limit(
    work=Work(gemm_flops=1e12, weight_bytes=1e10),
    num_tokens=26.3,
    local_s=0.004,
    link_s=0.001,
    overlap_s=0.004,
    serial_s=0.005,
)


def a_measurement(**change: object) -> Measurement:
    row = Measurement(
        phase="decode",
        name="8 requests, no drafts",
        size=8,
        context=1_000,
        ranks=8,
        num_drafts=0,
        num_tokens=8.0,
        step_s=(0.011, 0.009, 0.010),
        link_s=0.002,
        limit=LIMIT,
        parts_s={"experts": 0.006, "attention": 0.004},
    )
    return dataclasses.replace(row, **change)


def a_record(**change: object) -> BenchRecord:
    limit = LimitRow(
        phase="decode", size=8, context=131_072, ranks=8, num_drafts=5, limit=LIMIT,
        weight_bytes=5e10, cache_bytes=1e9, fits=True,
    )  # fmt: skip
    record = BenchRecord(
        created="2026-11-30T12:00:00+0000",
        command="deepinfer bench",
        host=HOST,
        versions={"deepinfer": "0.1.0"},
        device="a device",
        is_on_gpu=True,
        measured_model="a model",
        plan=BenchPlan(),
        links="EP8 over nvlink",
        ceilings=(Ceiling(name="copy", value=4.2e12, unit="B/s"),),
        limits=(limit,),
        measurements=(a_measurement(),),
        price_per_hour=2.0,
    )
    return dataclasses.replace(record, **change)
