"""Draft heads and verification by rejection at the model's shapes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from deepinfer.kernels.dspark import draft_confidence, markov_logits, verify_drafts

from .case import KernelCase
from .gemm import random_rows, random_weight

_VOCABULARY, _WIDTH, _MARKOV, _DRAFTS = 129_280, 5120, 256, 5


def cases() -> Iterator[KernelCase]:
    for requests in (8, 256):
        yield from draft_heads(requests)
        yield verification(requests)


def draft_heads(
    requests: int, vocabulary: int = _VOCABULARY, width: int = _WIDTH
) -> Iterator[KernelCase]:
    """The Markov correction of one draft's logits, and the confidence of a block."""
    base = torch.randn(requests, vocabulary, device="cuda")
    head = random_weight("bf16", vocabulary, _MARKOV)
    yield KernelCase(
        f"Markov product, {requests} rows",
        partial(markov_logits, base, random_rows(requests, _MARKOV), head),
        2 * requests * vocabulary * _MARKOV,
        8 * base.numel() + 2 * (requests + vocabulary) * _MARKOV,
        "bf16",
    )
    rows, inputs = requests * _DRAFTS, width + _MARKOV
    hidden = random_rows(rows, width).view(requests, _DRAFTS, width)
    tokens = torch.randint(0, vocabulary, (requests, 1 + _DRAFTS), device="cuda")
    embed, proj = random_rows(vocabulary, _MARKOV), random_weight("bf16", 1, inputs)
    yield KernelCase(
        f"confidence, {rows} rows",
        partial(
            draft_confidence,
            hidden,
            tokens[:, 0].contiguous(),
            tokens[:, 1:].contiguous(),
            embed,
            proj,
        ),
        2 * rows * inputs,
        2 * (rows + 1) * inputs + 4 * rows,
        "bf16",
    )


def verification(requests: int, vocabulary: int = _VOCABULARY) -> KernelCase:
    """Drafts sampled from logits close to the target's, with top-p."""
    rows = requests * (1 + _DRAFTS)
    target = torch.randn(rows, vocabulary, device="cuda") * 3
    own = target.view(requests, 1 + _DRAFTS, vocabulary)[:, :_DRAFTS]
    draft = own + torch.randn_like(own) / 10
    ones = torch.ones(requests, device="cuda")
    seeds = torch.randint(-(2**62), 2**62, (requests,), device="cuda")
    call = partial(
        verify_drafts,
        target,
        draft,
        draft.argmax(-1),
        torch.arange(requests, device="cuda") * (1 + _DRAFTS),
        torch.full((requests,), _DRAFTS, device="cuda"),
        temperature=ones,
        top_p=ones * 0.95,
        top_k=torch.zeros_like(seeds),
        min_p=ones * 0,
        seeds=seeds,
        positions=torch.arange(rows, device="cuda"),
    )
    name = f"verification by rejection, {requests} x {_DRAFTS} drafts"
    return KernelCase(name, call, 0, 4 * (target.numel() + draft.numel()))
