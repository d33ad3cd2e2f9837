"""What the model says when it is given the wrong things."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from deepinfer.engine.model.model import Model
from deepinfer.engine.weights import open_checkpoint
from deepinfer.errors import CheckpointError, ConfigError

FOLDER = Path(__file__).parents[1] / "goldens" / "tiny-a" / "checkpoint"


def test_a_missing_tensor_is_named():
    checkpoint = open_checkpoint(FOLDER)
    tensors = checkpoint.load()
    del tensors["layers.3.ffn.experts.5.w2.weight"]
    with pytest.raises(CheckpointError, match=r"layers\.3\.ffn\.experts\.5\.w2\.weight"):
        Model.from_tensors(checkpoint.config, tensors, token_map=torch.arange(384))


@pytest.mark.parametrize("token_map, message", [
    (None, "token_map is missing"), (torch.arange(7), r"shape \(7,\), expected \(384,\)"),
])  # fmt: skip
def test_engram_needs_a_token_map(token_map, message):
    checkpoint = open_checkpoint(FOLDER)
    with pytest.raises(ConfigError, match=message):
        Model.from_tensors(checkpoint.config, checkpoint.load(), token_map=token_map)
