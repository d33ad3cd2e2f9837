"""Each layer alone on golden inputs: the strictest check, no error can add up."""

from __future__ import annotations

import torch

from deepinfer.engine.model.residual import Settled
from deepinfer.kernels.testing import relative_error


def test_layers_on_golden_streams(golden, new_session, stream_length):
    """Layer l on h[l] and pre_mix[l] gives h[l + 1] and pre_mix[l + 1].

    Compressed entries and picks come from the producing layers, themselves run on golden inputs.
    The stored h[l + 1] has the Engram of layer l + 1 already applied, so it is applied here too.
    """
    model, data = golden.model, golden.data
    streams, pre = data[f"p{stream_length}.h"], data[f"p{stream_length}.pre_mix"]
    session = new_session(golden)
    batch = session.batch(data[f"p{stream_length}.input_ids"])
    tokens, kv = model._begin(batch, batch.encoder_start, session.cache)
    lookback = model._lookback(batch, tokens, session.cache)
    with torch.inference_mode():
        for layer, block in enumerate(model.blocks):
            entered = block.enter(Settled(streams[layer], pre[layer]))
            block.write_global_kv(entered.rows.values, tokens, kv)
            ring = session.cache.window[layer]
            after = block.run(entered, tokens, ring, kv).settle()
            if layer + 1 in model.engrams:
                after = model.engrams[layer + 1](after, lookback, tokens.is_image)
            error = relative_error(after.streams.flatten(1), streams[layer + 1].flatten(1))
            assert (
                float(error.quantile(0.9)) <= golden.facts["tolerances"]["strict"]["layer_p90_rel"]
            )
            assert float((after.pre - pre[layer + 1]).abs().quantile(0.9)) <= 1e-3


def test_engram_rows_are_exact(golden, new_session, prompt_length):
    model = golden.model
    session = new_session(golden)
    batch = session.batch(golden.data[f"p{prompt_length}.input_ids"])
    tokens, _ = model._begin(batch, batch.encoder_start, session.cache)
    lookback = model._lookback(batch, tokens, session.cache)
    rows = torch.stack([engram.rows(lookback) for engram in model.engrams.values()])
    assert torch.equal(rows, golden.data[f"p{prompt_length}.engram_rows"].long())
