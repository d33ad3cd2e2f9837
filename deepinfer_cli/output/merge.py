"""``deepinfer merge``: combines the outputs of all shards into that of an unsharded run."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from deepinfer.errors import ConfigError, InputError, on_one_line
from deepinfer_cli.input.sharding import Shard, shards_beside
from deepinfer_cli.report.merged import merged_report
from deepinfer_cli.report.report import Report, encode_report
from deepinfer_cli.settings.settings import FIELDS
from deepinfer_cli.stdio import data_stream, say

from .basis import Basis
from .finished_rows import FinishedRow, finished_report, finished_rows, setting
from .journal import Record
from .partial import PartialFolder
from .paths import OutputPaths, check_inputs_are_safe
from .writer import output_format, publish, write_files

_FILES_OF_A_SHARD = 3
_OTHER_FILES = 64


@dataclass(frozen=True, slots=True)
class ShardOutput:
    """The output of one shard."""

    shard: Shard
    paths: OutputPaths
    report: Report

    @property
    def num_rows(self) -> int:
        return self.report.rows.input


def merge(output: Path, files: Sequence[Path], *, force: bool, as_json: bool) -> int:
    """Write the rows of all shards to ``output``, in input order and bounded memory.

    files: the shards' results; if empty, those in the folder of ``output`` with its name.
    Returns the exit code.  Raises: InputError about the shards, ConfigError about the output.
    """
    format = output_format(output, takes_stdout=False)
    if as_json:
        data_stream()  # checked before anything is written
    outputs = open_shards(output, files)
    paths = OutputPaths(output)
    for shard in outputs:
        own = shard.paths
        check_inputs_are_safe([own.results, own.errors, own.report], paths.written)
    _allow_files(_FILES_OF_A_SHARD * len(outputs) + _OTHER_FILES)
    with PartialFolder(paths) as folder:
        folder.begin(Basis({}, verb="merge"), force=force, can_retry=False)
        try:
            report = _write(outputs, folder, format)
        finally:
            folder.remove()
    if as_json:
        data_stream().buffer.write(encode_report(report) + b"\n")
    else:
        rows = report.rows
        failed = f", {rows.errors:,} failed" if rows.errors else ""
        merged = f"merged {len(outputs)} shards, {rows.input:,} rows{failed}: {output}"
        say(on_one_line(merged))
    return report.exit_code


def _write(outputs: Sequence[ShardOutput], folder: PartialFolder, format: str) -> Report:
    records = (
        Record(row.index, b"", row.is_error, {}, row.payload) for row in _rows(outputs, folder.path)
    )
    num_rows = write_files(records, folder.path, format)
    report = merged_report(folder.paths.results, [shard.report for shard in outputs])
    if num_rows != report.rows.input:
        raise InputError(
            f"the shards' reports count {report.rows.input:,} rows, their files hold "
            f"{num_rows:,}; one of the files was changed"
        )
    has_errors = report.rows.errors > 0
    publish(folder.path, folder.paths, encode_report(report), has_errors=has_errors)
    return report


def open_shards(output: Path, files: Sequence[Path]) -> list[ShardOutput]:
    """All shards of one run, in order.

    Raises: InputError if one is missing, given twice, unfinished, or of another run.
    """
    files = list(files) or _named_after(output)
    outputs = sorted((_open(path) for path in files), key=lambda shard: shard.shard.number)
    first = outputs[0]
    for other in outputs:
        _check_same_run(first, other)
    for one, two in zip(outputs, outputs[1:], strict=False):
        if one.shard == two.shard:
            raise InputError(
                f"{one.paths.results} and {two.paths.results} are both shard {one.shard}; "
                "give each shard once"
            )
    missing = sorted(set(range(1, first.shard.count + 1)) - {o.shard.number for o in outputs})
    if missing:
        named = ", ".join(f"{number}/{first.shard.count}" for number in missing[:8])
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        raise InputError(f"shards are missing: {named}{more}; {_where(output, missing, first)}")
    total = sum(shard.num_rows for shard in outputs)
    for shard in outputs:
        if shard.num_rows != shard.shard.num_rows(total):
            raise InputError(
                f"{shard.paths.results} has {shard.num_rows:,} rows; as shard {shard.shard} of "
                f"{total:,} rows it should have {shard.shard.num_rows(total):,}: it was made from "
                "another input"
            )
    return outputs


def _rows(outputs: Sequence[ShardOutput], scratch: Path) -> Iterator[FinishedRow]:
    """Interleave the shards: row i is the next row of shard i modulo their number."""
    iterators = [finished_rows(o.paths, o.report, o.shard, scratch) for o in outputs]
    for index in range(sum(shard.num_rows for shard in outputs)):
        turn = index % len(outputs)
        row = next(iterators[turn], None)
        if row is None:
            raise InputError(f"{outputs[turn].paths.results} has lost rows")
        yield row
    for shard, iterator in zip(outputs, iterators, strict=True):
        if next(iterator, None) is not None:
            raise InputError(f"{shard.paths.results} has more than its {shard.num_rows:,} rows")


def _open(path: Path) -> ShardOutput:
    if not path.name:
        raise InputError(f"{path} is a folder; give the results of the shards")
    paths = OutputPaths(path)
    if paths.partial.is_dir():
        raise InputError(
            f"{path} is not finished (deepinfer status {path} says more); run that shard again"
        )
    if not path.is_file():
        raise InputError(f"there is no {path}")
    report = finished_report(paths)
    shard = setting(report, "shard")
    if not isinstance(shard, str):
        raise InputError(f"{path} is not a shard: it was made without --shard")
    return ShardOutput(Shard.of(shard), paths, report)


def _check_same_run(first: ShardOutput, other: ShardOutput) -> None:
    names = (first.paths.results, other.paths.results)
    if first.shard.count != other.shard.count:
        raise InputError(
            f"{names[0]} is shard {first.shard}, {names[1]} shard {other.shard} of another run"
        )
    digests = [shard.report.input.digest for shard in (first, other)]
    if digests[0] != digests[1]:
        raise InputError(f"{names[0]} and {names[1]} were made from different inputs")
    for what, one, two in _origins(first.report, other.report):
        if one is not None and two is not None and one != two:
            raise InputError(
                f"{names[0]} and {names[1]} were made by different {what}: {one} and {two}"
            )
    answers = [name for name in FIELDS if FIELDS[name].metadata["answers"] and name != "shard"]
    for name in answers:
        one, two = setting(first.report, name), setting(other.report, name)
        if one != two:
            raise InputError(
                f"{names[0]} and {names[1]} were made with different settings: "
                f"{name} is {one!r} and {two!r}"
            )


def _origins(first: Report, other: Report) -> Iterator[tuple[str, str | None, str | None]]:
    """What the rows depend on, by name; None if a shard had no rows."""
    versions = (first.versions.get("deepinfer"), other.versions.get("deepinfer"))
    yield "versions of deepinfer", *versions
    yield "models (their fingerprints)", first.model_fingerprint, other.model_fingerprint
    digests = (first.constraint_digest, other.constraint_digest)
    yield "constraints (--regex, --grammar or --json-schema, files included)", *digests


def _named_after(output: Path) -> list[Path]:
    found = shards_beside(output)
    if not found:
        example = Shard(1, 8).path(output)
        raise InputError(f"no shards of {output} found, such as {example}; give their names")
    counts = sorted({shard.count for shard in found.values()})
    if len(counts) > 1:
        listed = ", ".join(map(str, counts))
        raise InputError(
            f"found shards of several runs (of {listed}); give the names of those to merge"
        )
    return list(found)


def _where(output: Path, missing: Sequence[int], first: ShardOutput) -> str:
    shard = Shard(missing[0], first.shard.count)
    return f"deepinfer run --shard {shard} writes {shard.path(output)}; run it, or give its name"


def _allow_files(number: int) -> None:
    """Raise the soft limit on open files.  Raises: ConfigError if the hard limit forbids it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= number or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and hard < number:
        raise ConfigError(f"merging opens {number:,} files, but the limit is {hard:,} (ulimit -n)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
