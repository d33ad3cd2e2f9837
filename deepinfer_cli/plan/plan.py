"""``Plan``: the definition of every number in a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deepinfer.engine.types import MemoryPlan
from deepinfer_cli.report.report import Distribution, InputFacts, SettingReport, says

SCHEMA = "deepinfer.plan/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingRow:
    """The first row with a kind of error."""

    line: int
    id: str
    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherField:
    """A field without effect, in rows that can be answered."""

    name: str
    rows: int
    line: int = says("of the first row that has it")
    meant: str | None = says("a field of nearly the same name that has an effect")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Seconds on this machine, under the load it had when it was measured."""

    basis: str = says("what the step times and answer lengths come from")
    load_s: float
    answer_s: float = says("from then until the last row")
    answer_low_s: float = says("the shortest of 40 draws of the answers' lengths")
    answer_high_s: float = says("the longest of them")
    cpu_s: float | None = says("processor time of the process meanwhile; null if not measured")
    prefill_steps: int
    decode_steps: int
    answers_at_a_time: float = says("mean over the decode steps")
    answer_tokens: int
    answer_tokens_per_s: float
    answer_lengths: Distribution
    num_lengths: int | None = says(
        "answers whose end was seen, from which lengths are drawn; null if all lengths are given"
    )
    guessed_share: float = says(
        "share of answers that are longer than any seen in the measurement, if it cut some"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What ``deepinfer run`` would do with the same arguments."""

    schema: str
    input: InputFacts
    model: str
    device: str
    rows: int
    failing: int
    kinds: Mapping[str, int] = says("rows that can be answered, by the kind of their prompt")
    errors: Mapping[str, int] = says("rows that cannot, by kind of error")
    examples: tuple[FailingRow, ...]
    answers: int = says("answers of all rows together (n of each)")
    prompt_tokens: int
    shared_tokens: int = says("prompt tokens that the prefix cache will save, with a cold start")
    prompt_lengths: Distribution
    answer_limits: Distribution = says("the most tokens that each answer may have")
    memory: MemoryPlan
    fitting: int = says("answers at a time that the caches hold at these lengths")
    estimate: Estimate | None = says("null without rows, or with --calibrate 0")
    row_notes: Mapping[str, int] = says("rows that get something else than they ask, by what")
    other_fields: tuple[OtherField, ...] = says("the first of them")
    notes: Mapping[str, str] = says("settings that could not be followed, and why")
    settings: Mapping[str, SettingReport]
