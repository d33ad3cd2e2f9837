"""Inputs that nobody wishes for: each ends in a clear line or the right rows."""

from __future__ import annotations

import gzip
import json
import os
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from run_files import assert_refused, counts, prompts, read_rows, write_rows

from deepinfer.errors import InputError
from deepinfer_cli.input.reader import open_reader

Cli = Callable[..., Any]
Process = Callable[..., Any]


@pytest.fixture
def fifo(in_tmp: Path) -> Iterator[Callable[[str, bytes], str]]:
    """``fifo(name, data)``: a named pipe that somebody writes ``data`` into."""
    threads = []

    def make(name: str, data: bytes) -> str:
        os.mkfifo(name)

        def write() -> None:
            with open(name, "wb") as pipe:
                pipe.write(data)

        threads.append(threading.Thread(target=write, daemon=True))
        threads[-1].start()
        return name

    yield make
    for thread in threads:
        thread.join(120)


_LINES = b'{"prompt": "a"}\nbad\n{"prompt": "b"}\n'


@pytest.mark.parametrize(
    "name, data",
    [
        ("in.jsonl", _LINES),
        ("in.jsonl.gz", gzip.compress(_LINES)),
        ("pipe", zstandard.ZstdCompressor().compress(_LINES)),
        ("in.csv", b"prompt\na\none,too many\nb\n"),
    ],
    ids=["lines", "gzip", "zstandard", "csv"],
)
def test_a_named_pipe(cli: Cli, fifo: Any, name: str, data: bytes) -> None:
    assert cli("run", fifo(name, data), "-o", "out.jsonl").exit_code == 3
    assert counts() == (2, 1)


@pytest.mark.parametrize("name", ["in.parquet", "in.jsonl"])
def test_parquet_through_a_named_pipe(cli: Cli, fifo: Any, name: str) -> None:
    """It has to be read from its end; opening the pipe a second time would wait for ever."""
    pq.write_table(pa.table({"prompt": ["a"]}), "table")
    done = cli("run", fifo(name, Path("table").read_bytes()), "-o", "out.jsonl")
    assert_refused(done, 4, f"Parquet cannot be read from a pipe ({name})")


def test_empty_inputs(cli: Cli) -> None:
    for name, data in {"nothing": b"", "bom": b"\xef\xbb\xbf", "lines": b"\n \r\n\t\n"}.items():
        Path(name).write_bytes(data)
        assert cli("run", name, "-o", f"{name}.jsonl").exit_code == 0
        assert counts(f"{name}.jsonl") == (0, 0)
    assert cli("run", "/dev/null", "-o", "null.jsonl").exit_code == 0


def test_names_that_lead_nowhere(cli: Cli) -> None:
    Path("loop.jsonl").symlink_to("loop.jsonl")
    assert_refused(cli("run", "loop.jsonl", "-o", "out.jsonl"), 4, "cannot read loop.jsonl")
    Path("gone.jsonl").symlink_to("nothing.jsonl")
    assert_refused(cli("run", "gone.jsonl", "-o", "out.jsonl"), 4, "no such file")
    assert_refused(cli("run", "x" * 5_000, "-o", "out.jsonl"), 4, "name too long")
    assert_refused(cli("run", "in.jsonl/more", "-o", "out.jsonl"), 4, "no such file")
    assert_refused(cli("run", "\x1b[2J\r\nin.jsonl", "-o", "out.jsonl"), 4, "\\x1b[2J")
    write_rows("in.jsonl", prompts(1))
    assert_refused(cli("run", "in.jsonl/", "-o", "out.jsonl"), 4, "not a directory")
    assert_refused(cli("run", "inn.jsonl", "-o", "out.jsonl"), 4, "; did you mean in.jsonl?")
    assert_refused(cli("run", "./in.json", "-o", "out.jsonl"), 4, "; did you mean in.jsonl?")
    assert_refused(cli("run", "Who are you?", "-o", "out.jsonl"), 4, "a prompt goes into a row")


def test_a_name_that_is_no_text(process: Process) -> None:
    """Bytes that are not UTF-8 are names, too."""
    name = os.fsdecode(b"in-\xff\xfe.jsonl")
    write_rows(name, [*prompts(2), b"bad"])
    done = process("run", name)
    assert done.exit_code == 3, done.err
    output = os.fsdecode(b"in-\xff\xfe.out.jsonl")
    assert counts(output) == (2, 1)
    assert process("status", output).exit_code == 0
    assert process("report", output).exit_code == 0
    assert_refused(process("run", os.fsdecode(b"\xff.jsonl"), "-q"), 4, "\\udcff.jsonl")


