"""A real model whose larger steps do not fit into memory: smaller ones, and the same answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from deepinfer import OfflineEngine, SamplingParams
from deepinfer.engine.execution.batch import ForwardBatch
from deepinfer.engine.model.model import Model

_CHECKPOINT = Path(__file__).parents[1] / "goldens" / "tiny-a" / "checkpoint"
_ROWS: list[dict[str, Any]] = [
    {"prompt": "Tell me about " + "the sea and " * (3 * index), "temperature": index % 2}
    for index in range(10)
]


@pytest.mark.parametrize("drafts", [3])
def test_answers_of_batch_invariant_mode_stay(monkeypatch: pytest.MonkeyPatch, drafts: int) -> None:
    sampling = SamplingParams(max_tokens=6, logprobs=True)
    with OfflineEngine(
        _CHECKPOINT, batch_invariant=True, num_speculative_tokens=drafts, max_num_seqs=8
    ) as engine:
        expected = engine.generate(_ROWS, sampling)
        real, sizes = Model.forward, []

        def forward(model: Model, batch: ForwardBatch, cache: Any) -> Any:
            output = real(model, batch, cache)  # what it has written by then is left behind
            if len(batch.token_ids) > 64 or len(batch.query_lens) > 3:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            sizes.append(len(batch.query_lens))
            return output

        monkeypatch.setattr(Model, "forward", forward)
        found = engine.generate(_ROWS, sampling)
        stats = engine.stats()
    assert [output.error for output in found] == [None] * len(_ROWS)
    assert [output.samples[0].token_ids for output in found] == [
        output.samples[0].token_ids for output in expected
    ]
    assert [output.samples[0].logprobs for output in found] == [
        output.samples[0].logprobs for output in expected
    ]
    assert stats.num_out_of_memory >= 2 and stats.most_running <= 3 and max(sizes) <= 3
