"""Prints a plan as a few lines of text and a small histogram."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from typing import TextIO

from deepinfer.errors import on_one_line
from deepinfer_cli.report.pages.svg import histogram_bars
from deepinfer_cli.report.pages.words import count, counted, percent, seconds, size
from deepinfer_cli.report.report import Distribution

from .estimate import NUM_DRAWS
from .plan import Estimate, Plan

_LABEL = 11
_MOST_BARS = 8
_WIDEST_BAR = 40


def print_plan(plan: Plan, stream: TextIO) -> None:
    """Write the plan, wrapped to the width of the terminal."""
    width = max(40, min(shutil.get_terminal_size((100, 24)).columns, 110))
    lines = []
    for label, text in plan_lines(plan):
        head = f"{label:<{_LABEL}} "
        indent = " " * len(head)
        wrapped = textwrap.wrap(
            head + on_one_line(text), width, subsequent_indent=indent, break_on_hyphens=False
        )
        lines += wrapped or [head]
    if plan.prompt_lengths.num > 1:
        which = " that can be answered" if plan.failing else ""
        title = f"prompt tokens of the {count(plan.prompt_lengths.num)} rows{which}"
        lines += ["", *textwrap.wrap(title, width), *_bars(plan.prompt_lengths, width, stream)]
    stream.write("\n".join(lines) + "\n")


def plan_lines(plan: Plan) -> Iterator[tuple[str, str]]:
    rows = f"{count(plan.rows)} in {plan.input.name}"
    kinds = ", ".join(f"{name} {count(num)}" for name, num in plan.kinds.items())
    if kinds and plan.failing:
        rows += f"; {count(sum(plan.kinds.values()))} can be answered"
    yield "rows", rows + (f": {kinds}" if kinds else "")
    if plan.failing:
        share = percent(plan.failing / plan.rows)
        yield "will fail", f"{count(plan.failing)} ({share})"
        for row in plan.examples:
            yield (
                "",
                f"{row.kind} {count(plan.errors[row.kind])}, first in line {row.line}: "
                + (row.message),
            )
    yield from _note_lines(plan)
    if plan.answers:
        prompts = f"{count(plan.prompt_tokens)} tokens, {_spread(plan.prompt_lengths)}"
        if plan.shared_tokens:
            prompts += f"; {count(plan.shared_tokens)} of them shared, computed once"
        yield "prompts", prompts
        yield "answers", _answers(plan)
    memory = plan.memory
    yield (
        "memory",
        f"{size(memory.weight_bytes + memory.cache_bytes)}: weights {size(memory.weight_bytes)}, "
        f"caches {size(memory.cache_bytes)} for {count(memory.cache_tokens)} tokens; "
        f"{counted(plan.fitting, 'answer')} at a time, {count(memory.max_num_seqs)} at most",
    )
    for name, note in plan.notes.items():
        yield "note", f"{name}: {note}"
    if plan.estimate is not None:
        yield from _estimate_lines(plan.estimate)


def _note_lines(plan: Plan) -> Iterator[tuple[str, str]]:
    """Lines about fields without effect, and changed values."""
    others = dict(plan.row_notes)
    if fields := others.pop("ignored_fields", 0):
        yield "fields", f"without effect in {counted(fields, 'row')}:"
        for field in plan.other_fields:
            meant = f" (did you mean {field.meant}?)" if field.meant else ""
            yield (
                "",
                f"{field.name} in {counted(field.rows, 'row')}, first in line {field.line}{meant}",
            )
    if others:
        words = ", ".join(f"{name} in {counted(num, 'row')}" for name, num in others.items())
        yield "changed", f"not as the row asks (results say why): {words}"


def _answers(plan: Plan) -> str:
    most = plan.answer_limits.max
    found = plan.estimate
    if found is None:
        return f"{count(plan.answers)}, of at most {count(most)} tokens"
    lengths = found.answer_lengths
    text = f"{count(plan.answers)}, about {count(found.answer_tokens)} tokens, {_spread(lengths)}"
    if found.guessed_share > 0.02:
        text += f"; {percent(found.guessed_share)} of the lengths are a guess: these answers were "
        text += "cut when measuring ended (a longer --calibrate knows more)"
    return text


def _estimate_lines(found: Estimate) -> Iterator[tuple[str, str]]:
    steps = found.prefill_steps + found.decode_steps
    yield (
        "steps",
        f"about {count(steps)}: {count(found.prefill_steps)} of prefill, "
        f"{count(found.decode_steps)} of decode with {counted(found.answers_at_a_time, 'answer')}",
    )
    yield (
        "time",
        f"about {seconds(found.load_s + found.answer_s)}: {seconds(found.load_s)} to load, "
        f"{seconds(found.answer_s)} to answer ({count(round(found.answer_tokens_per_s))} tokens/s)",
    )
    if found.num_lengths:  # without known lengths, the range would be meaningless
        low, high = (seconds(found.load_s + s) for s in (found.answer_low_s, found.answer_high_s))
        yield (
            "range",
            f"{low} to {high} in {NUM_DRAWS} draws from the lengths of "
            f"{counted(found.num_lengths, 'answer')}; other work on this machine adds to it",
        )
    yield "measured", f"by {found.basis}"


def _spread(lengths: Distribution) -> str:
    return f"median {count(lengths.p50)}, longest {count(lengths.max)}"


def _bars(lengths: Distribution, width: int, stream: TextIO) -> Iterator[str]:
    bars = histogram_bars(lengths.buckets, "", most=_MOST_BARS)
    block = "█" if "utf" in (getattr(stream, "encoding", None) or "").lower() else "#"
    spans = [bar.hint.partition(" :")[0] for bar in bars]
    head = max(map(len, spans))
    room = min(_WIDEST_BAR, width - head - 14)
    top = max(bar.value for bar in bars)
    for span, bar in zip(spans, bars, strict=True):
        length = round(room * bar.value / top)
        drawn = block * max(length, 1 if bar.value else 0)
        yield f"  {span:>{head}}  {drawn} {count(bar.value)}".rstrip()
