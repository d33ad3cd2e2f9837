"""``Scan``: one pass over the input that prepares every row as a run would, and keeps
statistics."""

from __future__ import annotations

import difflib
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from deepinfer.dry_run import DryRun
from deepinfer.engine.cache.prefix_forecast import PrefixForecast
from deepinfer.engine.limits.estimate import PlannedRequest
from deepinfer.errors import RowError
from deepinfer.recipes.known_fields import KNOWN_FIELDS
from deepinfer.rows.assemble import RowInFlight
from deepinfer_cli.input.input_meter import InputMeter
from deepinfer_cli.input.reader import Reader
from deepinfer_cli.input.rows import InputRow, fields_with_id
from deepinfer_cli.input.sharding import Shard
from deepinfer_cli.output.results import without_carried
from deepinfer_cli.report.summary import Histogram
from deepinfer_cli.settings.settings import Settings

from .plan import FailingRow, OtherField

_SAMPLE_BYTES = 64 * 2**20
_SEED = 1
_MOST_OTHER_FIELDS = 32
_NEARLY = 0.8  # difflib's ratio; below it a name is not considered a misspelling


class Scan:
    """Statistics of all rows, with 16 bytes per answer, and a uniform sample of the rows.

    As in a run with the same settings, ``limit`` and ``shard`` apply.
    """

    def __init__(self, reader: Reader, dry_run: DryRun, settings: Settings, sample: int) -> None:
        self.input = InputMeter(reader.rows)
        self.num_rows = 0
        self.kinds: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.examples: dict[str, FailingRow] = {}
        self.notes: Counter[str] = Counter()
        self._other_fields: dict[str, list[int]] = {}  # by name: rows, first line
        self.prompt_lengths, self.answer_limits = Histogram(), Histogram()
        self.num_answers = self.prompt_tokens = self.shared_tokens = 0
        self.prepare_s = 0.0
        self.sample: list[tuple[int, Mapping[str, Any]]] = []
        self._sizes = array("I")  # per answer: prompt, computed prompt, limit, ignores EOS
        self._dry_run = dry_run
        self._settings = settings
        self._forecast = PrefixForecast(dry_run.config, dry_run.model_config.sliding_window)
        self._sample_size = sample
        self._sample_bytes = 0
        self._random = Random(_SEED)

    def run(self, constraint: Any) -> None:
        """Read the whole input.  Raises: InputError if it is damaged."""
        limit, shard = self._settings.limit, Shard.of(self._settings.shard)
        for row in self.input:
            if limit is not None and row.index >= limit:
                break
            if not shard.holds(row.index):
                continue
            self.num_rows += 1
            try:
                self._add(row, self._prepare(row, constraint))
            except RowError as error:
                self._fail(row, error)

    @property
    def other_fields(self) -> tuple[OtherField, ...]:
        """Fields without effect, in order of occurrence."""
        return tuple(
            OtherField(name=name, rows=rows, line=line, meant=_meant(name))
            for name, (rows, line) in self._other_fields.items()
        )

    def limits(self) -> Iterator[tuple[int, bool]]:
        """The maximum tokens of every answer, and whether it always uses all of them."""
        for most, endless in zip(self._sizes[2::4], self._sizes[3::4], strict=True):
            yield most, bool(endless)

    def requests(self, lengths: Sequence[int]) -> Iterator[PlannedRequest]:
        """Every answer as a ``PlannedRequest``, given its length."""
        columns = (self._sizes[0::4], self._sizes[1::4], lengths)
        for prompt, computed, length in zip(*columns, strict=True):
            yield PlannedRequest(prompt, computed, length)

    def _prepare(self, row: InputRow, constraint: Any) -> RowInFlight:
        if row.error is not None:
            raise row.error
        settings = self._settings
        began = time.perf_counter()
        try:
            return self._dry_run.prepare(
                row.index,
                fields_with_id(row),
                settings.sampling(),
                raw=settings.raw,
                thinking=settings.thinking,  # type: ignore[arg-type]
                constraint=constraint,
            )
        finally:
            self.prepare_s += time.perf_counter() - began

    def _add(self, row: InputRow, prepared: RowInFlight) -> None:
        token_ids = prepared.encoded.prompt_token_ids
        most = prepared.sampling.max_tokens
        assert most is not None  # bounded by the context
        self.kinds[prepared.encoded.kind] += 1
        self.prompt_lengths.add(len(token_ids))
        self.prompt_tokens += len(token_ids)
        for _ in prepared.seeds:
            hit = self._forecast.hit(token_ids)
            self.shared_tokens += hit.num_tokens
            self.answer_limits.add(most)
            endless = prepared.sampling.ignore_eos
            self._sizes.extend((len(token_ids), len(token_ids) - hit.start, most, endless))
            self.num_answers += 1
        self._note(row, prepared.notes)
        self._keep(row)

    def _note(self, row: InputRow, notes: Mapping[str, str]) -> None:
        """Count the notes that a run would write to the row."""
        notes = without_carried(notes, self._settings.carry)
        self.notes.update(notes.keys())
        for name in filter(None, notes.get("ignored_fields", "").split(", ")):
            if name in self._other_fields:
                self._other_fields[name][0] += 1
            elif len(self._other_fields) < _MOST_OTHER_FIELDS:
                self._other_fields[name] = [1, row.line]

    def _keep(self, row: InputRow) -> None:
        """Reservoir sampling: after n rows each is in the sample with the same probability."""
        seen = sum(self.kinds.values())
        place = len(self.sample)
        if place >= self._sample_size:
            place = self._random.randrange(seen)
        if place >= self._sample_size or self._sample_bytes + len(row.raw) > _SAMPLE_BYTES:
            return
        kept = (row.index, fields_with_id(row))
        if place < len(self.sample):
            self.sample[place] = kept
        else:
            self.sample.append(kept)
        self._sample_bytes += len(row.raw)

    def _fail(self, row: InputRow, error: RowError) -> None:
        self.errors[error.kind] += 1
        if error.kind not in self.examples:
            example = FailingRow(line=row.line, id=row.row_id, kind=error.kind, message=str(error))
            self.examples[error.kind] = example


def _meant(name: str) -> str | None:
    """The known field that ``name`` may be a misspelling of; None if ``name`` is itself a field,
    just not of that kind of row."""
    if name in KNOWN_FIELDS:
        return None
    known = difflib.get_close_matches(name.lower(), KNOWN_FIELDS, n=1, cutoff=_NEARLY)
    return known[0] if known else None
