"""Every kind of input file, and every kind of damage."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.errors import InputError, RowError
from deepinfer_cli.input.reader import open_reader
from deepinfer_cli.input.rows import InputRow, error_row

_ROWS = [{"prompt": f"question {i} é", "id": f"r{i}"} for i in range(50)]
_JSONL = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in _ROWS)


def _read(path: Path, data: bytes | None = None, **options: Any) -> list[InputRow]:
    if data is not None:
        path.write_bytes(data)
    with closing(open_reader(str(path), **options)) as reader:
        return list(reader.rows)


def _fields(rows: list[InputRow]) -> list[Any]:
    return [row.fields if row.error is None else row.error.kind for row in rows]


def test_jsonl_plain_gzip_and_zstd_are_the_same(tmp_path: Path) -> None:
    frames = zstandard.compress(_JSONL[:500]) + zstandard.compress(_JSONL[500:])
    members = gzip.compress(_JSONL[:500]) + gzip.compress(_JSONL[500:])
    for name, data in {"a.jsonl": _JSONL, "a.jsonl.gz": members, "a.jsonl.zst": frames}.items():
        rows = _read(tmp_path / name, data)
        assert _fields(rows) == _ROWS
        assert [row.index for row in rows] == list(range(50))
        assert [row.line for row in rows] == list(range(1, 51))


def test_compression_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    assert _fields(_read(tmp_path / "a.jsonl", gzip.compress(_JSONL))) == _ROWS
    assert _fields(_read(tmp_path / "b.gz", _JSONL)) == _ROWS


def test_bom_crlf_blank_lines_and_a_missing_last_newline(tmp_path: Path) -> None:
    data = b'\xef\xbb\xbf{"prompt":"a"}\r\n\r\n   \n{"prompt":"b"}\r\n\n{"prompt":"c"}'
    rows = _read(tmp_path / "a.jsonl", data)
    assert _fields(rows) == [{"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}]
    assert [(row.index, row.line) for row in rows] == [(0, 1), (1, 4), (2, 6)]


def test_lines_end_at_newlines_only(tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\u0085d\x1ce"
    data = json.dumps({"prompt": text}, ensure_ascii=False).encode() + b"\n"
    assert _fields(_read(tmp_path / "a.jsonl", data)) == [{"prompt": text}]


@pytest.mark.parametrize(
    "line, kind",
    [
        (b'{"prompt": "cut', "invalid_json"),
        (b'{"prompt": NaN}', "invalid_json"),
        (b'{"prompt": -Infinity}', "invalid_json"),
        (b"{'prompt': 1}", "invalid_json"),
        (b'{"a": 1} {"b": 2}', "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b'{"n": ' + b"9" * 10_000 + b"}", "invalid_json"),
        (b'{"prompt": "\xff"}', "invalid_utf8"),
        (b'{"prompt": "\xed\xa0\x80"}', "invalid_utf8"),
        (b"\x00\x00", "invalid_json"),
        (b'["prompt"]', "invalid_type"),
        (b'"prompt"', "invalid_type"),
        (b"null", "invalid_type"),
        (b"17", "invalid_type"),
    ],
)
def test_a_bad_line_is_one_error_row_with_its_text(tmp_path: Path, line: bytes, kind: str) -> None:
    good = b'{"prompt":"a"}'
    rows = _read(tmp_path / "a.jsonl", b"\n".join([good, line, good]))
    assert _fields(rows) == [{"prompt": "a"}, kind, {"prompt": "a"}]
    assert rows[1].error is not None
    text = error_row(rows[1], rows[1].error)
    again = _read(tmp_path / "errors.jsonl", text + b"\n")
    assert _fields(again) == [kind] and again[0].raw == line


def test_an_error_row_whose_input_cannot_be_written_again(tmp_path: Path) -> None:
    line = b'{"line": 1, "id": "a", "error": {}, "input": {"prompt": "x", "size": 1e400}}'
    rows = _read(tmp_path / "errors.jsonl", line + b'\n{"prompt":"b"}')
    assert _fields(rows) == ["invalid_json", {"prompt": "b"}]


def test_long_lines_are_refused_and_the_next_line_is_good(tmp_path: Path) -> None:
    exact = b'{"prompt":"' + b"x" * 87 + b'"}'
    assert len(exact) == 100
    data = exact + b"\n" + b"y" * 3_000_000 + b"\n" + exact + b"\r\n" + b"z" * 101
    rows = _read(tmp_path / "a.jsonl", data, max_row_bytes=100)
    kinds = [row.error.kind if row.error else "good" for row in rows]
    assert kinds == ["good", "line_too_long", "good", "line_too_long"]
    assert "3,000,001 bytes" in str(rows[1].error)
    assert len(rows[1].raw) < 10_000
    assert [row.line for row in rows] == [1, 2, 3, 4]


def test_a_long_line_that_begins_with_blanks_is_not_lost(tmp_path: Path) -> None:
    rows = _read(tmp_path / "a.jsonl", b" " * 10_000 + b'{"prompt":"a"}\n', max_row_bytes=5_000)
    assert _fields(rows) == ["line_too_long"]


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
@pytest.mark.parametrize("cut", [0.1, 0.5, 0.99])
def test_cut_compressed_files_give_what_is_there_and_then_an_error(
    tmp_path: Path, compress: Any, cut: float
) -> None:
    lines = b"".join(b'{"prompt":"%d"}\n' % (i * i * 7919) for i in range(30_000))
    data = compress(lines)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(data[: int(len(data) * cut)])
    rows = []
    wanted = pytest.raises(InputError, match=r"after line [\d,]+ the rest cannot be read")
    with closing(open_reader(str(path))) as reader, wanted:
        for row in reader.rows:
            rows.append(row)
    assert all(row.error is None for row in rows[:-1])
    assert [row.index for row in rows] == list(range(len(rows)))


def test_damaged_compressed_bytes_are_an_input_error(tmp_path: Path) -> None:
    for compress in (gzip.compress, zstandard.compress):
        data = bytearray(compress(_JSONL * 50))
        data[len(data) // 2] ^= 0xFF
        (tmp_path / "a.gz").write_bytes(data)
        with pytest.raises(InputError):
            rows = _read(tmp_path / "a.gz")
            # zstd frames without a checksum may decode to other bytes; then rows are bad instead
            if any(row.error for row in rows) or _fields(rows) != _ROWS * 50:
                raise InputError("other rows")


def test_unusable_inputs(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.parquet").write_bytes(b"not parquet")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and then nothing PAR1")
    for name in ("missing.jsonl", "folder", "a.parquet", "b.parquet"):
        with pytest.raises(InputError, match=name.split(".")[0]):
            _read(tmp_path / name)


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    assert _read(tmp_path / "a.jsonl", b"") == []
    assert _read(tmp_path / "b.csv", b"prompt\n") == []


def test_map_takes_fields_from_columns(tmp_path: Path) -> None:
    data = b'{"question":"q","prompt":"old"}\n{"other":1}\n'
    rows = _read(tmp_path / "a.jsonl", data, mapping={"prompt": "question"})
    assert _fields(rows) == [{"prompt": "q"}, "missing_field"]
    assert "'question'" in str(rows[1].error) and "other" in str(rows[1].error)
    assert rows[0].raw == b'{"question":"q","prompt":"old"}'


def test_csv(tmp_path: Path) -> None:
    data = (
        b'\xef\xbb\xbfid,question,temperature,messages\r\n7,"say ""hi""\nplease",0.5,\r\n'
        b'8,12,,"[{""role"": ""user""}]"\r\n9,short\r\n,\xff,,\r\n'
    )
    rows = _read(tmp_path / "a.csv", data, mapping={"prompt": "question"})
    assert _fields(rows) == [
        {"id": "7", "temperature": 0.5, "prompt": 'say "hi"\nplease'},
        {"id": "8", "messages": [{"role": "user"}], "prompt": "12"},
        "wrong_cell_count",
        "invalid_utf8",
    ]
    with pytest.raises(InputError, match="twice"):
        _read(tmp_path / "b.csv", b"a,a\n1,2\n")


@given(rows=st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1)), max_size=8))
@settings(max_examples=50, deadline=None)
def test_csv_cells_come_back(rows: list[tuple[str, str]], tmp_path_factory: Any) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([("prompt", "id"), *rows])
    data = text.getvalue()
    try:
        encoded = data.encode()
    except UnicodeEncodeError:
        return
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    try:
        found = _read(path, encoded)
    except InputError:
        assert "\0" in data
        return
    assert _fields(found) == [{"prompt": prompt, "id": row_id} for prompt, row_id in rows]


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
    first, second, third = _fields(list(reader.rows))
    assert first == {
        "prompt": "a", "kind": "x", "when": "1970-01-01T00:00:00", "raw_bytes": "ok",
        "tools": [{"type": "function"}],
    }  # fmt: skip
    assert second["messages"] == [{"role": "user", "content": "hi"}]
    assert (second["score"], second["raw_bytes"], second["tools"]) == (1.5, "/w==", "not json")
    assert third["prompt_token_ids"] == [1, 2] and "messages" not in third


@pytest.mark.parametrize("name", ["a.parquet", "a.csv"])
def test_a_key_twice_in_a_cell_of_json_is_an_error_row(tmp_path: Path, name: str) -> None:
    cells = ['[{"role": "user", "content": "x", "content": "y"}]', '[{"role": "user"}]']
    path = tmp_path / name
    if name.endswith(".csv"):
        quoted = ['"' + cell.replace('"', '""') + '"' for cell in cells]
        path.write_text("messages,other\n" + "".join(f"{q},{quoted[0]}\n" for q in quoted))
    else:
        pq.write_table(pa.table({"messages": cells, "other": [cells[0]] * 2}), path)
    with closing(open_reader(str(path))) as reader:
        bad, good = reader.rows
    assert bad.fields is None and bad.error is not None and bad.error.kind == "invalid_json"
    assert str(bad.error) == "messages: the key 'content' is there twice; keep one"
    assert cells[0] in json.loads(bad.raw).values()  # nothing of it is lost
    assert good.fields == {"messages": [{"role": "user"}], "other": cells[0]}
    again = b"".join(error_row(row, RowError("invalid_value", "")) + b"\n" for row in (bad, good))
    bad_again, good_again = _read(tmp_path / "again.jsonl", again)  # a mended error file is read so
    assert str(bad_again.error) == str(bad.error) and bad_again.raw == bad.raw
    assert good_again.fields is not None
    assert good_again.fields["messages"] == [{"role": "user"}]


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
    assert _fields(rows) == [{"prompt": f"{i} {'x' * 50}"} for i in range(len(rows))]
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
            outcomes.add(len(_read(tmp_path / "a.parquet", bytes(data))))
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
    rows = _read(path)
    assert [row.index for row in rows] == list(range(size))
    for row in rows:
        assert row.error is None
        assert set(json.loads(row.raw)) == set(names)
        json.dumps(row.fields, allow_nan=False)


def test_dataset_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list(_ROWS)
    data.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    assert _fields(_read(tmp_path / "saved")) == _ROWS
    datasets.DatasetDict({"train": data}).save_to_disk(str(tmp_path / "splits"))
    with pytest.raises(InputError, match=r"several splits \(train\)"):
        _read(tmp_path / "splits")
    assert _fields(_read(tmp_path / "splits" / "train")) == _ROWS
    data.select([4, 2]).save_to_disk(str(tmp_path / "selected"))
    assert _fields(_read(tmp_path / "selected")) == [_ROWS[4], _ROWS[2]]


_LINES = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=6,
    ).map(lambda value: json.dumps(value).encode()),
)  # fmt: skip


@given(lines=st.lists(_LINES, max_size=12), limit=st.integers(1, 60))
@settings(max_examples=300, deadline=None)
def test_any_bytes_give_one_row_for_each_line_that_is_not_blank(
    lines: list[bytes], limit: int, tmp_path_factory: Any
) -> None:
    data = b"x\n" + b"\n".join(lines)  # not the magic of a compressed file
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    rows = _read(path, data, max_row_bytes=limit)
    filled = [line for line in data.split(b"\n") if line.removesuffix(b"\r").strip()]
    assert len(rows) == len(filled)
    for index, row in enumerate(rows):
        assert row.index == index
        assert (row.fields is None) != (row.error is None)
        if row.error is not None:
            json.loads(error_row(row, row.error))


def test_a_prompt_of_bytes_that_are_no_text_is_refused(tmp_path: Path) -> None:
    """Not answered as base64; under whatever name it has, and again when its error row is given."""
    blobs = pa.array([b"caf\xc3\xa9", b"\xff\xfe", None], pa.binary())
    pq.write_table(pa.table({"prompt": blobs, "other": blobs}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"blob": blobs}), tmp_path / "b.parquet")
    for name, mapping in (("a", {}), ("b", {"prompt": "blob"})):
        good, bad, _ = _read(tmp_path / f"{name}.parquet", mapping=mapping)
        assert good.fields is not None and good.fields["prompt"] == "café"
        assert bad.error is not None and bad.error.kind == "invalid_utf8"
        again = _read(tmp_path / "again.jsonl", error_row(bad, bad.error) + b"\n")
        assert _fields(again) == ["invalid_utf8"]


def test_other_columns_may_hold_any_bytes(tmp_path: Path) -> None:
    table = pa.table({"prompt": ["a"], "other": pa.array([b"\xff\xfe"])})
    pq.write_table(table, tmp_path / "a.parquet")
    assert _fields(_read(tmp_path / "a.parquet")) == [{"prompt": "a", "other": "//4="}]
