"""One run at a time in an output's working folder."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from deepinfer.errors import ConfigError, LockedError
from deepinfer_cli.output.basis import Basis
from deepinfer_cli.output.partial import PartialFolder
from deepinfer_cli.output.paths import OutputPaths
from deepinfer_cli.output.writer import publish


@pytest.fixture
def paths(tmp_path: Path) -> OutputPaths:
    return OutputPaths(tmp_path / "out.jsonl")


def test_a_file_system_without_locks_is_named(
    paths: OutputPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(ConfigError, match="has no locks .function not impl"), PartialFolder(paths):
        pass
    assert not paths.partial.exists()


@pytest.mark.parametrize("code, is_error", [(errno.EINVAL, False), (errno.EIO, True)])
def test_folders_that_cannot_be_synced(
    paths: OutputPaths, monkeypatch: pytest.MonkeyPatch, code: int, is_error: bool
) -> None:
    """As on some network file systems: the files have their names, the run is finished."""
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, "no")
        real(descriptor)

    work = paths.results.parent / "work"
    work.mkdir()
    for name in ("results", "errors"):
        (work / name).write_text(name)
    monkeypatch.setattr("os.fsync", fsync)
    with pytest.raises(OSError) if is_error else nullcontext():
        publish(work, paths, b"{}", has_errors=True)
    assert paths.results.read_text() == "results"


def test_names(paths: OutputPaths) -> None:
    names = [path.name for path in (paths.errors, paths.report, paths.partial)]
    assert names == ["out.jsonl.errors.jsonl", "out.jsonl.report.json", "out.jsonl.partial"]


def test_the_second_run_is_told_who_holds_the_output(paths: OutputPaths) -> None:
    refused = pytest.raises(LockedError, match=r"out.jsonl \(process \d+ on .+ since ")
    with PartialFolder(paths), refused:
        PartialFolder(paths).__enter__()
    with PartialFolder(paths):
        pass


def test_a_dead_holders_lock_is_taken_over(paths: OutputPaths) -> None:
    code = (
        "import os; from pathlib import Path; from deepinfer_cli.output.partial import *;"
        f"PartialFolder(OutputPaths(Path({str(paths.results)!r}))).__enter__();"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    assert (paths.partial / "lock").is_file()
    with PartialFolder(paths):
        pass


def test_what_was_never_begun_leaves_nothing(paths: OutputPaths) -> None:
    with pytest.raises(ZeroDivisionError), PartialFolder(paths):
        raise ZeroDivisionError
    assert not paths.partial.exists()
    with PartialFolder(paths):
        (paths.partial / "somebody's").touch()
    assert (paths.partial / "somebody's").exists()


def test_work_is_continued_with_the_same_settings_only(paths: OutputPaths) -> None:
    with PartialFolder(paths) as folder:
        assert folder.begin(Basis({"seed": 0}), force=False) is False
        (folder.path / "journal").write_bytes(b"work")
    with PartialFolder(paths) as folder:
        assert folder.begin(Basis({"seed": 0}), force=False) is True
        assert folder.begin(Basis({"seed": 0}), force=True) is True
        with pytest.raises(ConfigError, match="seed was 0, now 1"):
            folder.begin(Basis({"seed": 1}), force=False)
        assert (folder.path / "journal").exists()
        assert folder.begin(Basis({"seed": 1}), force=True) is False
        assert not (folder.path / "journal").exists()


def test_a_changed_model_is_told_by_its_files(paths: OutputPaths) -> None:
    first = {"config.json": "1", "one.safetensors": "2"}
    with PartialFolder(paths) as folder:
        assert folder.begin(Basis({}, first), force=False) is False
        assert folder.begin(Basis({}, dict(reversed(first.items()))), force=False) is True
        words = r"another model \(config.json has changed, new.json is new, one.\w+ is gone\); put"
        with pytest.raises(ConfigError, match=words):
            folder.begin(Basis({}, {"new.json": "3", "config.json": "4"}), force=False)
        many = Basis({}, first | {f"{i}.json": "0" for i in range(9)})
        with pytest.raises(ConfigError, match="4.json is new, and 4 more"):
            folder.begin(many, force=False)
        assert folder.begin(many, force=True) is False
        assert folder.begin(many, force=False) is True


def test_what_another_verb_left_is_told_in_a_line(paths: OutputPaths) -> None:
    """A merge that was killed, where a run now writes; and a run of an earlier version."""
    settings = {f"setting_{number}": number for number in range(30)}
    with PartialFolder(paths) as folder:
        assert folder.begin(Basis({}, verb="merge"), force=False) is False
        assert folder.begin(Basis({}, verb="merge"), force=False) is True
        words = "started with deepinfer merge; give deepinfer merge again to resume it, or --force"
        with pytest.raises(ConfigError, match=words):
            folder.begin(Basis(settings), force=False)
        assert folder.begin(Basis({}), force=True) is False
        with pytest.raises(ConfigError, match="setting_4 was None, now 4; and 25 more"):
            folder.begin(Basis(settings), force=False)


def test_results_are_only_replaced_by_force(paths: OutputPaths) -> None:
    paths.results.write_text("precious")
    with PartialFolder(paths) as folder, pytest.raises(ConfigError, match="already exists"):
        folder.begin(Basis({}), force=False)
    assert not paths.partial.exists()
    with PartialFolder(paths) as folder:
        assert folder.begin(Basis({}), force=True) is False
    assert paths.results.read_text() == "precious"


@pytest.mark.parametrize(
    "place, message",
    [("no/out.jsonl", "there is no folder"), ("file/out.jsonl", "there is no folder"),
     ("/proc/out.jsonl", "no folder can be made there")],
)  # fmt: skip
def test_places_that_cannot_be_written(tmp_path: Path, place: str, message: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=message):
        PartialFolder(OutputPaths(tmp_path / place)).__enter__()


def test_files_of_somebody_else_are_never_touched(paths: OutputPaths) -> None:
    """A new run once cleared whatever stood in a folder of this name, through a link too."""
    paths.partial.mkdir()
    mine = paths.partial / "mine.txt"
    mine.write_text("keep")
    with (
        pytest.raises(ConfigError, match=r"not from a run .mine.txt."),
        PartialFolder(paths) as folder,
    ):
        folder.begin(Basis({}), force=True)
    assert mine.read_text() == "keep"
    mine.rename(paths.results.with_name("elsewhere.txt"))
    for left in paths.partial.iterdir():
        left.unlink()
    paths.partial.rmdir()
    paths.partial.symlink_to(paths.results.parent)
    with pytest.raises(ConfigError, match="is a link"), PartialFolder(paths):
        pass


def test_a_link_is_not_replaced_by_a_file(paths: OutputPaths) -> None:
    """Of a link to the large disk or to nowhere: what it points to would stay as it was."""
    for place in (paths.results, paths.errors, paths.report):
        place.symlink_to("elsewhere")
        with pytest.raises(ConfigError, match="is a link to elsewhere"), PartialFolder(paths):
            pass
        place.unlink()
    assert not paths.partial.exists()


def test_a_folder_where_a_file_should_be(paths: OutputPaths) -> None:
    """Said before the run: else the report had its final name before the results failed."""
    for place in (paths.results, paths.errors, paths.report):
        place.mkdir()
        with pytest.raises(ConfigError, match="is a folder"), PartialFolder(paths):
            pass
        place.rmdir()
    assert not paths.partial.exists()