def test_rows_of_all_kinds_in_one_file(cli: Cli) -> None:
    """Each for itself; the echo only knows prompts."""
    chat = {"messages": [{"role": "user", "content": "x"}]}
    batch = {"custom_id": "b", "method": "POST", "url": "/v1/chat/completions", "body": chat}
    write_rows("in.jsonl", [{"prompt": "a"}, chat, batch, {"prompt_token_ids": [1]}, [], None])
    assert cli("run", "in.jsonl", "-o", "out.jsonl").exit_code == 3
    assert counts() == (1, 5)
    places = [row["row"] for row in read_rows("out.jsonl.errors.jsonl")]
    assert places == [1, 2, 3, 4, 5]


def test_equal_ids_are_answered_each(cli: Cli) -> None:
    write_rows("in.jsonl", [{"id": "same", "prompt": f"p{index}"} for index in range(9)])
    assert cli("run", "in.jsonl", "-o", "out.jsonl").exit_code == 0
    assert [row["content"] for row in read_rows("out.jsonl")] == [f"p{i}" for i in range(9)]


@pytest.mark.parametrize(
    "value", ["x" * 1_000_000, 10**4_000, "\x00\x1b[31m", "\ud800", "a\nb\r", True, 1.5, None, {}]
)
def test_ids_of_any_kind(cli: Cli, value: Any) -> None:
    write_rows("in.jsonl", [{"id": value, "prompt": "a"}, {"id": value}])
    assert cli("run", "in.jsonl", "-o", "out.jsonl").exit_code == 3
    assert counts() == (1, 1)
    found = read_rows("out.jsonl")[0]["id"], read_rows("out.jsonl.errors.jsonl")[0]["id"]
    is_id = isinstance(value, str | int) and not isinstance(value, bool)
    assert found == ((str(value),) * 2 if is_id else ("1", "2"))


def test_a_late_key_that_is_there_twice(cli: Cli) -> None:
    """Found in a moment, also among two hundred thousand."""
    keys = ", ".join(f'"k{index}": 0' for index in range(200_000))
    write_rows("in.jsonl", [f'{{"prompt": "a", {keys}, "k199999": 1}}'.encode()])
    began = time.process_time()
    assert cli("run", "in.jsonl", "-o", "out.jsonl").exit_code == 3
    assert time.process_time() - began < 20  # comparing each with each takes minutes
    [row] = read_rows("out.jsonl.errors.jsonl")
    assert "'k199999' is there twice" in row["error"]["message"]
    names = ",".join(f"c{index}" for index in range(100_000))
    Path("in.csv").write_text(f"{names},c99999\n")
    assert_refused(cli("run", "in.csv", "-o", "csv.jsonl", "-q"), 4, "names column 'c99999' twice")


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_small_file_that_unpacks_to_a_large_one_stays_small_in_memory(
    in_tmp: Path, ending: str
) -> None:
    pack = gzip.compress if ending == ".gz" else zstandard.ZstdCompressor().compress
    data = b'{"prompt": "%s"}\n' % (b"a" * 200_000_000)
    Path("in.jsonl" + ending).write_bytes(pack(data))
    del data
    assert Path("in.jsonl" + ending).stat().st_size < 250_000
    reader = open_reader("in.jsonl" + ending, max_row_bytes=2**20)
    tracemalloc.start()
    try:
        [row] = reader.rows
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        reader.close()
    assert row.error is not None and row.error.kind == "line_too_long"
    assert peak < 64 * 2**20


def test_a_zstd_frame_that_needs_a_dictionary(cli: Cli) -> None:
    samples = [b'{"prompt": "%d"}' % index for index in range(2_000)]
    words = zstandard.train_dictionary(4_096, samples)
    packed = zstandard.ZstdCompressor(dict_data=words).compress(b"\n".join(samples))
    Path("in.jsonl.zst").write_bytes(packed)
    assert_refused(cli("run", "in.jsonl.zst", "-o", "out.jsonl", "-q"), 4, "cannot be read")


def test_tables_of_odd_shapes(cli: Cli) -> None:
    wide = pa.table({"prompt": ["a"], **{f"c{index}": [index] for index in range(3_000)}})
    nested = pa.table({"prompt": ["a"], "deep": [[[[[{"x": [None, {"y": [1.5]}]}]]]]]})
    coded = pa.table({"prompt": pa.array(["a", None, "a"]).dictionary_encode()})
    for name, table, found in (
        ("wide", wide, (1, 0)),
        ("nested", nested, (1, 0)),
        ("coded", coded, (2, 1)),
        ("none", pa.table({"prompt": pa.nulls(2)}), (0, 2)),
        ("nothing", pa.table({}), (0, 0)),
    ):
        pq.write_table(table, f"{name}.parquet")
        code = cli("run", f"{name}.parquet", "-o", f"{name}.jsonl").exit_code
        assert code == (3 if found[1] else 0)
        assert counts(f"{name}.jsonl") == found, name
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["prompt", "prompt"])
    pq.write_table(twice, "twice.parquet")
    done = cli("run", "twice.parquet", "-o", "out.jsonl", "-q")
    assert_refused(done, 4, "twice.parquet has column 'prompt' twice")


