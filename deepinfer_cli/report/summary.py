"""Sums up finished rows in bounded memory: counts, tokens, lengths, errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from deepinfer_cli.output.journal import Record

from .report import Distribution, Report

_EXACT = 64
_STEPS = 16  # buckets per power of two


class Histogram:
    """A histogram of integers: exact below 64, within about 6 % above."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.total = 0
        self.num = 0
        self.low = self.high = 0

    def add(self, value: int) -> None:
        self.low = min(self.low, value) if self.num else value
        self.high = max(self.high, value)
        self.num += 1
        self.total += value
        self.counts[_bucket(value)] += 1

    def add_all(self, other: Distribution) -> None:
        """Add another histogram, exact except for the last digits of the mean."""
        if not other.num or other.min is None or other.max is None or other.mean is None:
            return
        self.low = min(self.low, other.min) if self.num else other.min
        self.high = max(self.high, other.max)
        self.num += other.num
        self.total += round(other.mean * other.num)
        for edge, count in other.buckets:
            self.counts[edge] += count

    def percentile(self, percent: float) -> int:
        """The upper edge of the bucket with that percentile."""
        wanted = max(1, self.num * percent / 100)
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= wanted:
                return min(bucket, self.high)
        return self.high

    def report(self) -> Distribution:
        if not self.num:
            return Distribution(num=0)
        return Distribution(
            num=self.num,
            mean=round(self.total / self.num, 2),
            min=self.low,
            p50=self.percentile(50),
            p90=self.percentile(90),
            p99=self.percentile(99),
            max=self.high,
            buckets=tuple((edge, self.counts[edge]) for edge in sorted(self.counts)),
        )


def _bucket(value: int) -> int:
    """The largest value in the bucket of ``value``."""
    if value < _EXACT:
        return value
    width = 1 << (value.bit_length() - 1 - _STEPS.bit_length() + 1)
    return value // width * width + width - 1


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of a summary that progress and throughput need."""

    results: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def rows(self) -> int:
        return self.results + self.errors

    def __sub__(self, before: Counts) -> Counts:
        return Counts(
            self.results - before.results,
            self.errors - before.errors,
            self.prompt_tokens - before.prompt_tokens,
            self.completion_tokens - before.completion_tokens,
        )


class Summary:
    """Sums over many records."""

    def __init__(self) -> None:
        self.results = 0
        self.errors: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.finish_reasons: Counter[str] = Counter()
        self.constraints: Counter[str] = Counter()
        self.warnings: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()
        self.prompt_lengths = Histogram()
        self.answer_lengths = Histogram()
        self.queued_ms = Histogram()
        self.ttft_ms = Histogram()
        self.prefill_ms = Histogram()
        self.decode_ms = Histogram()
        self.total_ms = Histogram()
        self.tokens_per_s = Histogram()
        self.preemptions = 0
        self.drafts = 0
        self.accepted = 0
        self.num_retold = 0

    @property
    def num_errors(self) -> int:
        return self.errors.total()

    @property
    def num_rows(self) -> int:
        return self.results + self.num_errors

    @property
    def acceptance(self) -> float | None:
        """The fraction of drafted tokens that were accepted; None without drafts."""
        return self.accepted / self.drafts if self.drafts else None

    def counts(self) -> Counts:
        tokens = self.tokens
        return Counts(
            self.results, self.num_errors, tokens["prompt_tokens"], tokens["completion_tokens"]
        )

    def add(self, record: Record) -> None:
        facts = record.facts
        if record.is_error:
            self.errors[facts["error"]] += 1
            return
        self.results += 1
        self.num_retold += facts.get("retold", False)
        self.kinds[facts["kind"]] += 1
        for name, count in facts["tokens"].items():
            self.tokens[name] += count
        for counter, words in (
            (self.finish_reasons, facts["finish"]),
            (self.constraints, facts["constraints"]),
            (self.warnings, facts["warnings"]),
            (self.notes, facts["notes"]),
        ):
            for word in words:
                counter[word] += 1
        self.prompt_lengths.add(facts["tokens"]["prompt_tokens"])
        for length in facts["lengths"]:
            self.answer_lengths.add(length)
        self.preemptions += facts["preemptions"]
        self.drafts += facts["drafts"][0]
        self.accepted += facts["drafts"][1]
        for timing, length in zip(facts.get("timing", ()), facts["lengths"], strict=False):
            self._add_timing(timing, length)

    def add_untold(self, finished: Report) -> None:
        """Add what rows that ``--retry-failed`` took over from ``finished`` do not have themselves,
        provided that all of them are still there."""
        if self.num_retold != finished.rows.results:
            return
        self.tokens["cached_tokens"] += finished.tokens.cached_tokens
        self.preemptions += finished.preemptions
        self.drafts += finished.speculation.drafted_tokens
        self.accepted += finished.speculation.accepted_tokens
        latency = finished.latency_ms
        for histogram, distribution in (
            (self.answer_lengths, finished.lengths.answer),
            (self.queued_ms, latency.queued),
            (self.prefill_ms, latency.prefill),
            (self.ttft_ms, latency.first_token),
            (self.decode_ms, latency.decode),
            (self.total_ms, latency.finished),
            (self.tokens_per_s, finished.answer_tokens_per_s),
        ):
            histogram.add_all(distribution)

    def _add_timing(self, timing: Mapping[str, float], length: int) -> None:
        queued_s, first_s, total_s = timing["queued_s"], timing["ttft_s"], timing["total_s"]
        for histogram, seconds in (
            (self.queued_ms, queued_s),
            (self.prefill_ms, first_s - queued_s),
            (self.ttft_ms, first_s),
            (self.decode_ms, total_s - first_s),
            (self.total_ms, total_s),
        ):
            histogram.add(round(seconds * 1_000))
        if total_s > first_s and length > 1:
            self.tokens_per_s.add(round((length - 1) / (total_s - first_s)))
