"""Parquet files: every type of column, and every kind of damage."""

from __future__ import annotations

import io
import json
import random
from contextlib import closing
from datetime import timedelta
from decimal import Decimal as D
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from input_rows import fields_of, read_input

from deepinfer.errors import InputError, RowError
from deepinfer_cli.input.reader import open_reader
from deepinfer_cli.input.rows import error_row


def test_parquet_shapes(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi", "name": None}]
    columns = {
        "prompt": pa.array(["a", None, "c"], pa.large_string()),
        "kind": pa.array(["x", "y", "x"]).dictionary_encode(),
        "messages": pa.array([None, messages, None]),
        "prompt_token_ids": pa.array([None, None, [1, 2]], pa.large_list(pa.int32())),
        "score": pa.array([float("nan"), 1.5, None]),
        "when": pa.array([0, 1, 2], pa.timestamp("s")),
        "raw_bytes": pa.array([b"ok", b"\xff", None]),
        "tools": pa.array(['[{"type": "function"}]', "not json", None]),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=2)
    reader = open_reader(str(tmp_path / "a.parquet"))
    assert (reader.num_rows, reader.format) == (3, "parquet")
    first, second, third = fields_of(list(reader.rows))
    assert first == {
        "prompt": "a", "kind": "x", "when": "1970-01-01T00:00:00", "raw_bytes": "ok",
        "tools": [{"type": "function"}],
    }  # fmt: skip
    assert second["messages"] == [{"role": "user", "content": "hi"}]
    assert (second["score"], second["raw_bytes"], second["tools"]) == (1.5, "/w==", "not json")
    assert third["prompt_token_ids"] == [1, 2] and "messages" not in third


def test_parquet_damaged_inside_gives_the_rows_before(tmp_path: Path) -> None:
    table = pa.table({"prompt": [f"{i} {'x' * 50}" for i in range(4_000)]})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=1_000, compression="gzip", use_dictionary=False)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 2_000] = bytes(2_000)
    path.write_bytes(data)
    rows = []
    wanted = pytest.raises(InputError, match=r"after row [\d,]+")
    with closing(open_reader(str(path))) as reader, wanted:
        for row in reader.rows:
            rows.append(row)
    assert fields_of(rows) == [{"prompt": f"{i} {'x' * 50}"} for i in range(len(rows))]
    assert 1_000 <= len(rows) < 4_000


def test_any_damage_to_parquet_is_an_input_error_or_none(tmp_path: Path) -> None:
    chat = [[{"role": "user", "content": "x" * index}] for index in range(200)]
    table = pa.table({"prompt": [f"row {index}" for index in range(200)], "messages": chat})
    text = io.BytesIO()
    pq.write_table(table, text, row_group_size=64)
    whole = text.getvalue()
    chance = random.Random(3)
    outcomes = set()
    for case in range(120):
        data = bytearray(whole)
        if case % 3 == 0:
            del data[chance.randrange(len(data)) :]
        reach = len(data) if case % 3 == 1 else 1_200  # the footer describes all the rest
        for _ in range(chance.randrange(1, 6)):
            if data:
                data[-chance.randrange(1, min(reach, len(data)) + 1)] = chance.randrange(256)
        try:
            outcomes.add(len(read_input(tmp_path / "a.parquet", bytes(data))))
        except InputError:
            outcomes.add(-1)
    assert {-1, 200} <= outcomes


_COLUMNS = {
    "text": pa.string(), "large": pa.large_string(), "number": pa.float32(), "when": pa.date32(),
    "list": pa.list_(pa.large_string()), "map": pa.map_(pa.string(), pa.int8()),
    "struct": pa.struct([("a", pa.binary()), ("b", pa.list_(pa.bool_()))]), "null": pa.null(),
    "decimal": pa.decimal128(9, 2), "fixed": pa.list_(pa.int64(), 2), "gone": pa.duration("ms"),
}  # fmt: skip
_CELLS = {
    "text": st.text(st.characters(codec="utf-8"), max_size=5),
    "large": st.text(st.characters(codec="utf-8"), max_size=5),
    "number": st.floats(width=32),
    "when": st.dates(),
    "list": st.lists(st.sampled_from(["a", None]), max_size=3),
    "map": st.dictionaries(st.sampled_from("ab"), st.integers(-9, 9)).map(
        lambda d: list(d.items())
    ),
    "struct": st.fixed_dictionaries({"a": st.binary(max_size=3), "b": st.just([True])}),
    "null": st.none(),
    "decimal": st.decimals(-99, 99, places=2),
    "fixed": st.just([1, 2]),
    "gone": st.timedeltas(timedelta(0), timedelta(days=9)).map(
        lambda delta: delta - timedelta(microseconds=delta.microseconds % 1_000)
    ),
}


