"""Constraints on a GPU: answers obey, and asking for masks beside the model changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gpu_models import ask, greedy_requests, make_engine

from deepinfer.engine.sampling.constraint import AnswerConstraint, Mask
from deepinfer.engine.sampling.step_masks import StepMasks
from deepinfer.engine.types import Completion, SamplingParams
from deepinfer.errors import RowError

pytestmark = pytest.mark.gpu

NUM_REQUESTS, NUM_TOKENS, VOCAB_SIZE = 24, 40, 4096


class Residues:
    """Token number i of an answer has the remainder i % 5 when divided by 5; on every seventh place
    one token alone may come."""

    is_finished = False

    def __init__(self) -> None:
        self.num_tokens = 0

    @staticmethod
    def may_come(place: int) -> range:
        return (
            range(10 + place % 5, 11 + place % 5)
            if place % 7 == 3
            else range(place % 5, VOCAB_SIZE, 5)
        )

    @staticmethod
    def fill_masks(
        constraints: Sequence[Any], drafts: Sequence[Sequence[int]], out: Mask
    ) -> list[RowError | None]:
        row = 0
        for rule, ids in zip(constraints, drafts, strict=True):
            for place in range(rule.num_tokens, rule.num_tokens + 1 + len(ids)):
                bits = np.zeros(VOCAB_SIZE, dtype=np.uint8)
                bits[Residues.may_come(place)] = 1
                out[row] = np.packbits(bits, bitorder="little").view(np.uint32)
                row += 1
        return [None] * len(constraints)

    def num_allowed(self, draft_token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(draft_token_ids):
            if token_id not in self.may_come(self.num_tokens + count):
                return count
        return len(draft_token_ids)

    def forced_tokens(self) -> list[int]:
        one = self.may_come(self.num_tokens)
        return list(one) if len(one) == 1 else []

    def push(self, token_id: int) -> None:
        assert token_id in self.may_come(self.num_tokens)
        self.num_tokens += 1


def answers(num_drafts: int, overlaps: bool) -> dict[str, Completion]:
    """Every second request is constrained."""
    engine = make_engine("embedded", "cuda", max_num_seqs=16, num_speculative_tokens=num_drafts)
    engine._overlaps = overlaps and num_drafts == 0
    sampling = SamplingParams(temperature=1.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    return ask(
        engine,
        [
            replace(asked, sampling=sampling, constraint=Residues() if number % 2 else None)
            for number, asked in enumerate(greedy_requests(NUM_REQUESTS))
        ],
    )


def test_answers_obey_and_do_not_depend_on_when_masks_are_made() -> None:
    found = {case: answers(*case) for case in ((0, True), (0, False), (5, False))}
    for done in found.values():
        for name, completion in done.items():
            assert completion.finish_reason == "length", completion.error
            if int(name) % 2:
                ids = completion.output_token_ids
                assert all(t in Residues.may_come(place) for place, t in enumerate(ids))
    for name, completion in found[0, True].items():
        assert completion.output_token_ids == found[0, False][name].output_token_ids


def test_masks_equal_those_on_the_host() -> None:
    logits = torch.randn(7, VOCAB_SIZE)
    found = []
    for device in ("cpu", "cuda"):
        rules = [AnswerConstraint(Residues()), None, AnswerConstraint(Residues())]
        masked = logits.to(device, copy=True)
        with StepMasks(rules, [3, 2, 2], [[10, 11], [5], [10]], VOCAB_SIZE, device) as masks:
            masks.apply(masked)
        found.append(masked.cpu())
    assert torch.equal(*found)
