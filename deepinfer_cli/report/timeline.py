"""``Timeline``: what was finished when, in a bounded number of equal time intervals."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from deepinfer_cli.output.journal import Record

_FIRST_WIDTH_S = 0.25
_MOST_STRETCHES = 96
_COUNTS = ("rows", "errors", "prompt_tokens", "completion_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineReport:
    """Sums per interval; the last one may be shorter than ``stretch_s``."""

    stretch_s: float = field(default=_FIRST_WIDTH_S, metadata={"help": "seconds of a stretch"})
    rows: tuple[int, ...] = ()
    errors: tuple[int, ...] = ()
    prompt_tokens: tuple[int, ...] = ()
    completion_tokens: tuple[int, ...] = ()


def joined(first: TimelineReport, second: TimelineReport) -> TimelineReport:
    """Concatenate two timelines, without the time between them; the last interval of each may be
    shorter."""
    width_s = max(first.stretch_s, second.stretch_s)
    counted: dict[str, tuple[int, ...]] = {
        name: tuple(
            total
            for part in (first, second)
            for total in _coarser(getattr(part, name), round(width_s / part.stretch_s))
        )
        for name in _COUNTS
    }
    while len(counted["rows"]) > _MOST_STRETCHES:
        counted, width_s = {n: _coarser(c, 2) for n, c in counted.items()}, 2 * width_s
    return TimelineReport(stretch_s=width_s, **counted)


def _coarser(counts: Sequence[int], times: int) -> tuple[int, ...]:
    """Sums of ``times`` adjacent values each."""
    return tuple(sum(counts[at : at + times]) for at in range(0, len(counts), times))


class Timeline:
    """Counts each record when it is added: a row counts when it finishes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._width_s = _FIRST_WIDTH_S
        self._stretches: list[list[int]] = []

    def start(self) -> None:
        """Start the clock; records added before go into the first interval."""
        self._began = self._clock()

    def add(self, record: Record) -> None:
        elapsed = self._clock() - self._began
        while elapsed >= self._width_s * _MOST_STRETCHES:
            self._merge()
        place = int(elapsed / self._width_s)
        while len(self._stretches) <= place:
            self._stretches.append([0] * len(_COUNTS))
        now = self._stretches[place]
        now[0] += 1
        if record.is_error:
            now[1] += 1
        else:
            now[2] += record.facts["tokens"]["prompt_tokens"]
            now[3] += record.facts["tokens"]["completion_tokens"]

    def report(self) -> TimelineReport:
        columns = zip(*self._stretches, strict=True) if self._stretches else [()] * len(_COUNTS)
        named = dict(zip(_COUNTS, map(tuple, columns), strict=True))
        return TimelineReport(stretch_s=self._width_s, **named)

    def _merge(self) -> None:
        """Double the length of intervals, and halve their number."""
        if len(self._stretches) % 2:
            self._stretches.append([0] * len(_COUNTS))
        pairs = zip(self._stretches[::2], self._stretches[1::2], strict=True)
        self._stretches = [[a + b for a, b in zip(*pair, strict=True)] for pair in pairs]
        self._width_s *= 2
