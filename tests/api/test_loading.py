"""What loading a model needs."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from deepinfer import loading
from deepinfer.engine.checkpoint.engram_tables import PlacedTables
from deepinfer.engine.checkpoint.weights import Checkpoint
from deepinfer.engine.model.model import Model
from deepinfer.engine.model.tensors import is_engram_table


def test_a_cpu_needs_no_triton() -> None:
    """Triton is for Linux only, and importing it takes longer than all of the rest."""
    program = (
        "import sys; sys.modules['triton'] = None\n"
        "import deepinfer_cli.main, deepinfer.bench.embedded\n"
        "from deepinfer import OfflineEngine, SamplingParams\n"
        "with OfflineEngine(device='cpu') as engine:\n"
        "    [row] = engine.generate(['Hello'], SamplingParams(max_tokens=3))\n"
        "print(row.usage.completion_tokens)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "3\n", done.stderr


def test_tables_that_the_device_does_not_read_forbid_graphs_with_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[dict[str, object]] = []

    def place(checkpoint: Checkpoint, *_: object, may_copy: bool) -> PlacedTables:
        assert may_copy
        return PlacedTables(checkpoint.load(is_engram_table), "on the host")

    def make_engine(*_: object, **options: object) -> object:
        made.append(options)
        return SimpleNamespace(profile=None)

    monkeypatch.setattr(loading, "place_tables", place)
    monkeypatch.setattr(loading, "LLMEngine", make_engine)
    for is_read in (True, False):
        monkeypatch.setattr(Model, "can_capture", property(lambda _, value=is_read: value))
        loaded = loading.load_model(None, {}, device="cpu")
        assert loaded.notes["engram_tables"] == "on the host"
    assert [options["captures"] for options in made] == [True, False]
