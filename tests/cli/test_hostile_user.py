"""Files, names and moments that nobody wishes: each ends in a clear line or the right rows."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import signal
import subprocess
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
from run_files import prompts, read_report, read_rows, write_rows

from deepinfer.errors import InputError
from deepinfer_cli.input.reader import open_reader

Cli = Callable[..., Any]
Process = Callable[..., Any]


def refused(done: Any, code: int, words: str) -> None:
    """One line that says so, and nothing else."""
    assert done.exit_code == code, done.err
    assert words in done.err and "Traceback" not in done.err, done.err
    assert done.err.count("\n") == 1 and done.err.startswith("deepinfer: "), done.err
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", done.err)
    assert not done.engines


def counts(output: str = "out.jsonl") -> tuple[int, int]:
    """Results and error rows, which the report says as well."""
    errors = Path(output + ".errors.jsonl")
    found = len(read_rows(output)), len(read_rows(str(errors))) if errors.exists() else 0
    rows = read_report(output)["rows"]
    assert (rows["results"], rows["errors"]) == found and rows["input"] == sum(found)
    return found


# What the input is -----------------------------------------------------------------------------


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
        thread.join(10)


_LINES = b'{"prompt": "a"}\nbad\n{"prompt": "b"}\n'


@pytest.mark.parametrize(
    "name, data",
    [
        ("in.jsonl", _LINES),
        ("in.jsonl.gz", gzip.compress(_LINES)),
        ("pipe", zstandard.ZstdCompressor().compress(_LINES)),
        ("in.csv", b"prompt\na\none,too many\nb\n"),
    ],
)
def test_a_named_pipe(cli: Cli, fifo: Any, name: str, data: bytes) -> None:
    assert cli("run", fifo(name, data), "-o", "out.jsonl").exit_code == 3
    assert counts() == (2, 1)


@pytest.mark.parametrize("name", ["in.parquet", "in.jsonl"])
def test_parquet_through_a_named_pipe(cli: Cli, fifo: Any, name: str) -> None:
    """It has to be read from its end; opening the pipe a second time would wait for ever."""
    pq.write_table(pa.table({"prompt": ["a"]}), "table")
    done = cli("run", fifo(name, Path("table").read_bytes()), "-o", "out.jsonl")
    refused(done, 4, f"Parquet cannot be read from a pipe ({name})")


def test_empty_inputs(cli: Cli) -> None:
    for name, data in {"nothing": b"", "bom": b"\xef\xbb\xbf", "lines": b"\n \r\n\t\n"}.items():
        Path(name).write_bytes(data)
        assert cli("run", name, "-o", f"{name}.jsonl").exit_code == 0
        assert counts(f"{name}.jsonl") == (0, 0)
    assert cli("run", "/dev/null", "-o", "null.jsonl").exit_code == 0


def test_names_that_lead_nowhere(cli: Cli) -> None:
    Path("loop.jsonl").symlink_to("loop.jsonl")
    refused(cli("run", "loop.jsonl", "-o", "out.jsonl"), 4, "cannot read loop.jsonl")
    Path("gone.jsonl").symlink_to("nothing.jsonl")
    refused(cli("run", "gone.jsonl", "-o", "out.jsonl"), 4, "no such file")
    refused(cli("run", "x" * 5_000, "-o", "out.jsonl"), 4, "name too long")
    refused(cli("run", "in.jsonl/more", "-o", "out.jsonl"), 4, "no such file")
    refused(cli("run", "\x1b[2J\r\nin.jsonl", "-o", "out.jsonl"), 4, "\\x1b[2J")
    write_rows("in.jsonl", prompts(1))
    refused(cli("run", "in.jsonl/", "-o", "out.jsonl"), 4, "not a directory")


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
    refused(process("run", os.fsdecode(b"\xff.jsonl"), "-q"), 4, "\\udcff.jsonl")


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
    refused(cli("run", "in.csv", "-o", "csv.jsonl", "-q"), 4, "names column 'c99999' twice")


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
    refused(cli("run", "in.jsonl.zst", "-o", "out.jsonl", "-q"), 4, "cannot be read")


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
    refused(done, 4, "twice.parquet has column 'prompt' twice")


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


# Where the output goes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "output, words",
    [
        ("sub", "ends in .jsonl"),
        ("sub/", "ends in .jsonl"),
        ("out.JSONL", "ends in .jsonl"),
        (".jsonl", "ends in .jsonl"),
        ("sub.jsonl", "sub.jsonl is a folder"),
        ("in.jsonl/out.jsonl", "in.jsonl"),
        ("link.jsonl", "link.jsonl is a folder"),
        ("loop.jsonl", "is a link to"),
        ("hang.jsonl", "is a link to"),
        ("none/out.jsonl", "there is no folder none"),
        ("tty.jsonl", "already exists"),
        ("./in.jsonl", "in.jsonl is the input"),
        ("around/in.jsonl", "in.jsonl is the input"),
    ],
)
def test_places_for_results(cli: Cli, output: str, words: str) -> None:
    write_rows("in.jsonl", prompts(2))
    before = Path("in.jsonl").read_bytes()
    Path("sub").mkdir()
    Path("sub.jsonl").mkdir()
    Path("link.jsonl").symlink_to("sub")
    Path("loop.jsonl").symlink_to("loop.jsonl")
    Path("hang.jsonl").symlink_to("nowhere.jsonl")
    Path("around").symlink_to(".")
    os.mkfifo("tty.jsonl")
    refused(cli("run", "in.jsonl", "-o", output), 2, words)
    assert Path("in.jsonl").read_bytes() == before
    assert not list(Path().rglob("*.partial"))


def test_a_file_where_the_working_folder_goes(cli: Cli) -> None:
    write_rows("in.jsonl", prompts(2))
    Path("out.jsonl.partial").write_text("mine")
    refused(cli("run", "in.jsonl", "-o", "out.jsonl"), 2, "cannot write out.jsonl")
    assert Path("out.jsonl.partial").read_text() == "mine"


def test_an_input_inside_of_the_working_folder(cli: Cli) -> None:
    Path("out.jsonl.partial").mkdir()
    source = write_rows("out.jsonl.partial/journal", prompts(2))
    before = Path(source).read_bytes()
    refused(cli("run", source, "-o", "out.jsonl", "--force"), 2, "is the input")
    assert Path(source).read_bytes() == before


@pytest.mark.parametrize("target", ["in.prom", "./in.prom", "link.prom", "hard.prom"])
@pytest.mark.parametrize("output", ["out.jsonl", "-"])
def test_the_prometheus_file_is_not_the_input(cli: Cli, target: str, output: str) -> None:
    write_rows("in.prom", prompts(2))
    before = Path("in.prom").read_bytes()
    Path("link.prom").symlink_to("in.prom")
    Path("hard.prom").hardlink_to("in.prom")
    done = cli("run", "in.prom", "-o", output, "--prometheus", target)
    refused(done, 2, "in.prom is the input")
    assert Path("in.prom").read_bytes() == before


@pytest.mark.parametrize("target", ["in.jsonl", "out.jsonl", ".", "/", "out.jsonl.report.json"])
def test_the_prometheus_file_is_no_file_of_the_run(cli: Cli, target: str) -> None:
    """Such a name would replace the input or the results when all is done."""
    write_rows("in.jsonl", prompts(2))
    done = cli("run", "in.jsonl", "-o", "out.jsonl", "--prometheus", target)
    refused(done, 2, "expected a file name that ends in .prom")


@pytest.fixture
def read_only(in_tmp: Path) -> Iterator[Path]:
    """A mounted folder that nobody can write."""
    folder = in_tmp / "read-only"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user may not mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_read_only_mount(cli: Cli, read_only: Path) -> None:
    write_rows("in.jsonl", prompts(2))
    refused(cli("run", "in.jsonl", "-o", read_only / "out.jsonl"), 2, "read-only file system")


# Settings and surroundings ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        ("--limit", "-1"),
        ("--limit", "1e400"),
        ("--limit", "9" * 5_000),
        ("--max-errors", "nan%"),
        ("--max-errors", "-1"),
        ("--time-limit", "-5"),
        ("--time-limit", "nan"),
        ("--stall-limit", "soon"),
        ("--shard", "0/0"),
        ("--shard", "3/2"),
        ("--shard", "-1/2"),
        ("--shard", "1/" + "9" * 5_000),
        ("--shard", "١/٢x"),
        ("--temperature", "nan"),
        ("--temperature", "inf"),
        ("--top-p", "-0.1"),
        ("--max-tokens", "0"),
        ("--max-tokens", "-9"),
        ("--n", "0"),
        ("--map", "prompt"),
        ("--max-row-bytes", "-5"),
        ("--logit-bias", "x=1"),
        ("--stop", ""),
        ("--cost-per-hour", "-1"),
        ("--order", "random"),
        ("--grammar", "none.gbnf"),
        ("--json-schema", "."),
        ("--config", "."),
        ("--config", "none.yaml"),
        ("--limit",),
        ("--", "more", "words"),
    ],
    ids=lambda flags: " ".join(flags)[:30],
)
def test_flags_out_of_range(cli: Cli, flags: tuple[str, ...]) -> None:
    write_rows("in.jsonl", prompts(2))
    done = cli("run", "in.jsonl", "-o", "out.jsonl", *flags)
    refused(done, 2, "")
    assert len(done.err) < 1_000
    assert [path.name for path in Path().iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize("width", ["0", "-1", "3", "many", "999999"])
def test_widths_that_no_terminal_has(process: Process, width: str) -> None:
    write_rows("in.jsonl", prompts(2))
    done = process(
        "run", "in.jsonl", "-o", "out.jsonl", env={**os.environ, "COLUMNS": width, "TERM": "?"}
    )
    assert done.exit_code == 0 and counts() == (2, 0)
    assert process("run", "--help", env={**os.environ, "COLUMNS": width}).exit_code == 0


def test_a_current_folder_that_is_gone(in_tmp: Path, command: list[str]) -> None:
    Path("gone").mkdir()
    write_rows("in.jsonl", prompts(2))
    program = " ".join(command)
    for arguments, code in (
        (f"run {in_tmp}/in.jsonl -o {in_tmp}/out.jsonl", 0),
        (f"status {in_tmp}/out.jsonl", 0),
        ("run in.jsonl", 4),
    ):
        done = subprocess.run(
            ["bash", "-c", f"cd gone && rmdir ../gone; {program} {arguments}; exit $?"],
            capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.environ.get(
                "PYTHONPATH", str(Path(__file__).parents[2]))},
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        Path("gone").mkdir(exist_ok=True)
    assert counts() == (2, 0)


def test_no_folder_for_temporary_files(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """TMPDIR that is not there: another folder serves."""
    done = process("run", "-", "-q", stdin=_LINES, env={**os.environ, "TMPDIR": "/no/such/folder"})
    assert done.exit_code == 3 and done.out.count(b"\n") == 3


def test_few_open_files(in_tmp: Path, command: list[str]) -> None:
    write_rows("in.jsonl", prompts(2))
    program = " ".join(command)
    done = subprocess.run(
        ["bash", "-c", f"ulimit -n 24; {program} run in.jsonl -o out.jsonl -q"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert counts() == (2, 0)


# What happens meanwhile ------------------------------------------------------------------------


def _begun(start: Any, count: int = 300, least: int = 8) -> subprocess.Popen[bytes]:
    """A run in the folder ``work`` that has finished some rows."""
    write_rows("in.jsonl", prompts(count))
    Path("work").mkdir()
    running: subprocess.Popen[bytes] = start(
        "run", "in.jsonl", "-o", "work/out.jsonl", "-q", seconds_per_row=0.005
    )
    journal = Path("work/out.jsonl.partial/journal")
    until = time.monotonic() + 30
    while not journal.exists() or journal.read_bytes().count(b"\n") < least:
        assert running.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    return running


def _line(running: subprocess.Popen[bytes]) -> str:
    _, err = running.communicate(timeout=60)
    assert b"Traceback" not in err
    return err.decode()


def test_the_folder_of_the_output_is_moved(start: Any, process: Process) -> None:
    """The rows went with it: the run says where it cannot write, and goes on at the new place."""
    running = _begun(start)
    Path("work").rename("moved")
    said = _line(running)
    assert running.returncode == 1 and "work/out.jsonl.partial" in said
    assert not Path("work").exists()
    again = process("run", "in.jsonl", "-o", "moved/out.jsonl", "-q")
    assert again.exit_code == 0
    assert counts("moved/out.jsonl") == (300, 0)
    assert read_report("moved/out.jsonl")["rows"]["resumed"] >= 8


def test_the_input_is_removed_meanwhile(start: Any) -> None:
    """It is open: every row of it is answered."""
    running = _begun(start)
    Path("in.jsonl").unlink()
    assert _line(running) == "" and running.returncode == 0
    assert counts("work/out.jsonl") == (300, 0)


def test_the_lock_is_removed_meanwhile(start: Any, process: Process) -> None:
    """Another run may begin then; the end of both is one whole output."""
    running = _begun(start, count=150)
    Path("work/out.jsonl.partial/lock").unlink()
    second = process("run", "in.jsonl", "-o", "work/out.jsonl", "-q")
    _line(running)
    assert {running.returncode, second.exit_code} <= {0, 1, 2}
    if not Path("work/out.jsonl").exists():
        assert process("run", "in.jsonl", "-o", "work/out.jsonl", "-q").exit_code == 0
    assert counts("work/out.jsonl") == (150, 0)


def test_the_journal_is_cut_meanwhile(start: Any, process: Process) -> None:
    running = _begun(start)
    os.truncate("work/out.jsonl.partial/journal", 700)
    said = _line(running)
    assert running.returncode == 1 and "run the same command again" in said
    assert process("run", "in.jsonl", "-o", "work/out.jsonl", "-q").exit_code == 0
    assert counts("work/out.jsonl") == (300, 0)


def test_stopped_and_continued(start: Any) -> None:
    running = _begun(start)
    for _ in range(3):
        running.send_signal(signal.SIGSTOP)
        time.sleep(0.05)
        running.send_signal(signal.SIGCONT)
        time.sleep(0.02)
    assert _line(running) == "" and running.returncode == 0
    assert counts("work/out.jsonl") == (300, 0)


def test_signals_before_the_first_row(start: Any, fifo: Any) -> None:
    """Waiting for a pipe that nobody writes is no reason not to leave."""
    os.mkfifo("silent.jsonl")
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        running = start("run", "silent.jsonl", "-o", "out.jsonl")
        time.sleep(1.0)
        running.send_signal(number)
        _, err = running.communicate(timeout=20)
        assert running.returncode in (code, -number), err
        assert b"Traceback" not in err
    assert [path.name for path in Path().iterdir()] == ["silent.jsonl"]


def test_text_of_a_row_does_not_reach_the_terminal_as_it_is(cli: Cli) -> None:
    hostile = "\x1b[2J\x1b]0;owned\x07\x9b31m"
    write_rows("in.jsonl", [{"prompt": "a", "fail": hostile}] * 3)
    done = cli("run", "in.jsonl", "-o", "out.jsonl", "--max-errors", "0")
    assert done.exit_code == 4
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", done.err)


def test_a_copy_of_an_unfinished_run_goes_on(start: Any, process: Process) -> None:
    """As from one machine to another."""
    running = _begun(start)
    running.kill()
    running.wait(30)
    shutil.copytree("work", "copy")
    assert process("run", "in.jsonl", "-o", "copy/out.jsonl", "-q").exit_code == 0
    assert counts("copy/out.jsonl") == (300, 0)
    assert read_report("copy/out.jsonl")["rows"]["resumed"] >= 8
