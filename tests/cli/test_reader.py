"""Every kind of input file, and every kind of damage."""

from __future__ import annotations

import csv
import gzip
import io
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from input_rows import fields_of, read_input

from deepinfer.errors import InputError, RowError
from deepinfer_cli.input.reader import open_reader
from deepinfer_cli.input.rows import error_row

_ROWS = [{"prompt": f"question {i} é", "id": f"r{i}"} for i in range(50)]
_JSONL = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in _ROWS)


def test_jsonl_plain_gzip_and_zstd_are_the_same(tmp_path: Path) -> None:
    frames = zstandard.compress(_JSONL[:500]) + zstandard.compress(_JSONL[500:])
    members = gzip.compress(_JSONL[:500]) + gzip.compress(_JSONL[500:])
    for name, data in {"a.jsonl": _JSONL, "a.jsonl.gz": members, "a.jsonl.zst": frames}.items():
        rows = read_input(tmp_path / name, data)
        assert fields_of(rows) == _ROWS
        assert [row.index for row in rows] == list(range(50))
        assert [row.line for row in rows] == list(range(1, 51))


def test_compression_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    assert fields_of(read_input(tmp_path / "a.jsonl", gzip.compress(_JSONL))) == _ROWS
    assert fields_of(read_input(tmp_path / "b.gz", _JSONL)) == _ROWS


