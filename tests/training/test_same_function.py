"""The trainer's forward pass is the engine's, on the exported checkpoint, up to rounding noise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from deepinfer.engine.cache.kv_cache import KVCache
from deepinfer.engine.execution.batch import ForwardBatch, ForwardOutput
from deepinfer.engine.model.block import Block
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.model import Model
from deepinfer.engine.model.residual import Entered, Pending, Residual
from deepinfer.recipes.token_compression import token_compression
from deepinfer.recipes.tokenizer import Tokenizer
from training.batches import Batch, make_batch
from training.draft import Drafter, guess_logits
from training.export import checkpoint_tensors
from training.model import Backbone, Trace
from training.parameters import Weights, effective_weights, new_masters

GOLDEN = Path(__file__).parents[1] / "goldens" / "tiny-a" / "checkpoint"
MARKOV = "mtp.1.markov_head.embed.weight"
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
        if name.endswith(("markov_head.head.weight", "confidence_head.proj.weight")):
            masters[name] = 0.3 * torch.randn(masters[name].shape, generator=generator)
        if name.endswith(".gate.bias"):
            biases[name] = masters[name] = 0.1 * torch.randn(
                masters[name].shape, generator=generator
            )
    tensors = checkpoint_tensors(masters, config)
    model = Model(config, tensors, token_map=token_map)
    with torch.no_grad():
        weights = effective_weights(masters, config)
    return Pair(config, masters, weights, biases, Backbone(config, token_map, device), model)


def documents(lengths: list[int]) -> list[np.ndarray]:
    generator = np.random.default_rng(5)
    return [np.r_[0, generator.integers(10, 300, n - 1)].astype(np.uint16) for n in lengths]


def engine_forward(model: Model, document: np.ndarray, decoder_start: int = 0) -> ForwardOutput:
    return model.forward(forward_batch(document, decoder_start), new_cache(model))


def new_cache(model: Model) -> KVCache:
    return KVCache.allocate(model.config, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, num_slots=1)


def forward_batch(document: np.ndarray, decoder_start: int = 0) -> ForwardBatch:
    length = len(document)
    return ForwardBatch.of(
        token_ids=document,
        query_lens=[length],
        first=[0],
        block_table=[range(NUM_BLOCKS)],
        state_slots=[0],
        encoder_start=[0],
        decoder_start=[decoder_start],
        write_start=[0],
        logit_rows=range(decoder_start, length),
    )


def trainer_forward(pair: Pair, batch: Batch) -> tuple[Tensor, Trace]:
    with torch.no_grad():
        trace = pair.backbone(pair.weights, pair.biases, batch)
    return trace.hidden.float() @ pair.weights["head.weight"].float().T, trace


def relative_error(actual: Tensor, expected: Tensor) -> Tensor:
    return (actual - expected).norm(dim=-1) / expected.norm(dim=-1)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, ...]]:
    """(streams, pre) before and after every block that the engine runs."""
    seen: list[tuple[Tensor, ...]] = []
    enter, run = Block.enter, Block.run

    def recording_enter(self: Block, residual: Residual) -> Entered:
        before = residual.settle()
        seen.append((before.streams, before.pre))
        return enter(self, residual)

    def recording_run(self: Block, *args: Any) -> Pending:
        result = run(self, *args)
        after = result.settle()
        seen[-1] += (after.streams, after.pre)
        return result

    monkeypatch.setattr(Block, "enter", recording_enter)
    monkeypatch.setattr(Block, "run", recording_run)
    return seen


def test_each_layer_gives_the_engines_output_on_the_engines_input(
    pair: Pair, recorded: list[tuple[Tensor, ...]]
) -> None:
    """Without the drift of earlier layers: a wrong sub-block cannot hide in it."""
    (document,) = documents([LENGTH])
    engine_forward(pair.model, document)
    batch = make_batch([[document]], LENGTH, np.random.default_rng(0), replay_share=0.0)
    tables = pair.backbone.rotary.tables(torch.arange(LENGTH))
    trace = Trace()
    for plan, (streams, pre, expected, expected_pre) in zip(
        pair.config.layers, recorded, strict=True
    ):
        with torch.no_grad():
            streams, pre = pair.backbone.block(
                streams, pre, plan, pair.weights, pair.biases, batch, tables, trace
            )
        error = relative_error(streams.flatten(1).float(), expected.flatten(1).float())
        assert float(error.median()) < 0.01, plan
        assert float((error < 0.03).float().mean()) > 0.9, plan  # a few experts or picks may flip
        torch.testing.assert_close(pre, expected_pre, atol=0.02, rtol=0.02)


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


def test_replay_cuts_the_decoder_windows_as_the_engine_does(
    pair: Pair, recorded: list[tuple[Tensor, ...]]
) -> None:
    (document,) = documents([40])
    start, split = 22, pair.config.split_layer
    engine_forward(pair.model, document)
    streams, pre, exact, _ = recorded[split]
    recorded.clear()
    engine_forward(pair.model, document, decoder_start=start)
    expected = recorded[split][2]
    batch = make_batch([[document]], LENGTH, np.random.default_rng(0), replay_share=0.0)
    batch.segments[0, start:40] = start
    missing = LENGTH - len(document)
    with torch.no_grad():
        actual, _ = pair.backbone.block(
            torch.cat([streams, torch.zeros_like(streams[:missing])]),
            torch.cat([pre, pre[:missing]]),
            pair.config.layers[split], pair.weights, pair.biases, batch,
            pair.backbone.rotary.tables(torch.arange(LENGTH) - batch.starts[0]), Trace(),
        )  # fmt: skip
    error = relative_error(actual[start:40].flatten(1).float(), expected.flatten(1).float())
    cut = relative_error(exact[start:].flatten(1).float(), expected.flatten(1).float())
    assert float(error.max()) < 0.02
    assert float(cut[:4].min()) > 0.02  # most of the window is missing there


def test_draft_stages_give_the_engines_guess(pair: Pair) -> None:
    (document,) = documents([32])
    batch = make_batch([[document]], LENGTH, np.random.default_rng(0), replay_share=0.0)
    anchor, steps = 20, torch.arange(pair.config.dspark_block_size)
    cache = new_cache(pair.model)
    output = pair.model.forward(forward_batch(document[:anchor]), cache)
    positions = torch.arange(anchor)
    pair.model.seed_draft(
        output.main_hidden, positions, torch.zeros_like(positions), [anchor], cache
    )
    tokens = torch.from_numpy(document.astype(np.int64))
    zero = torch.tensor([0])
    expected = pair.model.draft(
        tokens[anchor : anchor + 1], torch.tensor([anchor]), zero, zero, cache,
        lambda logits, at: tokens[at],
    )  # fmt: skip
    main_hidden = torch.zeros(LENGTH, output.main_hidden.shape[1], dtype=torch.bfloat16)
    main_hidden[:anchor] = output.main_hidden
    drafter = Drafter(pair.config, pair.backbone.rotary)
    with torch.no_grad():
        guess = drafter(pair.weights, pair.biases, batch, main_hidden, torch.tensor([anchor]))
        logits, confidence = guess_logits(
            guess.hidden[0], guess.previous[0], pair.weights, pair.config
        )
    assert torch.equal(guess.previous[0], pair.weights[MARKOV][tokens[anchor + steps]])
    assert float(relative_error(logits, expected.logits[0]).max()) < 0.03
    torch.testing.assert_close(confidence.sigmoid(), expected.confidence[0], atol=0.02, rtol=0.02)
