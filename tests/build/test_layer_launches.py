"""How many kernels a layer of a decode step is, counted without a GPU: all of them one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

_LAYER = 9  # one that uses the picks of another

_COUNT = """
import json, sys
import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from deepinfer.engine import kernel_plan
from deepinfer.engine.cache.kv_cache import KVCache
from deepinfer.engine.execution.batch import ForwardBatch
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.residual import Settled
from deepinfer.engine.model.share import WholeModel
from deepinfer.engine.model.streams import initial_streams
from deepinfer.kernels import rehearsal, relaunch

EMPTY = {"empty", "empty_like", "new_empty", "empty_strided", "zero_"}  # the last in the rehearsal
launched = []

def places(values):
    tensors = [v for v in torch.utils._pytree.tree_leaves(values) if isinstance(v, torch.Tensor)]
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}

class Torch(TorchDispatchMode):
    # Notes what is neither a view nor uninitialised memory.

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, result = func.__name__.split(".")[0], func(*args, **(kwargs or {}))
        is_view = not func._schema.is_mutable and places(result) <= places(args)
        if name not in EMPTY and not is_view:
            launched.append(name)
        return result

def note(kernel, *unused, **named):
    launched.append(kernel.fn.__name__)

layer, requests, length = map(int, json.loads(sys.argv[1]))
config = ModelConfig.flash()
device = rehearsal.PretendedDevice((9, 0))

class Two(WholeModel):
    def has_layer(self, plan):
        return plan.layer_id in (layer - 1, layer)

model = kernel_plan.model_of_zeros(config, device, Two())
before, wanted = model.blocks
zeros, tokens = np.zeros(requests, dtype=np.int64), requests * length
with rehearsal.rehearse(device), torch.inference_mode():
    blocks = torch.arange(requests * 32).view(requests, 32)  # of 64 tokens, each request its own
    cache = KVCache.allocate(config, num_blocks=blocks.numel(), block_size=64, num_slots=requests)
    batch = ForwardBatch.of(
        token_ids=np.zeros(tokens, dtype=np.int64), query_lens=(length,) * requests,
        first=zeros + 2000, block_table=blocks,
        state_slots=np.arange(requests), encoder_start=zeros, decoder_start=zeros,
        write_start=zeros, logit_rows=np.arange(tokens),
    )
    views, kv = model._begin(batch, batch.encoder_start, cache)
    embedded = torch.zeros(tokens, config.hidden_size, dtype=torch.bfloat16)
    residual = Settled(*initial_streams(embedded, config.hc_mult))
    for block in (before, wanted, wanted):  # twice, since some forms of weights are made once
        launched.clear()
        with rehearsal._replaced(relaunch, "_launch", note), Torch():
            entered = block.enter(residual)
            block.write_global_kv(entered.rows.values, views, kv)
            residual = block.run(entered, views, cache.window[block.plan.layer_id], kv)
print(json.dumps(launched))
"""


@pytest.mark.slow
@pytest.mark.parametrize("requests, length, most", [(256, 6, 16), (8, 6, 20), (1, 1, 18)])
def test_kernels_of_a_layer_that_only_reads(
    requests: int, length: int, most: int, in_own_process: Callable[..., Any]
) -> None:
    """All experts here; nothing of torch, and each product with as little as possible around it."""
    launched = in_own_process(_COUNT, str([_LAYER, requests, length]))
    assert launched.count("attention_gluon_kernel") == 1
    assert [name for name in launched if not name.endswith("_kernel")] == []
    assert len(launched) <= most, Counter(launched)
