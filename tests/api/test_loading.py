"""Where the tensors of a checkpoint go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from deepinfer import loading
from deepinfer.engine.checkpoint.weights import Checkpoint, open_checkpoint
from deepinfer.engine.model.model import Model
from deepinfer.engine.model.tensors import is_engram_table

FOLDER = Path(__file__).parents[1] / "goldens" / "tiny-a" / "checkpoint"


@pytest.fixture
def checkpoint() -> Checkpoint:
    return open_checkpoint(FOLDER)


def test_small_tables_go_to_the_device_and_the_model_moves_the_rest(checkpoint: Checkpoint) -> None:
    for name, tensor in loading.place_tensors(checkpoint, "meta").items():
        assert tensor.is_meta == is_engram_table(name), name


def test_a_large_table_stays_mapped_and_the_model_leaves_it_there(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_MOST_TABLE_BYTES", 1000)
    tensors = loading.place_tensors(checkpoint, "meta")
    assert not any(tensor.is_meta for tensor in tensors.values())
    token_map = torch.zeros(checkpoint.config.vocab_size, dtype=torch.int64)
    model = Model(checkpoint.config, tensors, device="meta", token_map=token_map)
    for engram in model.engrams.values():
        assert engram.table.device.type == engram.scales.device.type == "cpu"
        assert engram.wkv.values.is_meta


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
