"""The journal gives back what was appended, whatever happens to its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer_cli.output.journal import Journal, JournalError, Record, digest

_RECORDS = st.lists(
    st.builds(
        Record,
        st.integers(0, 30),
        st.binary(min_size=8, max_size=8),
        st.booleans(),
        st.just({"tokens": 3}),
        st.binary(max_size=30).map(lambda raw: raw.replace(b"\n", b"\t")),
    ),
    max_size=20,
)


def _record(index: int, payload: bytes = b'{"a": "\t"}') -> Record:
    return Record(index, digest(b"%d" % index), index % 3 == 0, {"i": index}, payload)


def _last_of_each(records: list[Record]) -> dict[int, Record]:
    return {record.index: record for record in records}


@given(records=_RECORDS, more=_RECORDS)
@settings(max_examples=60, deadline=None)
def test_recovers_and_goes_on(
    records: list[Record], more: list[Record], tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    first = Journal(folder)
    for record in records:
        first.append(record)
    first.close()
    second = Journal(folder)
    assert list(second.recover()) == records
    for record in more:
        second.append(record)
    last = _last_of_each(records + more)
    assert list(second.in_input_order(31)) == [last[index] for index in sorted(last)]
    completed = list(second.in_completion_order(31))
    assert sorted(completed, key=lambda record: record.index) == [last[i] for i in sorted(last)]
    assert [second.finished(index) for index in range(31)] == [
        last[index].digest if index in last else None for index in range(31)
    ]
    second.close()


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_damage_costs_only_the_records_it_touches(
    data: st.DataObject, tmp_path_factory: Any
) -> None:
    """Flip bits and cut the file anywhere: untouched records come back, none comes back wrong."""
    folder = tmp_path_factory.mktemp("journal")
    records = [_record(index) for index in range(12)]
    journal = Journal(folder)
    for record in records:
        journal.append(record)
    journal.close()
    log = folder / "journal"
    whole = log.read_bytes()
    damaged = bytearray(whole)
    flips = data.draw(st.lists(st.integers(0, len(whole) * 8 - 1), max_size=4, unique=True))
    for bit in flips:
        damaged[bit // 8] ^= 1 << bit % 8
    cut = data.draw(st.integers(0, len(whole)))
    log.write_bytes(damaged[:cut])
    touched = {bit // 8 for bit in flips} | set(range(cut, len(whole)))
    edges = [0]
    for line in whole.splitlines(keepends=True):
        edges.append(edges[-1] + len(line))
    # A line is also lost with the newline before it, which then belongs to the line before.
    untouched = [
        record
        for record, start, end in zip(records, edges, edges[1:], strict=False)
        if not touched & set(range(max(0, start - 1), end))
    ]
    again = Journal(folder)
    found = list(again.recover())
    assert all(record in records for record in found)
    assert [record for record in found if record in untouched] == untouched
    again.append(_record(40))
    again.close()
    third = Journal(folder)
    assert list(third.recover()) == [*found, _record(40)]
    third.close()


def test_a_record_damaged_while_the_run_goes_on_is_noticed(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for index in range(3):
        journal.append(_record(index))
    data = bytearray((tmp_path / "journal").read_bytes())
    data[len(data) // 2] ^= 4
    (tmp_path / "journal").write_bytes(data)
    with pytest.raises(JournalError, match="run the same command again"):
        list(journal.in_input_order(3))
    journal.close()


def test_the_index_lives_on_disk(tmp_path: Path) -> None:
    """A far row costs no memory and leaves a sparse file."""
    journal = Journal(tmp_path)
    journal.append(_record(10_000_000))
    assert journal.finished(10_000_000) == digest(b"10000000")
    assert journal.finished(9_999_999) is None and journal.finished(10_000_001) is None
    assert list(journal.in_input_order(10)) == []
    journal.close()


def test_ten_megabyte_answers_are_kept(tmp_path: Path) -> None:
    big = _record(1, b'"' + b"x" * 10_000_000 + b'"')
    journal = Journal(tmp_path)
    journal.append(big)
    journal.append(_record(2))
    journal.close()
    again = Journal(tmp_path)
    assert list(again.recover()) == [big, _record(2)]
    assert again.record(1) == big
    again.close()
