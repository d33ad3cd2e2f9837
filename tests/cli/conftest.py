"""The command line with a fake engine: inside this process, or as a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from deepinfer_cli.main import main

sys.path.append(str(Path(__file__).parent))

# Nothing but the way to python's tools and to this checkout.
BARE = {"PATH": os.defpath, "PYTHONPATH": str(Path(__file__).parents[2])}
_SCRIPT = Path(__file__).with_name("fake_engine.py")


def _load(name: str) -> ModuleType:
    """A helper module of this folder."""
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


FakeEngine = _load("fake_engine").FakeEngine


@dataclass(frozen=True)
class Outcome:
    exit_code: int
    out: bytes
    err: str
    engines: tuple[Any, ...] = ()

    @property
    def rows(self) -> list[dict[str, Any]]:
        return read_lines(self.out)


@dataclass(eq=False)
class _Engines:
    """What the program asks for an engine: the same at every call, so that it is built once."""

    options: dict[str, Any] = field(default_factory=dict)
    made: list[Any] = field(default_factory=list)

    def make(self, settings: Any) -> Any:
        self.made.append(FakeEngine(settings, **self.options))
        return self.made[-1]


_ENGINES = _Engines()


def read_lines(data: bytes | Path) -> list[dict[str, Any]]:
    """JSON lines, each of them strict."""
    data = data.read_bytes() if isinstance(data, Path) else data

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in the output")

    return [json.loads(line, parse_constant=refuse) for line in data.split(b"\n") if line]


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, and an environment without our variables.  Files need not reach the
    disk: only runs in processes of their own are killed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    for name in ("DEEPINFER_BATCH_INVARIANT", "DEEPINFER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def cli(in_tmp: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Outcome]:
    """``cli("run", "in.jsonl", ..., window=8)``: the program in this process."""

    def call(*arguments: object, **engine_options: Any) -> Outcome:
        _ENGINES.options, _ENGINES.made = engine_options, []
        capfdbinary.readouterr()
        exit_code = main([str(argument) for argument in arguments], _ENGINES.make)
        captured = capfdbinary.readouterr()
        return Outcome(exit_code, captured.out, captured.err.decode(), tuple(_ENGINES.made))

    return call


@pytest.fixture
def fake_engine() -> type[Any]:
    engine: type[Any] = FakeEngine
    return engine


@pytest.fixture
def hostile_inputs() -> ModuleType:
    return _load("hostile_inputs")


@pytest.fixture
def command() -> list[str]:
    """The program with the fake engine, as the beginning of a command line."""
    return [sys.executable, str(_SCRIPT)]


@pytest.fixture
def process(in_tmp: Path, command: list[str]) -> Callable[..., Outcome]:
    """``process("run", "-", stdin=b"...")``: the program as a process of its own."""

    def call(
        *arguments: object, stdin: bytes = b"", env: Mapping[str, str] | None = None
    ) -> Outcome:
        done = subprocess.run(
            [*command, *map(str, arguments)], input=stdin, capture_output=True, env=env, timeout=240
        )
        return Outcome(done.returncode, done.stdout, done.stderr.decode())

    return call


@pytest.fixture
def start(in_tmp: Path, command: list[str]) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """``start("run", ..., seconds_per_row=0.1)``: a process, killed when the test ends."""
    with ExitStack() as cleanup:

        def call(
            *arguments: str, seconds_per_row: float = 0.0, stdin: int | None = None
        ) -> subprocess.Popen[bytes]:
            environment = {**BARE, "FAKE_SECONDS_PER_ROW": str(seconds_per_row)}
            process = subprocess.Popen(
                [*command, *arguments],
                env=environment,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            cleanup.enter_context(process)  # closes its pipes and waits for it
            cleanup.callback(process.kill)
            return process

        yield call
