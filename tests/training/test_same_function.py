"""The trainer's forward pass is the engine's, on the exported checkpoint, up to rounding noise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from deepinfer.engine.batch import ForwardBatch, ForwardOutput
from deepinfer.engine.kv_cache import KVCache
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.model import Model
from deepinfer.recipes.token_compression import token_compression
from deepinfer.recipes.tokenizer import Tokenizer
from training.batches import Batch, make_batch
from training.export import checkpoint_tensors
from training.model import Backbone, Trace
from training.parameters import Weights, effective_weights, new_masters

GOLDEN = Path(__file__).parents[1] / "goldens" / "tiny-a" / "checkpoint"
LENGTH = 64
NUM_BLOCKS, BLOCK_SIZE = 4, 32


@dataclass(frozen=True)
class Pair:
    config: ModelConfig
    masters: Weights
    weights: Weights
    biases: Weights
    backbone: Backbone
    model: Model


@pytest.fixture(scope="module")
def pair() -> Pair:
    config = ModelConfig.from_file(GOLDEN)
    token_map = torch.from_numpy(token_compression(Tokenizer.from_file(GOLDEN / "tokenizer.json")))
    device = torch.device("cpu")
    masters = new_masters(config, 0, device)
    generator = torch.Generator().manual_seed(1)
    biases = {}
    for name in masters:
        if name.endswith(".gate.bias"):
            biases[name] = masters[name] = 0.1 * torch.randn(
                masters[name].shape, generator=generator
            )
    tensors = checkpoint_tensors(masters, config)
    model = Model.from_tensors(config, tensors, token_map=token_map)
    with torch.no_grad():
        weights = effective_weights(masters, config)
    return Pair(config, masters, weights, biases, Backbone(config, token_map, device), model)


def documents(lengths: list[int]) -> list[np.ndarray]:
    generator = np.random.default_rng(5)
    return [np.r_[0, generator.integers(10, 300, n - 1)].astype(np.uint16) for n in lengths]


def engine_forward(model: Model, document: np.ndarray, decoder_start: int = 0) -> ForwardOutput:
    length = len(document)
    cache = KVCache.allocate(
        model.config, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, num_slots=1
    )
    batch = ForwardBatch(
        token_ids=torch.from_numpy(document.astype(np.int64)),
        positions=torch.arange(length),
        request_rows=torch.zeros(length, dtype=torch.int64),
        query_lens=(length,),
        context_lens=(length,),
        block_table=torch.arange(NUM_BLOCKS, dtype=torch.int32)[None],
        state_slots=torch.tensor([0]),
        encoder_start=torch.tensor([0]),
        decoder_start=torch.tensor([decoder_start]),
        write_start=torch.tensor([0]),
        logit_rows=torch.arange(decoder_start, length),
    )
    return model.forward(batch, cache)


def trainer_forward(pair: Pair, batch: Batch) -> tuple[Tensor, Trace]:
    with torch.no_grad():
        trace = pair.backbone(pair.weights, pair.biases, batch)
    return trace.hidden.float() @ pair.weights["head.weight"].float().T, trace


def relative_error(actual: Tensor, expected: Tensor) -> Tensor:
    return (actual - expected).norm(dim=-1) / expected.norm(dim=-1)


def test_documents_in_a_row_get_the_engines_logits(pair: Pair) -> None:
    docs = documents([24, 31])
    batch = make_batch([docs], LENGTH, np.random.default_rng(0), replay_share=0.0)
    logits, trace = trainer_forward(pair, batch)
    for document, begin in zip(docs, (0, 24), strict=True):
        expected = engine_forward(pair.model, document)
        part = slice(begin, begin + len(document))
        error = relative_error(logits[part], expected.logits)
        assert float(error.median()) < 0.1
        taps = relative_error(trace.main_hidden[part].float(), expected.main_hidden.float())
        assert float(taps.median()) < 0.1


def test_replayed_documents_get_the_engines_logits(pair: Pair) -> None:
    (document,) = documents([40])
    batch = make_batch([[document]], LENGTH, np.random.default_rng(0), replay_share=0.0)
    start = 22
    batch.segments[0, start:40] = start
    logits, _ = trainer_forward(pair, batch)
    expected = engine_forward(pair.model, document, decoder_start=start)
    assert float(relative_error(logits[start:40], expected.logits).median()) < 0.1
    exact = engine_forward(pair.model, document).logits[start:]
    assert float(relative_error(exact, expected.logits).median()) > 0.15  # replay does differ
