"""What the model takes from a checkpoint, and what it says when it is given the wrong things."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from deepinfer.engine.checkpoint.weights import open_checkpoint
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.model import Model
from deepinfer.engine.model.tensors import expected_tensors
from deepinfer.errors import CheckpointError, ConfigError

GOLDENS = Path(__file__).parents[1] / "goldens"
FOLDER = GOLDENS / "tiny-a" / "checkpoint"


def test_a_missing_tensor_is_named():
    checkpoint = open_checkpoint(FOLDER)
    tensors = checkpoint.load()
    del tensors["layers.3.ffn.experts.5.w2.weight"]
    with pytest.raises(CheckpointError, match=r"layers\.3\.ffn\.experts\.5\.w2\.weight"):
        Model(checkpoint.config, tensors, token_map=torch.arange(384))


def test_the_router_bias_of_images_may_be_absent():
    checkpoint = open_checkpoint(FOLDER)
    tensors = {n: t for n, t in checkpoint.load().items() if not n.endswith("bias_vl")}
    model = Model(checkpoint.config, tensors, token_map=torch.arange(384))
    assert model.blocks[0].moe.image_bias is model.blocks[0].moe.bias


@pytest.mark.parametrize("token_map, message", [
    (None, "token_map is missing"), (torch.arange(7), r"shape \(7,\), expected \(384,\)"),
])  # fmt: skip
def test_engram_needs_a_token_map(token_map, message):
    checkpoint = open_checkpoint(FOLDER)
    with pytest.raises(ConfigError, match=message):
        Model(checkpoint.config, checkpoint.load(), token_map=token_map)


@pytest.mark.parametrize("name", ["tiny-a", "kdim-a"])
def test_every_expected_tensor_is_used_and_no_other(name):
    class Recorder(dict):
        def __getitem__(self, key):
            used.add(key)
            return super().__getitem__(key)

    used = set()
    checkpoint = open_checkpoint(GOLDENS / name / "checkpoint")
    config = checkpoint.config
    token_map = torch.zeros(config.vocab_size, dtype=torch.int64)
    Model(config, Recorder(checkpoint.load()), token_map=token_map)
    assert used == set(expected_tensors(config))


def test_the_model_of_full_width_and_depth_builds_on_the_meta_device():
    document = ModelConfig.flash().to_dict()
    # Fewer experts only save time: 96,000 tensors have to be made otherwise.
    document["text_config"] |= {"n_routed_experts": 32, "dspark_n_routed_experts": 16}
    config = ModelConfig.from_dict(document, where="flash.json")
    tensors = {
        name: torch.empty(spec.shape, dtype=spec.dtype, device="meta")
        for name, spec in expected_tensors(config).items()
    }
    token_map = torch.zeros(config.vocab_size, dtype=torch.int64)
    model = Model(config, tensors, device="meta", token_map=token_map)
    assert len(model.blocks) == 40
    assert model.blocks[20].moe.routed.gate_up.values.shape == (32, 2 * 2304, 5120 // 2)
    assert model.blocks[0].attention.project.wo_a.values.shape == (8, 1024, 4096)
    assert [block.plan.layer_id for block in model.draft_model.blocks] == [40, 41, 42]
