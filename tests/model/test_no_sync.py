"""A GPU pass never waits for its device: it runs on tensors that have shapes and no values.

Model and cache of full width and depth lie on the ``meta`` device, kernels are taken for launched.
Whatever asked for a value, or for a shape that depends on one, would fail; so would a tensor made
on the host, which a GPU would have to wait for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from deepinfer.engine.cache.kv_cache import KVCache
from deepinfer.engine.execution.batch import ForwardBatch
from deepinfer.engine.execution.bound_model import BoundModel
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.model import Model
from deepinfer.engine.model.tensors import expected_tensors
from deepinfer.engine.speculation.draft_backlog import DraftBacklog

NUM_REQUESTS, CONTEXT, BLOCK_SIZE = 6, 65_536, 64


@pytest.fixture(scope="module", params=["any GPU", "Hopper"])
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    """On the second, weights and launchers are those of the Gluon kernels."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "Hopper":
            patch.setattr("deepinfer.kernels.gemm.dispatch._is_hopper", lambda weight: True)
            patch.setattr("deepinfer.kernels.launch.is_hopper", lambda device: True)
            h200 = SimpleNamespace(multi_processor_count=132)
            patch.setattr(torch.cuda, "get_device_properties", lambda device: h200)
        yield meta_model()


def meta_model() -> Model:
    document = ModelConfig.flash().to_dict()
    # Fewer experts only save time: 96,000 tensors have to be made otherwise.
    document["text_config"] |= {"n_routed_experts": 16, "dspark_n_routed_experts": 16}
    config = ModelConfig.from_dict(document, where="flash.json")
    tensors = {
        name: torch.empty(spec.shape, dtype=spec.dtype, device="meta")
        for name, spec in expected_tensors(config).items()
    }
    token_map = torch.zeros(config.vocab_size, dtype=torch.int64)
    return Model(config, tensors, device="meta", token_map=token_map)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that were launched; every tensor counts as one of a GPU."""
    from deepinfer.kernels import relaunch

    names: list[str] = []

    def note(kernel: Any, grid: Any, *args: Any, **named: Any) -> None:
        names.append(kernel.fn.__name__)

    monkeypatch.setattr(relaunch, "_launch", note)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True))
    return names


class NothingOnTheHost(TorchDispatchMode):
    """Every operation's result is on the device, but for the numbers in ``constant``."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dim():
            assert result.device.type == "meta", f"{function} made a tensor on the host"
        return result


def decode_batch(query_len: int) -> ForwardBatch:
    def ints(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int64, device="meta")

    tokens, requests = NUM_REQUESTS * query_len, NUM_REQUESTS
    return ForwardBatch(
        token_ids=ints(tokens),
        positions=ints(tokens),
        request_rows=ints(tokens),
        places=ints(tokens),
        query_lens=(query_len,) * requests,
        context_lens=(CONTEXT,) * requests,
        decoder_lens=(query_len,) * requests,
        block_table=ints(requests, CONTEXT // BLOCK_SIZE),
        state_slots=ints(requests),
        first=ints(requests),
        encoder_start=ints(requests),
        decoder_start=ints(requests),
        write_start=ints(requests),
        logit_rows=ints(tokens),
    )


def count(launches: list[str], operation: str) -> int:
    names = {f"{operation}{form}_kernel" for form in ("", "_gluon", "_listed")}
    return sum(name in names for name in launches)


def new_cache(model: Model) -> KVCache:
    return KVCache.allocate(
        model.config, num_blocks=8, block_size=BLOCK_SIZE, num_slots=NUM_REQUESTS, device="meta"
    )


@pytest.mark.parametrize("query_len", [1, 6])
def test_a_decode_step_reads_no_value(model: Model, launches: list[str], query_len: int) -> None:
    backlog = DraftBacklog(NUM_REQUESTS, model.config.sliding_window, "meta")
    bound = BoundModel(model, new_cache(model), backlog=backlog)
    with NothingOnTheHost():
        logits = bound.forward(decode_batch(query_len)).logits
    assert logits.shape == (NUM_REQUESTS * query_len, model.config.vocab_size)
    assert count(launches, "attention") == model.config.num_hidden_layers
    assert count(launches, "score") >= len(model.config.index_source_layer_ids)


@pytest.mark.parametrize("context", [CONTEXT, 2048])
def test_a_replay_reads_no_value(model: Model, launches: list[str], context: int) -> None:
    """The decoder layers on the last window of each prompt, long and short ones."""
    cache, window = new_cache(model), model.config.sliding_window
    whole = replace(
        decode_batch(window),
        context_lens=(context,) * NUM_REQUESTS,
        logit_rows=torch.empty(NUM_REQUESTS, dtype=torch.int64, device="meta"),
    )
    with pytest.MonkeyPatch.context() as patch:  # the encoder layers may send constants
        ints = {"dtype": torch.int64, "device": "meta"}
        patch.setattr(
            "deepinfer.engine.model.ring_writes.send",
            lambda values, device: torch.empty(len(values), **ints),
        )
        start = model.enter_decoder(model.encode(whole, cache), cache)
    launches.clear()
    with NothingOnTheHost():
        logits = model.finish(start.map(torch.clone), cache).logits
    assert logits.shape == (NUM_REQUESTS, model.config.vocab_size)
    assert count(launches, "attention") == model.config.num_decoder_layers


def test_drafting_reads_no_value(model: Model, launches: list[str]) -> None:
    bound = BoundModel(model, new_cache(model))
    numbers = torch.empty(NUM_REQUESTS, dtype=torch.int64, device="meta")
    with NothingOnTheHost():
        output = bound.draft(
            numbers, numbers, numbers, numbers,
            lambda logits, slots, positions: logits.argmax(-1), 2, True,
        )  # fmt: skip
    assert output.token_ids.shape == (NUM_REQUESTS, 2)
    assert count(launches, "attention") == model.config.num_nextn_predict_layers
