"""``deepinfer bench``: measure, say what the limits are, keep both."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from deepinfer import OfflineEngine
from deepinfer.bench.ceilings import cpu_ceilings, cpu_profile
from deepinfer.bench.embedded import EnginePlan, measure_engine
from deepinfer.bench.limits import limit_rows
from deepinfer.bench.plan import BenchPlan
from deepinfer.bench.results import Measurement
from deepinfer.engine.measure_steps import device_name
from deepinfer.engine.model.config import ModelConfig
from deepinfer.errors import ConfigError
from deepinfer_cli.console import Console
from deepinfer_cli.host import host, versions
from deepinfer_cli.typed_json import to_json

from .compare import comparison
from .page import page
from .record import BenchRecord

_INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """What the command line asked for.  ``engine_requests`` None: sizes that suit a CPU."""

    plan: BenchPlan
    engine_requests: tuple[int, ...] | None = None
    prompts: Sequence[str] | None = None
    model: str | None = None
    device: str = "auto"
    output: Path | None = None
    compare: Path | None = None
    price_per_hour: float | None = None
    with_plots: bool = False
    as_json: bool = False


def bench(request: BenchRequest, console: Console) -> int:
    """Run it and return the exit code; what was measured before Ctrl-C is written.

    Raises: ConfigError, OSError.
    """
    old = None if request.compare is None else BenchRecord.load(request.compare)
    if request.output is not None:
        request.output.mkdir(parents=True, exist_ok=True)
    flash = ModelConfig.flash()
    limits = tuple(limit_rows(request.plan, flash))
    too_many = [row for row in limits if not row.fits]
    ceilings = cpu_ceilings()
    machine = host()
    record = BenchRecord(
        created=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        command=shlex.join(["deepinfer", *sys.argv[1:]]),
        host=machine,
        versions=versions(),
        device=device_name("cpu"),
        measured_model="the embedded model" if request.model is None else str(request.model),
        plan=request.plan,
        link=request.plan.exchange().name,
        ceilings=tuple(ceilings),
        limits=limits,
        price_per_hour=request.price_per_hour,
        notes=tuple(
            f"{row.size:,} {'requests' if row.phase == 'decode' else 'tokens'} do not fit "
            f"{request.plan.device_profile}: {(row.weight_bytes + row.cache_bytes) / 1e9:,.0f} GB"
            for row in too_many
        ),
    )
    profile = cpu_profile(ceilings, float(machine.memory_bytes or 0))

    def engine(num_drafts: int | None) -> OfflineEngine:
        return OfflineEngine(
            request.model,
            device=request.device,
            num_speculative_tokens=num_drafts,
            max_num_seqs=max(_engine_plan(request).requests),
            enable_prefix_caching=False,
        )

    rows, code = _collect(
        measure_engine(_engine_plan(request), engine, request.prompts, console.say, profile)
    )
    record = replace(record, measurements=tuple(rows), is_complete=code == 0)
    _write(record, old, request, console)
    return code


def _engine_plan(request: BenchRequest) -> EnginePlan:
    plan = EnginePlan(phases=request.plan.phases)
    return (
        plan if request.engine_requests is None else replace(plan, requests=request.engine_requests)
    )


def _collect(rows: Iterable[Measurement]) -> tuple[list[Measurement], int]:
    """All rows and 0; or, after Ctrl-C, those that were done and 130."""
    found: list[Measurement] = []
    try:
        found.extend(rows)
    except KeyboardInterrupt:
        return found, _INTERRUPTED
    return found, 0


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


def read_prompts(path: Path, most: int = 1_000) -> list[str]:
    """The ``prompt`` of the first rows of a JSONL file.  Raises: ConfigError, OSError."""
    import json

    prompts: list[str] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if len(prompts) == most:
                break
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ConfigError(f"{path}:{number}: not JSON ({error})") from error
            prompt = row.get("prompt") if isinstance(row, dict) else None
            if not isinstance(prompt, str):
                raise ConfigError(f"{path}:{number}: expected a row with a text in prompt")
            prompts.append(prompt)
    if not prompts:
        raise ConfigError(f"{path} has no prompts")
    return prompts
