"""``deepinfer bench``: measures, computes limits, and writes both."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from deepinfer.bench.ceilings import cpu_ceilings, cpu_profile, gpu_ceilings
from deepinfer.bench.embedded import EnginePlan, measure_engine
from deepinfer.bench.limits import limit_rows
from deepinfer.bench.peer_link import measured_link
from deepinfer.bench.plan import BenchPlan, padded_experts
from deepinfer.bench.rank_steps import measure_rank
from deepinfer.bench.results import LimitRow, Measurement
from deepinfer.engine.execution.current_device import current_device
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.speculation.measure_steps import device_name
from deepinfer.errors import ConfigError
from deepinfer.machine import resolve_device
from deepinfer.nvml import Nvml
from deepinfer_cli.host import host, versions
from deepinfer_cli.run.console import Console
from deepinfer_cli.typed_json import to_json

from .collected import collect, exit_code
from .compare import comparison
from .page import page
from .prompts import LENGTHS_NOTE, prompt_lengths
from .record import BenchRecord

if TYPE_CHECKING:
    from deepinfer import OfflineEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """The parsed command line; ``flags``: the given flags of the plan."""

    plan: BenchPlan
    flags: tuple[str, ...] = ()
    prompts: Sequence[str] | None = None
    model: str | None = None
    device: str = "auto"
    output: Path | None = None
    compare: Path | None = None
    price_per_hour: float | None = None
    with_plots: bool = False
    as_json: bool = False


# Flags without effect on a whole engine, and flags that change only the limits.
_OF_A_RANK = ("--steps", "--modes", "--routing", "--expert-weights", "--seed")
_OF_LIMITS = ("--ep", "--context", "--tokens", "--acceptance")

AUTO_NOTE = (
    "auto: random weights have no meaningful confidence, so each draft's acceptance probability is "
    "drawn at random, with the acceptance as its mean (u ** (1 / mean - 1), u uniform); the "
    "planner sees these probabilities, and tokens are counted by those of the verified drafts"
)


def bench(request: BenchRequest, console: Console) -> int:
    """Run the benchmark and return the exit code; rows measured before Ctrl-C or an error are kept.

    Raises: ConfigError, OSError.
    """
    old = None if request.compare is None else BenchRecord.load(request.compare)
    flash = ModelConfig.flash()
    device = _device(request.device)
    if request.output is not None:
        _make_folder(request.output)
    is_on_gpu = device.startswith("cuda") and request.model is None
    unused = () if is_on_gpu else tuple(_unused(request.flags))
    for note in unused:
        console.warn(note)
    plan = _gpu_plan(request) if is_on_gpu else request.plan
    limits = tuple(limit_rows(plan, flash))
    with current_device(device):
        ceilings = gpu_ceilings() if is_on_gpu else cpu_ceilings()
    record = BenchRecord(
        created=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        command=shlex.join(["deepinfer", *sys.argv[1:]]),
        host=host(),
        versions=versions(),
        device=device_name(device),
        is_on_gpu=is_on_gpu,
        driver=Nvml().driver() if is_on_gpu else None,
        measured_model=_measured_model(request, is_on_gpu),
        plan=plan,
        links=_links(plan),
        ceilings=tuple(ceilings),
        limits=limits,
        price_per_hour=request.price_per_hour,
        notes=(
            *unused,
            *_notes(plan, limits),
            *([AUTO_NOTE] if is_on_gpu and None in plan.drafts else ()),
        ),
    )
    if is_on_gpu:
        rows = measure_rank(plan, flash, _devices(device), console.say)
    else:
        rows = _engine_rows(request, record, console)
    with current_device(device):
        found, ended = collect(rows)
    record = replace(record, measurements=tuple(found), is_complete=ended is None)
    _write(record, old, request, console)
    return exit_code(ended)


def _device(name: str) -> str:
    """As ``resolve_device``, of what is measured here.  Raises: ConfigError."""
    if not name.startswith("npu"):
        return resolve_device(name)
    raise ConfigError(
        f"device={name!r}: bench measures NVIDIA GPUs and CPUs; expected auto, cpu, cuda or cuda:N"
    )


def _devices(device: str) -> list[str]:
    """All GPUs, one rank each, unless a single one was named."""
    count = torch.cuda.device_count() if device == "cuda" else 0
    return [f"cuda:{number}" for number in range(count)] if count > 1 else [device]


def _engine_rows(
    request: BenchRequest, record: BenchRecord, console: Console
) -> Iterator[Measurement]:
    from deepinfer import OfflineEngine  # GPU benchmarks work without the recipes

    plan = _engine_plan(request)

    def engine(num_drafts: int | None) -> OfflineEngine:
        return OfflineEngine(
            request.model,
            device=request.device,
            num_speculative_tokens=num_drafts,
            max_num_seqs=max(plan.requests),
            enable_prefix_caching=False,
            output_projection=request.plan.output_projection,
        )

    profile = cpu_profile(list(record.ceilings), float(record.host.memory_bytes or 0))
    return measure_engine(plan, engine, request.prompts, console.say, profile)


def _measured_model(request: BenchRequest, is_on_gpu: bool) -> str:
    if is_on_gpu:
        return "DeepSeek-V4.1-Flash, random weights"
    return "the embedded model" if request.model is None else request.model


def _gpu_plan(request: BenchRequest) -> BenchPlan:
    """The plan with the prompts' lengths and, if there are several GPUs, the measured link."""
    plan = request.plan
    if request.prompts is not None:
        plan = replace(plan, lengths=prompt_lengths(request.prompts))
    return replace(plan, own_link=measured_link()) if plan.link is None else plan


