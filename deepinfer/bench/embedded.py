"""Benchmark of the whole engine on a real model, timed by phase.

It runs on machines without a GPU, and with any checkpoint that fits on one device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deepinfer.engine.execution.decode import DecodeWorker
from deepinfer.engine.execution.prefill import PrefillWorker
from deepinfer.engine.limits.device_profiles import DeviceProfile
from deepinfer.engine.limits.roofline import decode_limit, prefill_limit
from deepinfer.engine.types import EngineStats, SamplingParams

from .python_parts import python_parts
from .results import Measurement

if TYPE_CHECKING:
    from deepinfer import OfflineEngine

PROMPTS = (
    "Tell me a story about a fox.",
    "Tell me a story about a lost kite.",
    "Tell me a story about the rain.",
    "Tell me a story about an owl.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """requests    batch sizes to decode
    drafts        drafts verified per request and step, one row each; None: as many as pay off
    num_tokens    tokens of each answer
    prompt_words  words of each prompt of the prefill rows
    num_rounds    rounds over all rows; each gives one raw time per row
    """

    requests: tuple[int, ...] = (1, 8, 64)
    drafts: tuple[int | None, ...] = (0, None)
    num_tokens: int = 32
    prompt_words: tuple[int, ...] = (64, 512)
    num_rounds: int = 3
    phases: tuple[str, ...] = ("decode", "prefill")


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of the table: engine, prompts, and tokens of each answer."""

    name: str
    phase: str
    engine: OfflineEngine
    prompts: Sequence[str]
    num_tokens: int


def measure_engine(
    plan: EnginePlan,
    make_engine: Callable[[int | None], OfflineEngine],
    prompts: Sequence[str] | None = None,
    tick: Callable[[str], None] = lambda name: None,
    profile: DeviceProfile | None = None,
) -> Iterator[Measurement]:
    """All rows; ``tick`` is called with the name of each row before it runs.

    ``make_engine`` gives an engine that verifies that many drafts, or for None as many as pay off.
    Each round covers all rows, so that a slow moment of the machine does not affect a single one;
    the first round is a warm-up.  The split of each row's time is from an additional round.
    KeyboardInterrupt is raised after yielding the rows measured so far, with fewer rounds.
    """
    subjects = list(prompts or PROMPTS)
    wanted = list(plan.drafts) if "decode" in plan.phases else []
    with ExitStack() as stack:
        # A prefill needs no drafts.
        engines = {n: stack.enter_context(make_engine(n)) for n in dict.fromkeys([*wanted, 0])}
        rows = list(_rows(plan, subjects, engines))
        found: list[list[tuple[EngineStats, int]]] = [[] for _ in rows]
        parts: list[Mapping[str, float]] = [{} for _ in rows]
        ended: KeyboardInterrupt | None = None
        try:
            for round_number in range(plan.num_rounds + 1):
                for number, row in enumerate(rows):
                    tick(f"round {round_number} of {plan.num_rounds}: {row.name}")
                    stats = _run(row)
                    if round_number:
                        found[number].append(stats)
            for number, row in enumerate(rows):
                tick(f"where the time goes: {row.name}")
                parts[number] = _parts(row)
        except KeyboardInterrupt as interrupt:
            ended = interrupt
        for number, row in enumerate(rows):
            if found[number]:
                yield _split(_measurement(row, found[number], profile), parts[number])
        if ended is not None:
            raise ended


def _rows(
    plan: EnginePlan, subjects: list[str], engines: Mapping[int | None, OfflineEngine]
) -> Iterator[_Row]:
    """The rows; ``engines`` by the number of drafts that each verifies."""
    if "decode" in plan.phases:
        for size in plan.requests:
            batch = [subjects[i % len(subjects)] for i in range(size)]
            for drafts in dict.fromkeys(plan.drafts):
                name = _name(size, drafts)
                yield _Row(name, "decode", engines[drafts], batch, plan.num_tokens)
    if "prefill" in plan.phases:
        for words in plan.prompt_words:
            text = " ".join(subjects[i % len(subjects)] for i in range(words))
            text = " ".join(text.split()[:words])
            yield _Row(f"prompt of {words} words", "prefill", engines[0], [text], 1)


