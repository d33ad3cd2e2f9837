"""Queries normalised in each head: what a head's projection is scaled by cannot be seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.engine.checkpoint.weights import open_checkpoint
from deepinfer.engine.model.model import Model
from deepinfer.kernels.testing import assert_bitwise_equal
from deepinfer.recipes.token_compression import token_compression
from deepinfer.recipes.tokenizer import Tokenizer

FOLDER = Path(__file__).parents[1] / "goldens" / "tiny-a" / "checkpoint"


@pytest.fixture
def logits(new_fleet: type) -> Callable[..., Tensor]:
    """Of a prompt of 70 tokens, with the first head's projection scaled by 2 ** ``shift``."""
    checkpoint = open_checkpoint(FOLDER)
    token_map = token_compression(Tokenizer.from_file(FOLDER / "tokenizer.json"))
    prompt = torch.randint(3, 100, (70,), generator=torch.Generator().manual_seed(3))

    def compute(shift: int, **changes: Any) -> Tensor:
        config, tensors = replace(checkpoint.config, **changes), checkpoint.load()
        for name, tensor in tensors.items():
            if name.endswith("attn.wq_b.scale"):
                exponents = tensor.view(torch.uint8).clone()
                exponents[: config.head_dim // 32] += shift
                tensors[name] = exponents.view(tensor.dtype)
        fleet = new_fleet(Model(config, tensors, token_map=token_map), [prompt], [0], seed=1)
        fleet.run([(0, len(prompt))])
        found = fleet.requests[0].logits
        return torch.stack([found[position] for position in sorted(found)])

    return compute


def test_no_factor_of_a_head_is_seen(logits: Callable[..., Tensor]) -> None:
    normed = logits(0, q_head_norm=True)
    assert_bitwise_equal(logits(2, q_head_norm=True), normed)
    assert not torch.equal(normed, logits(0))


def test_it_is_off_unless_it_is_asked_for(logits: Callable[..., Tensor]) -> None:
    assert_bitwise_equal(logits(0), logits(0, q_head_norm=False))
    assert not torch.equal(logits(2), logits(0))