@pytest.mark.parametrize("name", ["in.parquet", "in.csv", "in.jsonl"])
def test_one_row_of_megabytes_is_an_error_row_in_every_format(cli: Cli, name: str) -> None:
    texts = ["a", "x" * 3_000_000, "b"]
    if name == "in.parquet":
        pq.write_table(pa.table({"prompt": texts}), name)
    elif name == "in.csv":
        Path(name).write_text("\n".join(["prompt", *texts]))
    else:
        write_rows(name, [{"prompt": text} for text in texts])
    assert cli("run", name, "-o", "out.jsonl", "--max-row-bytes", "1MiB").exit_code == 3
    assert counts() == (2, 1)
    [row] = read_rows("out.jsonl.errors.jsonl")
    assert row["error"]["kind"] == "line_too_long" and row["row"] == 1
    assert "--max-row-bytes" in row["error"]["message"] and len(row["input_start"]) <= 1_000


def test_large_rows_are_read_by_few(in_tmp: Path) -> None:
    texts = [f"{index:01000000}" for index in range(120)]
    pq.write_table(
        pa.table({"prompt": texts}), "in.parquet", use_dictionary=False, write_batch_size=4
    )
    before, peak = pa.total_allocated_bytes(), 0
    for index, row in enumerate(open_reader("in.parquet").rows):
        assert row.fields == {"prompt": texts[index]}
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert index == 119 and peak < 60 * 2**20


def test_a_table_that_is_cut_while_it_is_read(cli: Cli) -> None:
    """A mapped file would take the whole process down with it."""
    columns = {"prompt": [f"{index:0500}" for index in range(4_000)]}
    pq.write_table(pa.table(columns), "in.parquet", row_group_size=500, compression="none",
                   use_dictionary=False)  # fmt: skip
    reader = open_reader("in.parquet")
    for _ in range(600):
        next(reader.rows)
    os.truncate("in.parquet", 10_000)
    with pytest.raises(InputError, match="in.parquet.*(cannot be read|ends after row .* of 4,000)"):
        list(reader.rows)


def test_a_file_that_grows_while_it_is_read(cli: Cli) -> None:
    """Rows that come before the end is met are rows; the counts hold for what was read."""
    write_rows("in.jsonl", [*prompts(2_000), b""])
    with open("in.jsonl", "ab") as file:
        reader = open_reader("in.jsonl")
        assert next(reader.rows).index == 0
        file.write(b'{"prompt": "late"}\n')
        file.flush()
        assert len(list(reader.rows)) == 2_000
        reader.close()


@pytest.mark.parametrize(
    "text, hint",
    [
        ('[{"prompt": "a"}, {"prompt": "b"}]', "one JSON array"),
        ('[{"prompt": "a"}, {"prompt": "b"}]\n', "one JSON array"),
        ("[]", "one JSON array"),
        ('[\n {"prompt": "a"},\n {"prompt": "b"}\n]\n', "one JSON array"),
        ('[{"prompt": "a"},\n {"prompt": "b"}]', "one JSON array"),
        ('\ufeff [{"prompt": "a"}]', "one JSON array"),
        ('{\n  "prompt": "a"\n}\n', "goes over several lines"),
        ("[" + '{"prompt": "a"},' * 100 + "{}]", "one JSON array"),
        ("What is 6 times 7?\nWho are you?\n", "jq -Rc '{prompt: .}'"),
        ('"What is 6 times 7?"\n', "jq -c '{prompt: .}'"),
    ],
)
def test_json_that_is_not_one_object_a_line_is_told_what_to_do(
    cli: Cli, text: str, hint: str
) -> None:
    """Its first error row names it and the command; the command makes rows of it."""
    Path("in.json").write_text(text, encoding="utf-8")
    done = cli("run", "in.json", "-o", "out.jsonl", "--max-row-bytes", "1000")
    assert done.exit_code == 3
    first = json.loads(Path("out.jsonl.errors.jsonl").read_bytes().splitlines()[0])
    message = first["error"]["message"]
    assert hint in message and "; if " in message and ": jq -" in message
