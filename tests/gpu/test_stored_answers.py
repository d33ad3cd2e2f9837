"""The answers that the GPU tests compare with are those of the model as it is; needs no GPU."""

from __future__ import annotations

import torch
from gpu_models import Passes, load_model, sequences

NUM_PROMPTS, NUM_TOKENS = 6, 64
# The CPU that stored them may have added in another order than this one.
NOISE = 0.1


def test_stored_answers_are_greedy() -> None:
    asked = sequences(NUM_PROMPTS)
    passes = Passes(load_model("embedded", "cpu"), NUM_PROMPTS, max(map(len, asked)))
    rows = passes.run(list(enumerate(asked)))
    for sequence, part in zip(
        asked, torch.split(rows, [len(sequence) for sequence in asked]), strict=True
    ):
        logits, chosen = part[-NUM_TOKENS - 1 : -1], sequence[-NUM_TOKENS:, None]
        assert bool((logits.gather(-1, chosen)[:, 0] >= logits.amax(-1) - NOISE).all())
