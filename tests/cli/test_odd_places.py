"""Places for results, flags and surroundings as bad as they come."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from run_files import assert_refused, counts, prompts, write_rows

Cli = Callable[..., Any]
Process = Callable[..., Any]


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
        ("out.jsonl.errors.jsonl", "this name is reserved for error rows"),
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
    assert_refused(cli("run", "in.jsonl", "-o", output), 2, words)
    assert Path("in.jsonl").read_bytes() == before
    assert not list(Path().rglob("*.partial"))


def test_a_file_where_the_working_folder_goes(cli: Cli) -> None:
    write_rows("in.jsonl", prompts(2))
    Path("out.jsonl.partial").write_text("mine")
    assert_refused(cli("run", "in.jsonl", "-o", "out.jsonl"), 2, "cannot write out.jsonl")
    assert Path("out.jsonl.partial").read_text() == "mine"


def test_an_input_inside_of_the_working_folder(cli: Cli) -> None:
    Path("out.jsonl.partial").mkdir()
    source = write_rows("out.jsonl.partial/journal", prompts(2))
    before = Path(source).read_bytes()
    assert_refused(cli("run", source, "-o", "out.jsonl", "--force"), 2, "is the input")
    assert Path(source).read_bytes() == before


@pytest.mark.parametrize("target", ["in.prom", "./in.prom", "link.prom", "hard.prom"])
@pytest.mark.parametrize("output", ["out.jsonl", "-"])
def test_the_prometheus_file_is_not_the_input(cli: Cli, target: str, output: str) -> None:
    write_rows("in.prom", prompts(2))
    before = Path("in.prom").read_bytes()
    Path("link.prom").symlink_to("in.prom")
    Path("hard.prom").hardlink_to("in.prom")
    done = cli("run", "in.prom", "-o", output, "--prometheus", target)
    assert_refused(done, 2, "in.prom is the input")
    assert Path("in.prom").read_bytes() == before


@pytest.mark.parametrize("target", ["in.jsonl", "out.jsonl", ".", "/", "out.jsonl.report.json"])
def test_the_prometheus_file_is_no_file_of_the_run(cli: Cli, target: str) -> None:
    """Such a name would replace the input or the results when all is done."""
    write_rows("in.jsonl", prompts(2))
    done = cli("run", "in.jsonl", "-o", "out.jsonl", "--prometheus", target)
    assert_refused(done, 2, "expected a file name that ends in .prom")


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
    assert_refused(
        cli("run", "in.jsonl", "-o", read_only / "out.jsonl"), 2, "read-only file system"
    )


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
        ("--map", "prompt=a", "--map", "prompt=b"),
        ("--max-row-bytes", "-5"),
        ("--logit-bias", "x=1"),
        ("--stop", ""),
        ("--cost-per-hour", "-1"),
        ("--order", "random"),
        ("--grammar", "none.gbnf"),
        ("--json-schema", "."),
        ("--config", "."),
        ("--config", "none.yaml"),
        ("--config", "/dev/zero"),
        ("--grammar", "/dev/zero"),
        ("--json-schema", "/dev/zero"),
        ("--time-limit", "9" * 5_000),
        ("--limit",),
        ("--", "more", "words"),
    ],
    ids=lambda flags: " ".join(flags)[:30],
)
def test_flags_out_of_range(cli: Cli, flags: tuple[str, ...]) -> None:
    write_rows("in.jsonl", prompts(2))
    done = cli("run", "in.jsonl", "-o", "out.jsonl", *flags)
    assert_refused(done, 2, "")
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


def test_no_folder_for_temporary_files(process: Process) -> None:
    """TMPDIR that is not there: another folder serves."""
    done = process(
        "run",
        "-",
        "-q",
        stdin=b'{"prompt": "a"}\nbad\n',
        env={**os.environ, "TMPDIR": "/no/such/folder"},
    )
    assert done.exit_code == 3 and done.out.count(b"\n") == 2


def test_few_open_files(in_tmp: Path, command: list[str]) -> None:
    write_rows("in.jsonl", prompts(2))
    program = " ".join(command)
    done = subprocess.run(
        ["bash", "-c", f"ulimit -n 24; {program} run in.jsonl -o out.jsonl -q"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert counts() == (2, 0)


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31mred", "a\rb", "a\x07b", "tab\tb", "ü\u202eb"])
def test_no_name_of_a_file_controls_the_terminal_or_breaks_a_line(cli: Cli, name: str) -> None:
    """Every line of the talk begins as such lines begin."""
    write_rows(f"{name}.jsonl", [*prompts(2), b"x"])
    run = cli("run", f"{name}.jsonl")
    assert run.exit_code == 3
    texts = [run.err, cli("status", f"{name}.jsonl").out.decode()]
    texts.append(cli("plan", f"{name}.jsonl", "--calibrate", "0", "-q").out.decode())
    assert cli("run", f"{name}.jsonl", "-o", "s.jsonl", "--shard", "1/1", "-q").exit_code == 3
    texts.append(cli("run", f"{name}.nope").err)
    for text in texts:
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", text), text
    for line in run.err.splitlines():
        assert re.match(r"\d{4}-\d\d-\d\d |  [a-z]+ ", line), line
    assert all(re.match("[a-z]+ ", line) for line in texts[1].splitlines())


def test_an_output_that_cannot_be_replaced_is_named(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with ``chattr +i``; the rows are kept, and the same command puts them in place later."""
    write_rows("in.jsonl", prompts(2))
    Path("out.jsonl").write_text("old")
    replace = Path.replace

    def refuse(self: Path, target: Path) -> Path:
        if Path(target).name == "out.jsonl":
            raise PermissionError(1, "Operation not permitted", str(self), None, str(target))
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        done = cli("run", "in.jsonl", "-o", "out.jsonl", "--force")
    assert done.exit_code == 2 and Path("out.jsonl").read_text() == "old"
    assert "deepinfer: operation not permitted: out.jsonl; 2 finished rows are kept" in done.err
    assert cli("run", "in.jsonl", "-o", "out.jsonl", "--force").exit_code == 0