@given(data=st.data(), names=st.lists(st.sampled_from(sorted(_COLUMNS)), unique=True, min_size=1))
@settings(max_examples=60, deadline=None)
def test_every_shape_of_parquet_gives_rows_of_json(
    data: st.DataObject, names: list[str], tmp_path_factory: Any
) -> None:
    size = data.draw(st.integers(1, 9))
    table = pa.table(
        {
            name: pa.array(
                data.draw(st.lists(st.none() | _CELLS[name], min_size=size, max_size=size)),
                _COLUMNS[name],
            )
            for name in names
        }
    )
    path = tmp_path_factory.getbasetemp() / "shapes.parquet"
    pq.write_table(table, path, row_group_size=3)
    rows = read_input(path)
    assert [row.index for row in rows] == list(range(size))
    for row in rows:
        assert row.error is None
        assert set(json.loads(row.raw)) == set(names)
        json.dumps(row.fields, allow_nan=False)


def test_decimals_are_numbers_in_fields_that_take_numbers(tmp_path: Path) -> None:
    columns = {
        "limit": pa.array([D("5.00"), D("2.50"), None], pa.decimal128(9, 2)),
        "price": pa.array([D("5.00"), D("2.50"), None], pa.decimal128(9, 2)),
        "temperature": pa.array([D("0.70"), D(1), D(0)], pa.decimal128(3, 2)),
        "seed": pa.array([D(2**64 - 1), D(0), D(10**60)], pa.decimal256(70, 0)),
        "stop_token_ids": pa.array([[D(3)], [D(4)], None], pa.list_(pa.decimal128(9, 0))),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    rows = read_input(tmp_path / "a.parquet", mapping={"max_tokens": "limit"})
    assert fields_of(rows) == [
        {"price": "5.00", "temperature": 0.7, "seed": 2**64 - 1, "stop_token_ids": [3],
         "max_tokens": 5},
        {"price": "2.50", "temperature": 1, "seed": 0, "stop_token_ids": [4], "max_tokens": 2.5},
        "missing_field",
    ]  # fmt: skip
    assert json.loads(rows[2].raw)["seed"] == 10**60


def test_json_text_is_read_after_columns_were_mapped(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "hi"}]
    text = json.dumps(chat)
    pq.write_table(pa.table({"chat": [text], "messages": [text]}), tmp_path / "a.parquet")
    mapping = {"messages": "chat", "note": "messages"}
    [row] = read_input(tmp_path / "a.parquet", mapping=mapping)
    assert row.fields == {"messages": chat, "note": text}
    again = error_row(row, RowError("too_long", "why"))
    assert fields_of(read_input(tmp_path / "b.jsonl", again, mapping=mapping)) == [
        {"id": "1", "messages": chat, "note": text}
    ]


def test_a_prompt_of_bytes_that_are_no_text_is_refused(tmp_path: Path) -> None:
    """Not answered as base64; under whatever name it has, and again when its error row is given."""
    blobs = pa.array([b"caf\xc3\xa9", b"\xff\xfe", None], pa.binary())
    pq.write_table(pa.table({"prompt": blobs, "other": blobs}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"blob": blobs}), tmp_path / "b.parquet")
    for name, mapping in (("a", {}), ("b", {"prompt": "blob"})):
        good, bad, _ = read_input(tmp_path / f"{name}.parquet", mapping=mapping)
        assert good.fields is not None and good.fields["prompt"] == "café"
        assert bad.error is not None and bad.error.kind == "invalid_utf8"
        again = read_input(tmp_path / "again.jsonl", error_row(bad, bad.error) + b"\n")
        assert fields_of(again) == ["invalid_utf8"]


def test_other_columns_may_hold_any_bytes(tmp_path: Path) -> None:
    table = pa.table({"prompt": ["a"], "other": pa.array([b"\xff\xfe"])})
    pq.write_table(table, tmp_path / "a.parquet")
    assert fields_of(read_input(tmp_path / "a.parquet")) == [{"prompt": "a", "other": "//4="}]


def test_values_beyond_those_of_python_cost_no_row(tmp_path: Path) -> None:
    """Exports mark "never" by dates that only Arrow knows."""
    columns = {
        "prompt": ["a", "b"],
        "born": pa.array([-(10**6), 0], pa.date32()),
        "seen": pa.array([0, 2**58], pa.timestamp("ms")),
        "took": pa.array([2**62, 1], pa.duration("s")),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    first, second = fields_of(list(open_reader(str(tmp_path / "a.parquet")).rows))
    assert (first["prompt"], first["born"]) == ("a", "-0768-02-04")
    assert (second["prompt"], second["born"]) == ("b", "1970-01-01")
    assert first["seen"] == "1970-01-01T00:00:00" and "out of range" in second["seen"]
    assert str(2**62) in first["took"]


def test_a_cell_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    columns = {
        "prompt": ["a", "b"],
        "zone": pa.array([None, 1], pa.timestamp("us", tz="Nowhere/Land")),
        "text": pa.array([b"\xff", b"ok"]).cast(pa.string(), safe=False),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    rows = list(open_reader(str(tmp_path / "a.parquet")).rows)
    assert [str(row.error).split(":")[0] for row in rows] == ["text", "zone"]
    assert [row.error.kind for row in rows if row.error] == ["invalid_utf8", "invalid_value"]
