"""Every example runs, with the model inside the package, and shows what it says."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_FOLDER = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., str]:
    """``example("tools.py", ...)``: what it prints, run in this process in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(_FOLDER / name), run_name="__main__")
        return capsys.readouterr().out

    return call


@pytest.fixture
def echoes() -> bool:
    """Whether ``deepinfer`` has an engine that echoes its prompts."""
    return False


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, echoes: bool) -> Path:
    """``deepinfer`` on the path, and an empty folder to be in."""
    program = tmp_path / "bin" / "deepinfer"
    program.parent.mkdir()
    entry = f"{sys.executable} -P -m deepinfer_cli.main"
    if echoes:
        entry = f"{sys.executable} {_FOLDER.parent}/tests/cli/fake_engine.py"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={_FOLDER.parent} exec {entry} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _shell(name: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(_FOLDER / name), *map(str, arguments)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=280,
    )


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def prompts(command: Path) -> Path:
    path = command / "prompts.jsonl"
    rows = [{"prompt": f"Tell me a story about {n} foxes.", "max_tokens": 60} for n in range(2, 14)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_all_examples_are_in_the_list_and_in_this_file() -> None:
    listed = (_FOLDER / "README.md").read_text(encoding="utf-8")
    tested = (
        Path(__file__).read_text() + (_FOLDER.parent / "tests/api/test_examples.py").read_text()
    )
    for path in _FOLDER.iterdir():
        if path.name != "README.md" and path.is_file():
            assert f"`{path.name}`" in listed and path.name in tested, path.name


def test_tools(example: Callable[..., str]) -> None:
    shown = example("tools.py")
    assert 'the model calls get_weather {"city": "Rome"}' in shown
    assert re.search("and answers: .*(sunny|21)", shown)


def test_json_schema(example: Callable[..., str]) -> None:
    shown = example("json_schema.py").splitlines()
    assert [line.split()[0] for line in shown] == ["valid", "valid"]
    assert "'name': 'Tom', 'age': 9" in shown[0]


@pytest.mark.slow
def test_shared_prefix(example: Callable[..., str]) -> None:
    shown = example("shared_prefix.py")
    shares = [tuple(map(int, pair)) for pair in re.findall(r"(\d+) of (\d+) tokens shared", shown)]
    assert len(shares) == 4 and all(cached > 0.5 * total for cached, total in shares)


def test_openai_batch(command: Path, example: Callable[..., str]) -> None:
    example("openai_batch.py", str(_FOLDER / "openai_batch.jsonl"), "answers.jsonl")
    first, second, wrong = _rows(command / "answers.jsonl")
    assert first["custom_id"] == "ask-1" and second["custom_id"] == "ask-2"
    assert "Paris" in first["response"]["body"]["choices"][0]["message"]["content"]
    assert wrong["response"] is None and wrong["error"]["kind"] == "unknown_url"


@pytest.mark.parametrize("echoes", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_parquet(command: Path, example: Callable[..., str], echoes: bool) -> None:
    shown = example("parquet.py").splitlines()
    assert len(shown) == 3 and ("Italy" if echoes else "Rome") in shown[0]
    assert '"topic": "map"' in shown[0]


@pytest.mark.slow
def test_resume_answers_every_row_once(prompts: Path) -> None:
    """Killed as early as it is, the second command has work to do and does it."""
    done = _shell("resume.sh", prompts, "answers.jsonl")
    assert done.returncode == 0, done.stderr
    assert [row["id"] for row in _rows(prompts.parent / "answers.jsonl")] == [
        str(line) for line in range(1, 13)
    ]


@pytest.mark.slow
def test_shards_give_what_one_run_gives(prompts: Path) -> None:
    exact = {"DEEPINFER_BATCH_INVARIANT": "1"}
    assert _shell("shards.sh", prompts, "parts.jsonl", **exact).returncode == 0
    one = ["deepinfer", "run", str(prompts), "-o", "one.jsonl", "--quiet"]
    assert subprocess.run(one, env=os.environ | exact).returncode == 0
    folder = prompts.parent
    assert (folder / "parts.jsonl").read_bytes() == (folder / "one.jsonl").read_bytes()


def test_nightly(command: Path) -> None:
    """Silent when all is well and when there is nothing to do; not when something is wrong."""
    source = command / "in.jsonl"
    source.write_text('{"prompt": "Hi"}\n' * 3)
    fake = f"{sys.executable} {_FOLDER.parent}/tests/cli/fake_engine.py"
    (command / "bin" / "deepinfer").write_text(
        f'#!/bin/sh\nPYTHONPATH={_FOLDER.parent} exec {fake} "$@"\n'
    )
    for _ in range(2):
        done = _shell("nightly.sh", source, "out.jsonl")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(_rows(command / "out.jsonl")) == 3
    done = _shell("nightly.sh", command / "missing.jsonl", "other.jsonl")
    assert done.returncode == 4 and "cannot read" in done.stderr


def test_the_line_for_cron_names_a_script_that_is_there(command: Path) -> None:
    """Five fields of time, then the script; cron's own environment is enough for it."""
    page = (_FOLDER.parent / "docs" / "cookbook.md").read_text(encoding="utf-8")
    found = re.search(
        r"^(\S+ \S+ \S+ \S+ \S+)\s+/opt/deepinfer/examples/(\S+) ", page, re.MULTILINE
    )
    assert found is not None and (_FOLDER / found[2]).exists()
    assert all(re.fullmatch(r"\*|\d+", field) for field in found[1].split())
    (command / "in.jsonl").write_text('{"prompt": "Hi"}\n')
    fake = f"exec {sys.executable} {_FOLDER.parent}/tests/cli/fake_engine.py"
    program = command / "bin" / "deepinfer"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={_FOLDER.parent} {fake} "$@"\n')
    bare = {"SHELL": "/bin/sh", "PATH": "/usr/bin:/bin", "DEEPINFER": str(program)}
    line = [str(_FOLDER / found[2]), "in.jsonl", "out.jsonl"]
    done = subprocess.run(line, env=bare, capture_output=True, cwd=command, timeout=240)
    assert (done.returncode, done.stderr) == (0, b"") and (command / "out.jsonl").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray warns about its own future
def test_ray(example: Callable[..., str]) -> None:
    ray = pytest.importorskip("ray", reason="ray_cluster.py needs Ray, which is not installed here")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        assert len(example("ray_cluster.py").splitlines()) == 16
    finally:
        ray.shutdown()