def test_bom_crlf_blank_lines_and_a_missing_last_newline(tmp_path: Path) -> None:
    data = b'\xef\xbb\xbf{"prompt":"a"}\r\n\r\n   \n{"prompt":"b"}\r\n\n{"prompt":"c"}'
    rows = read_input(tmp_path / "a.jsonl", data)
    assert fields_of(rows) == [{"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}]
    assert [(row.index, row.line) for row in rows] == [(0, 1), (1, 4), (2, 6)]


def test_lines_end_at_newlines_only(tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\u0085d\x1ce"
    data = json.dumps({"prompt": text}, ensure_ascii=False).encode() + b"\n"
    assert fields_of(read_input(tmp_path / "a.jsonl", data)) == [{"prompt": text}]


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
    rows = read_input(tmp_path / "a.jsonl", b"\n".join([good, line, good]))
    assert fields_of(rows) == [{"prompt": "a"}, kind, {"prompt": "a"}]
    assert rows[1].error is not None
    text = error_row(rows[1], rows[1].error)
    again = read_input(tmp_path / "errors.jsonl", text + b"\n")
    assert fields_of(again) == [kind] and again[0].raw == line


def test_an_error_row_whose_input_cannot_be_written_again(tmp_path: Path) -> None:
    line = b'{"line": 1, "id": "a", "error": {}, "input": {"prompt": "x", "size": 1e400}}'
    rows = read_input(tmp_path / "errors.jsonl", line + b'\n{"prompt":"b"}')
    assert fields_of(rows) == ["invalid_json", {"prompt": "b"}]


def test_long_lines_are_refused_and_the_next_line_is_good(tmp_path: Path) -> None:
    exact = b'{"prompt":"' + b"x" * 87 + b'"}'
    assert len(exact) == 100
    data = exact + b"\n" + b"y" * 3_000_000 + b"\n" + exact + b"\r\n" + b"z" * 101
    rows = read_input(tmp_path / "a.jsonl", data, max_row_bytes=100)
    kinds = [row.error.kind if row.error else "good" for row in rows]
    assert kinds == ["good", "line_too_long", "good", "line_too_long"]
    assert "3,000,001 bytes" in str(rows[1].error)
    assert len(rows[1].raw) < 10_000
    assert [row.line for row in rows] == [1, 2, 3, 4]


def test_a_long_line_that_begins_with_blanks_is_not_lost(tmp_path: Path) -> None:
    rows = read_input(
        tmp_path / "a.jsonl", b" " * 10_000 + b'{"prompt":"a"}\n', max_row_bytes=5_000
    )
    assert fields_of(rows) == ["line_too_long"]


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
            rows = read_input(tmp_path / "a.gz")
            # zstd frames without a checksum may decode to other bytes; then rows are bad instead
            if any(row.error for row in rows) or fields_of(rows) != _ROWS * 50:
                raise InputError("other rows")


def test_unusable_inputs(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.parquet").write_bytes(b"not parquet")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and then nothing PAR1")
    for name in ("missing.jsonl", "folder", "a.parquet", "b.parquet"):
        with pytest.raises(InputError, match=name.split(".")[0]):
            read_input(tmp_path / name)


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    assert read_input(tmp_path / "a.jsonl", b"") == []
    assert read_input(tmp_path / "b.csv", b"prompt\n") == []


def test_map_takes_fields_from_columns(tmp_path: Path) -> None:
    data = b'{"question":"q","prompt":"old"}\n{"other":1}\n'
    rows = read_input(tmp_path / "a.jsonl", data, mapping={"prompt": "question"})
    assert fields_of(rows) == [{"prompt": "q"}, "missing_field"]
    assert "'question'" in str(rows[1].error) and "other" in str(rows[1].error)
    assert rows[0].raw == b'{"question":"q","prompt":"old"}'


def test_csv(tmp_path: Path) -> None:
    data = (
        b'\xef\xbb\xbfid,question,temperature,messages\r\n7,"say ""hi""\nplease",0.5,\r\n'
        b'8,12,,"[{""role"": ""user""}]"\r\n9,short\r\n,\xff,,\r\n'
    )
    rows = read_input(tmp_path / "a.csv", data, mapping={"prompt": "question"})
    assert fields_of(rows) == [
        {"id": "7", "temperature": 0.5, "prompt": 'say "hi"\nplease'},
        {"id": "8", "messages": [{"role": "user"}], "prompt": "12"},
        "wrong_cell_count",
        "invalid_utf8",
    ]
    with pytest.raises(InputError, match="twice"):
        read_input(tmp_path / "b.csv", b"a,a\n1,2\n")


def test_error_rows_of_csv_keep_what_the_cells_of_good_rows_are(tmp_path: Path) -> None:
    deep = "[" * 5_000 + "]" * 5_000
    data = f'question,id,seed,n,stop,x,y,z\n12,07,5,,"[""a""]",1e999,NaN,{deep}\n'.encode()
    typed = {"seed": 5, "stop": ["a"], "x": "1e999", "y": "NaN", "z": deep}
    mapping = {"prompt": "question"}
    [row] = read_input(tmp_path / "a.csv", data, mapping=mapping)
    assert row.fields == {"prompt": "12", "id": "07", **typed}
    line = error_row(row, RowError("too_long", "why"))
    assert json.loads(line)["input"] == {"question": "12", "id": "07", "n": None, **typed}
    [again] = read_input(tmp_path / "again.jsonl", line, mapping=mapping)
    assert again.fields == {**row.fields, "n": None} and again.raw == row.raw


@pytest.mark.parametrize("separator", [b";", b"\t"])
def test_csv_without_commas_is_told_at_once(tmp_path: Path, separator: bytes) -> None:
    data = b"prompt%bid\nHi, you%b5\n" % (separator, separator)
    with pytest.raises(InputError, match="one column, 'prompt.+id'; cells must be separated by"):
        read_input(tmp_path / "a.csv", data)
    with pytest.raises(InputError, match="must be separated by"):
        read_input(tmp_path / "a.tsv", data)
    one = b"a%bb\nHi\n" % separator
    mapping = {"prompt": f"a{separator.decode()}b"}
    assert fields_of(read_input(tmp_path / "b.csv", one, mapping=mapping)) == [{"prompt": "Hi"}]


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
        found = read_input(path, encoded)
    except InputError:
        assert "\0" in data
        return
    assert fields_of(found) == [{"prompt": prompt, "id": row_id} for prompt, row_id in rows]


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
    bad_again, good_again = read_input(
        tmp_path / "again.jsonl", again
    )  # a mended error file is read so
    assert str(bad_again.error) == str(bad.error) and bad_again.raw == bad.raw
    assert good_again.fields is not None
    assert good_again.fields["messages"] == [{"role": "user"}]


def test_dataset_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list(_ROWS)
    data.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    assert fields_of(read_input(tmp_path / "saved")) == _ROWS
    datasets.DatasetDict({"train": data}).save_to_disk(str(tmp_path / "splits"))
    with pytest.raises(InputError, match=r"several splits \(train\)"):
        read_input(tmp_path / "splits")
    assert fields_of(read_input(tmp_path / "splits" / "train")) == _ROWS
    data.select([4, 2]).save_to_disk(str(tmp_path / "selected"))
    assert fields_of(read_input(tmp_path / "selected")) == [_ROWS[4], _ROWS[2]]


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
    rows = read_input(path, data, max_row_bytes=limit)
    filled = [line for line in data.split(b"\n") if line.removesuffix(b"\r").strip()]
    assert len(rows) == len(filled)
    for index, row in enumerate(rows):
        assert row.index == index
        assert (row.fields is None) != (row.error is None)
        if row.error is not None:
            json.loads(error_row(row, row.error))