def test_where_a_link_leads_is_told(cli: Cli) -> None:
    Path("dangling.jsonl").symlink_to("gone.jsonl")
    Path("loop.jsonl").symlink_to("loop.jsonl")
    for name, target in (("dangling", "gone"), ("loop", "loop")):
        done = cli("run", f"{name}.jsonl")
        assert done.exit_code == 4 and f"; it is a link to {target}.jsonl" in done.err
        assert "did you mean" not in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "x"), ("report", "x"), ("merge", "-o", "m.jsonl", "x"), ("run", "x"),
        ("plan", "in.jsonl", "--like", "x"), ("bench", "--compare", "x"), ("config", "init", "x"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_name_that_is_too_long_is_wrong_use(cli: Cli, arguments: tuple[str, ...]) -> None:
    write_rows("in.jsonl", prompts(1))
    name = "x" * 4_000
    done = cli(*(name if word == "x" else word for word in arguments))
    assert done.exit_code in (2, 4) and "file name too long" in done.err
    assert done.err.count("\n") == 1


@pytest.fixture
def without_rights(command: list[str]) -> None:
    """Processes of the test are bound by the rights of files, those of root too."""
    words = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    if os.getuid() != 0:
        return
    if shutil.which("setpriv") is None or subprocess.run([*words, "true"]).returncode:
        pytest.skip("needs setpriv to give up the rights of root")
    command[:0] = words


@pytest.mark.parametrize(
    "arguments",
    ["status shut/out.jsonl", "report shut/out.jsonl", "merge -o shut/out.jsonl",
     "run in.jsonl -o shut/out.jsonl", "run in.jsonl -o o.jsonl --model shut",
     "run in.jsonl -o o.jsonl --prometheus shut/a.prom", "config init shut/a.yaml"],
)  # fmt: skip
@pytest.mark.usefixtures("without_rights")
def test_places_without_rights_are_wrong_use(process: Process, arguments: str) -> None:
    write_rows("in.jsonl", prompts(1))
    Path("shut").mkdir(mode=0)
    done = process(*arguments.split())
    assert done.exit_code == 2 and "permission denied" in done.err, done.err
    assert done.err.count("\n") == 1
    Path("shut").chmod(0o700)


@pytest.mark.usefixtures("without_rights")
def test_a_folder_that_cannot_be_listed_takes_results(process: Process) -> None:
    write_rows("in.jsonl", prompts(2))
    Path("box").mkdir(mode=0o300)
    done = process("run", "in.jsonl", "-o", "box/out.jsonl", "-q")
    Path("box").chmod(0o700)
    assert done.exit_code == 0 and counts("box/out.jsonl") == (2, 0)
    assert not Path("box/out.jsonl.partial").exists()


def test_no_file_that_is_written_controls_the_terminal(cli: Cli) -> None:
    assert cli("config", "init", "\x1b[31m.yaml").err == "wrote \\x1b[31m.yaml\n"
