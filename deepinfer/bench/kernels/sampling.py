"""Masks, penalties and sampling at the model's vocabulary size."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from deepinfer.kernels.sampling import mask_logits, penalize_logits, sample

from .case import KernelCase

_VOCABULARY = 129_280


def mask_case(rows: int, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    """Half of all tokens of each row are allowed."""
    logits = torch.randn(rows, vocabulary, device="cuda")
    words = (rows, -(-vocabulary // 32))
    masks = torch.randint(-(2**31), 2**31, words, dtype=torch.int32, device="cuda")
    return logits, masks, torch.arange(rows, device="cuda")


def sampling_case(
    rows: int, temperature: float, top_p: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    logits = torch.randn(rows, _VOCABULARY, device="cuda") * 3
    floats = [torch.full((rows,), value, device="cuda") for value in (temperature, top_p, 0.0)]
    seeds = torch.randint(-(2**62), 2**62, (rows,), device="cuda")
    no_limit = torch.zeros(rows, dtype=torch.int64, device="cuda")
    positions = torch.arange(rows, device="cuda")
    return logits, floats[0], floats[1], no_limit, floats[2], seeds, positions


def penalty_case(rows: int, seen: int = 1000) -> tuple[Tensor, ...]:
    """Six rows of each request that has seen ``seen`` tokens."""
    slots = torch.arange(rows, device="cuda") // 6
    marks = torch.zeros(int(slots[-1]) + 1, _VOCABULARY, dtype=torch.int32, device="cuda")
    marks[:, torch.randperm(_VOCABULARY, device="cuda")[:seen]] = 3
    penalties = torch.tensor([0.5, 0.1, 1.1], device="cuda").repeat(len(marks), 1)
    drafts = torch.randint(0, _VOCABULARY, (5, rows), device="cuda")
    logits = torch.randn(rows, _VOCABULARY, device="cuda")
    return logits, torch.arange(rows, device="cuda"), slots, drafts, marks, penalties


def cases() -> Iterator[KernelCase]:
    yield masks(256)
    for rows, temperature, top_p in (
        (256, 0.0, 1.0),
        (256, 1.0, 1.0),
        (256, 1.0, 0.9),
        (8, 1.0, 1.0),
    ):
        name = f"sample {rows} rows, temperature {temperature}, top-p {top_p}"
        draw = partial(sample, *sampling_case(rows, temperature, top_p))
        yield KernelCase(name, draw, 0, 4 * rows * _VOCABULARY)
    for rows in (256, 1536):
        penalties = partial(penalize_logits, *penalty_case(rows))
        yield KernelCase(f"penalties, {rows} rows", penalties, 0, 4 * rows * _VOCABULARY)


def masks(rows: int, vocabulary: int = _VOCABULARY) -> KernelCase:
    """Only logits that are not allowed, half of all, are written."""
    call = partial(mask_logits, *mask_case(rows, vocabulary))
    return KernelCase(f"mask {rows} rows", call, 0, rows * vocabulary * (2 + 1 / 8))
