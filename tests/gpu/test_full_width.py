"""Layers of the released widths, random weights: each block on the CPU's streams, on a GPU."""

from __future__ import annotations

import time
from functools import cache

import pytest
import torch
from gpu_models import Passes
from torch import Tensor

from deepinfer.engine.checkpoint.random_weights import random_tensors
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.model import Model
from deepinfer.engine.model.residual import Residual, Settled
from deepinfer.engine.model.streams import initial_streams
from deepinfer.kernels.testing import relative_error

pytestmark = pytest.mark.gpu

NUM_EXPERTS, VOCAB_SIZE, PROMPT_LEN = 16, 4096, 24
# That of single layers on golden streams in ``test_goldens_gpu.py``: 2.2 x 0.0165.
LIMIT = 0.0363


def six_layers() -> ModelConfig:
    """One layer of each kind: window only, both kinds of source, reindex, reuse; one Engram.

    Widths, heads and formats are the released ones; experts and vocabulary are fewer, because the
    CPU has to compute the same.
    """
    document = ModelConfig.flash().to_dict()
    text = document["text_config"]
    text |= {
        "num_hidden_layers": 6,
        "compress_ratios": [0, 2, 2, 1, 1, 1],
        "kv_source_layer_ids": [1, 3],
        "index_source_layer_ids": [1, 3, 4],
        "candidate_source_layer_id": 3,
        "n_routed_experts": NUM_EXPERTS,
        "vocab_size": VOCAB_SIZE,
        "engram_layer_ids": [1],
        "engram_vocab_size": 2048,
        "engram_num_embeddings": [51_342],
        "engram_compressed_vocab_size": VOCAB_SIZE,
        "num_nextn_predict_layers": 0,
        "dspark_target_layer_ids": [],
        "dspark_noise_token_id": 5,
    }
    document["image_token_id"] = None
    return ModelConfig.from_dict(document, where="six layers")


@cache
def tensors() -> dict[str, Tensor]:
    return random_tensors(six_layers(), 7, device="cuda" if torch.cuda.is_available() else "cpu")


def model_on(device: str) -> Model:
    placed = {name: tensor.to(device) for name, tensor in tensors().items()}
    return Model(six_layers(), placed, device=device, token_map=torch.arange(VOCAB_SIZE))


def run_blocks(
    model: Model, token_ids: Tensor, given: list[tuple[Tensor, Tensor]] | None
) -> list[tuple[Tensor, Tensor]]:
    """Streams and ``pre`` before and after every block, on the CPU; each block starts from
    ``given`` if there is any."""
    device = model.device
    passes = Passes(model, 1, 64)
    batch = passes.batch([(0, token_ids)])
    tokens, kv = model._begin(batch, batch.encoder_start, passes.cache)
    lookback = model._lookback(batch, tokens, passes.cache)
    embedded = model.embed[batch.token_ids]
    residual: Residual = Settled(*initial_streams(embedded, model.config.hc_mult))
    seen = [on_cpu(residual)]
    with torch.inference_mode():
        for layer, block in enumerate(model.blocks):
            if given is not None:
                streams, pre = (tensor.to(device) for tensor in given[layer])
                residual = Settled(streams, pre)
            if layer in model.engrams:
                residual = model.engrams[layer](residual.settle(), lookback, tokens.is_image)
            entered = block.enter(residual)
            block.write_global_kv(entered.rows.values, tokens, kv)
            residual = block.run(entered, tokens, passes.cache.window[layer], kv)
            seen.append(on_cpu(residual))
    return seen


def on_cpu(residual: Residual) -> tuple[Tensor, Tensor]:
    settled = residual.settle()
    return settled.streams.cpu(), settled.pre.cpu()


def test_blocks_agree() -> None:
    token_ids = torch.randint(3, VOCAB_SIZE, (PROMPT_LEN,), generator=torch.Generator())
    started = time.perf_counter()
    cpu = run_blocks(model_on("cpu"), token_ids, None)
    gpu = run_blocks(model_on("cuda"), token_ids, cpu)
    errors = []
    for (actual, pre), (wanted, wanted_pre) in zip(gpu[1:], cpu[1:], strict=True):
        errors.append(float(relative_error(actual.flatten(1), wanted.flatten(1)).quantile(0.9)))
        assert float((pre - wanted_pre).abs().quantile(0.9)) < 0.05
    print(f"block errors {errors}, {time.perf_counter() - started:.0f} s")
    assert max(errors) < LIMIT