def _name(num_requests: int, drafts: int | None) -> str:
    """``drafts`` None: as many as the planner chooses, ``--drafts auto``."""
    kind = {None: "auto", 0: "no drafts", 1: "1 draft"}.get(drafts, f"{drafts} drafts")
    return f"{num_requests} request{'s' * (num_requests != 1)}, {kind}"


def _run(row: _Row) -> tuple[EngineStats, int]:
    """The increase of the engine's counters, and the prompt tokens of one request."""
    before = row.engine.stats()
    sampling = SamplingParams(temperature=0.0, max_tokens=row.num_tokens, ignore_eos=True)
    outputs = row.engine.generate(list(row.prompts), sampling)
    failed = next((output for output in outputs if output.error), None)
    if failed is not None:
        raise RuntimeError(f"{row.name}: {failed.error}")
    after = row.engine.stats()
    gained = replace(
        after,
        num_steps=after.num_steps - before.num_steps,
        num_decode_steps=after.num_decode_steps - before.num_decode_steps,
        num_decode_rows=after.num_decode_rows - before.num_decode_rows,
        num_prefill_tokens=after.num_prefill_tokens - before.num_prefill_tokens,
        num_decode_tokens=after.num_decode_tokens - before.num_decode_tokens,
        num_draft_tokens=after.num_draft_tokens - before.num_draft_tokens,
        prefill_s=after.prefill_s - before.prefill_s,
        decode_s=after.decode_s - before.decode_s,
    )
    return gained, len(outputs[0].prompt_token_ids)


def _parts(row: _Row) -> Mapping[str, float]:
    """Seconds of one round by family of kernels."""
    worker = PrefillWorker if row.phase == "prefill" else DecodeWorker
    with python_parts(worker.run) as parts:
        _run(row)
    return parts


def _split(measured: Measurement, parts: Mapping[str, float]) -> Measurement:
    """Scale the parts of another round to shares of the measured step."""
    scale = measured.local_s / (sum(parts.values()) or 1.0)
    return replace(measured, parts_s={name: scale * part for name, part in parts.items()})


def _measurement(
    row: _Row, rounds: list[tuple[EngineStats, int]], profile: DeviceProfile | None
) -> Measurement:
    """A row's rounds as steps: the mean step of each round is one raw time."""
    model = row.engine.model_config
    prompt_len = rounds[-1][1]
    if row.phase == "prefill":
        limit = prefill_limit(model, profile, prompt_len=prompt_len) if profile else None
        return Measurement(
            phase="prefill",
            name=row.name,
            size=prompt_len,
            context=prompt_len,
            ranks=1,
            num_drafts=0,
            num_tokens=prompt_len,
            step_s=tuple(stats.prefill_s for stats, _ in rounds),
            limit=limit,
        )
    steps = sum(stats.num_decode_steps for stats, _ in rounds)
    request_steps = sum(stats.num_decode_rows for stats, _ in rounds)
    tokens = sum(stats.num_decode_tokens for stats, _ in rounds)
    verified = sum(stats.num_draft_tokens for stats, _ in rounds) / request_steps
    context = prompt_len + row.num_tokens // 2
    limit = None
    if profile is not None:
        limit = decode_limit(
            model,
            profile,
            num_requests=len(row.prompts),
            context=context,
            num_verified_drafts=round(verified),
        )
    return Measurement(
        phase="decode",
        name=row.name,
        size=len(row.prompts),
        context=context,
        ranks=1,
        num_drafts=verified,
        num_tokens=tokens / steps,
        step_s=tuple(stats.decode_s / stats.num_decode_steps for stats, _ in rounds),
        accepted_length=tokens / request_steps,
        limit=limit,
    )
