"""The metrics of a run as a Prometheus text file, for the textfile collector of node_exporter.

Every sample has the label ``output``, so that one folder can have the files of several runs.  All
are gauges: they describe the last run (or part of one), not a live process.
"""

from __future__ import annotations

import os
from calendar import timegm
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import strptime

from deepinfer_cli.typed_json import to_json

from .report import Distribution, Report

Samples = list[tuple[Mapping[str, str], float | None]]
Family = tuple[str, str, Samples]

_QUANTILES = (("0.5", "p50"), ("0.9", "p90"), ("0.99", "p99"))


def export_metrics(report: Report, path: str | None, warn: Callable[[str], None]) -> None:
    """Replace ``path`` atomically.  If it cannot be written, only a warning is printed."""
    if path is None:
        return
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        temporary.write_bytes(prometheus_text(report).encode("utf-8", "replace"))
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        warn(f"cannot write {path} for Prometheus: {(error.strerror or str(error)).lower()}")


def prometheus_text(report: Report) -> str:
    """The exposition format, without unknown values."""
    lines = []
    for name, help, samples in _families(report):
        known = [(labels, value) for labels, value in samples if value is not None]
        if not known:
            continue
        lines.append(f"# HELP deepinfer_run_{name} {help}")
        lines.append(f"# TYPE deepinfer_run_{name} gauge")
        for labels, value in known:
            shown = _labels({"output": report.output, **labels})
            lines.append(f"deepinfer_run_{name}{shown} {value!r}")
    return "\n".join(lines) + "\n"


def _families(report: Report) -> Iterator[Family]:
    yield from _about(report)
    yield from _counted(report)
    yield from _timed(report)
    yield from _spent(report)


def _about(report: Report) -> Iterator[Family]:
    yield (
        "info",
        "What ran; the value is always 1.",
        [
            (
                {
                    "model": report.model,
                    "device": report.device or "",
                    "status": report.status,
                    "version": report.versions.get("deepinfer", ""),
                },
                1,
            )
        ],
    )
    yield "start_timestamp_seconds", "When the run began.", [({}, _seconds(report.started))]
    yield "end_timestamp_seconds", "When it ended.", [({}, _seconds(report.ended))]
    yield "exit_code", "Exit code of the process.", [({}, report.exit_code)]


def _counted(report: Report) -> Iterator[Family]:
    rows, tokens, drafts = report.rows, report.tokens, report.speculation
    yield "input_rows", "Rows read.", [({}, rows.input)]
    yield (
        "rows",
        "Finished rows by result.",
        [({"result": "answered"}, rows.results), ({"result": "failed"}, rows.errors)],
    )
    yield "error_rows", "Error rows by kind of error.", _by("kind", report.errors)
    yield "answers", "Answers by why they ended.", _by("finish_reason", report.finish_reasons)
    yield (
        "tokens",
        "Tokens of result rows.",
        [
            ({"kind": "prompt"}, tokens.prompt_tokens),
            ({"kind": "cached"}, tokens.cached_tokens),
            ({"kind": "completion"}, tokens.completion_tokens),
            ({"kind": "reasoning"}, tokens.reasoning_tokens),
        ],
    )
    yield (
        "draft_tokens",
        "Drafted tokens.",
        [
            ({"state": "verified"}, drafts.drafted_tokens),
            ({"state": "accepted"}, drafts.accepted_tokens),
        ],
    )
    yield "draft_acceptance_ratio", "Accepted of verified drafts.", [({}, drafts.acceptance)]
    yield "preemptions", "Answers that gave up their caches.", [({}, report.preemptions)]


def _timed(report: Report) -> Iterator[Family]:
    speed = report.throughput
    yield "load_seconds", "Until the engine was ready.", [({}, speed.load_s)]
    yield "answer_seconds", "From then to the last row.", [({}, speed.answer_s)]
    split = to_json(report.time_s)
    yield "phase_seconds", "Where the time of answering went.", _by("phase", split)
    yield "rows_per_second", "Result rows per second.", [({}, speed.rows_per_s)]
    yield (
        "tokens_per_second",
        "Tokens per second.",
        [
            ({"kind": "prompt"}, speed.prompt_tokens_per_s),
            ({"kind": "completion"}, speed.completion_tokens_per_s),
        ],
    )
    latencies = report.latency_ms
    phases = {
        "queued": latencies.queued,
        "prefill": latencies.prefill,
        "decode": latencies.decode,
        "first_token": latencies.first_token,
        "finished": latencies.finished,
    }
    yield (
        "latency_seconds",
        "Quantiles over the answers.",
        [sample for phase, spread in phases.items() for sample in _quantiles(phase, spread)],
    )


def _spent(report: Report) -> Iterator[Family]:
    if report.engine is not None:
        yield (
            "cache_blocks",
            "Blocks of the global KV cache.",
            [
                ({"state": "total"}, report.engine.num_blocks),
                ({"state": "peak"}, report.engine.peak_blocks),
            ],
        )
    if report.memory is not None:
        yield (
            "memory_bytes",
            "Memory of weights and caches.",
            [
                ({"kind": "weights"}, report.memory.weight_bytes),
                ({"kind": "caches"}, report.memory.cache_bytes),
            ],
        )
    yield "cost", "Price, in the currency of cost_per_hour.", [({}, report.cost.total)]
    yield "energy_joules", "Counted by the processor.", [({}, report.cost.energy_j)]
    yield "gpu_energy_joules", "Counted by the GPUs.", [({}, report.cost.gpu_energy_j)]
    each = {"processor": report.cost.energy_per_token_j, "gpus": report.cost.gpu_energy_per_token_j}
    yield (
        "energy_per_token_joules",
        "By answer token, of what counted it.",
        [({"of": name}, joules) for name, joules in each.items()],
    )


def _quantiles(phase: str, spread: Distribution) -> Samples:
    values = {"p50": spread.p50, "p90": spread.p90, "p99": spread.p99}
    return [
        ({"phase": phase, "quantile": quantile}, None if ms is None else ms / 1_000)
        for quantile, name in _QUANTILES
        for ms in (values[name],)
    ]


def _by(label: str, counts: Mapping[str, float]) -> Samples:
    return [({label: name}, count) for name, count in counts.items()]


def _labels(labels: Mapping[str, str]) -> str:
    pairs = (f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _seconds(iso: str) -> int:
    return timegm(strptime(iso, "%Y-%m-%dT%H:%M:%SZ"))