def _links(plan: BenchPlan) -> str:
    found = []
    for ranks in sorted({*plan.decode_ranks, *plan.prefill_ranks}):
        link = plan.exchange(ranks)
        rate, latency = link.bytes_per_s / 1e9, link.latency_s * 1e6
        found.append(f"EP{ranks} over {link.name} ({rate:,.0f} GB/s one way, {latency:.0f} µs)")
    return "; ".join(found)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"-o {folder}: cannot make this folder: {reason}; give another"
        ) from error


def _unused(flags: Sequence[str]) -> Iterator[str]:
    """What a user might miss in the measurement of a whole engine."""
    rank, limits = ([f for f in flags if f in known] for known in (_OF_A_RANK, _OF_LIMITS))
    if rank:
        yield f"used only when a GPU measures a rank, without effect here: {', '.join(rank)}"
    if limits:
        yield f"used only for the limits, without effect on measurements here: {', '.join(limits)}"


def _notes(plan: BenchPlan, limits: Sequence[LimitRow]) -> Iterator[str]:
    for row in limits:
        if not row.fits:
            kind = "requests" if row.phase == "decode" else "prompt tokens"
            needed = (row.weight_bytes + row.cache_bytes) / 1e9
            device = f"a rank of EP{row.ranks} on {plan.device_profile}"
            room = row.fitting(plan.profile().memory_bytes)
            yield (
                f"{row.size:,} {kind} do not fit {device}: {needed:,.0f} GB; "
                + (f"{room:,} fit" if room else "the weights alone leave no room")
            )
    for ranks in sorted({*plan.decode_ranks, *plan.prefill_ranks}):
        experts = ModelConfig.flash().n_routed_experts
        held = padded_experts(experts, ranks)
        if held * ranks != experts:
            yield (
                f"EP{ranks} does not divide {experts} experts: each rank holds {held}, the last "
                f"ones {held * ranks - experts} empty ones"
            )
    if plan.lengths:
        yield LENGTHS_NOTE


def _engine_plan(request: BenchRequest) -> EnginePlan:
    """Sizes and drafts that suit a CPU, unless others were asked for."""
    asked: dict[str, Any] = {}
    if "--requests" in request.flags:
        asked["requests"] = request.plan.requests
    if "--drafts" in request.flags:
        asked["drafts"] = request.plan.drafts
    return EnginePlan(phases=request.plan.phases, **asked)


def _write(
    record: BenchRecord, old: BenchRecord | None, request: BenchRequest, console: Console
) -> None:
    """Tables to stdout; the folder's files."""
    import json

    text = page(record) + ("\n" + comparison(record, old) if old is not None else "")
    print(json.dumps(to_json(record), indent=1) if request.as_json else text, end="", flush=True)
    if request.output is None:
        return
    for path in _files(record, text, request):
        console.say(f"wrote {path}")


def _files(record: BenchRecord, text: str, request: BenchRequest) -> Iterator[Path]:
    assert request.output is not None
    yield record.save(request.output)
    markdown = request.output / "bench.md"
    markdown.write_text(text, encoding="utf-8")
    yield markdown
    if request.with_plots:
        from .plots import save_plots

        yield from save_plots(record, request.output)
