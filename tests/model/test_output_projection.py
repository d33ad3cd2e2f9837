"""FP8 inputs of the first product after attention: rounded as those of other products, no more."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from deepinfer.engine.checkpoint.weights import open_checkpoint
from deepinfer.engine.model.model import Model
from deepinfer.kernels.quant import fake_quantize_fp8
from deepinfer.kernels.testing import assert_bitwise_equal, relative_error
from deepinfer.recipes.token_compression import token_compression
from deepinfer.recipes.tokenizer import Tokenizer

GOLDENS = Path(__file__).parents[1] / "goldens"


@cache
def models(name: str) -> tuple[Model, Model]:
    """With bf16 and with FP8 inputs."""
    folder = GOLDENS / name / "checkpoint"
    checkpoint = open_checkpoint(folder)
    token_map = token_compression(Tokenizer.from_file(folder / "tokenizer.json"))
    bf16, fp8 = (
        Model(checkpoint.config, checkpoint.load(), token_map=token_map, output_as_fp8=as_fp8)
        for as_fp8 in (False, True)
    )
    return bf16, fp8


def test_it_is_the_same_product_of_rounded_inputs() -> None:
    bf16, fp8 = (model.blocks[0].attention for model in models("tiny-a"))
    heads = torch.randn(7, *bf16.q_shape).to(torch.bfloat16)
    assert_bitwise_equal(fp8.project(heads), bf16.project(fake_quantize_fp8(heads)))
    # E4M3 has three bits behind the leading one: 2.7e-2 on average.
    error = relative_error(fp8.project(heads), bf16.project(heads))
    assert 0.01 < float(error.min()) <= float(error.max()) < 0.06


@pytest.mark.parametrize("name", ["tiny-a", "kdim-a"])
def test_answers_differ_but_not_by_chunks(name: str, new_fleet: type) -> None:
    bf16, fp8 = models(name)
    prompt = torch.randint(3, bf16.config.vocab_size - 60, (70,))
    results = []
    for model, chunks in ((fp8, [70]), (fp8, [1, 30, 39]), (bf16, [70])):
        fleet = new_fleet(model, [prompt], [0], seed=1)
        for count in chunks:
            fleet.run([(0, count)])
        found = fleet.requests[0].logits
        results.append(torch.stack([found[position] for position in range(len(prompt))]))
    whole, chunked, expected = results
    assert_bitwise_equal(chunked, whole)
    assert not torch.equal(whole, expected)
