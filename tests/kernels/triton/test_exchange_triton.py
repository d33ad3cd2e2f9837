"""Ranks that write into each other's memory: here all of them in one process, one after the other.

Sends never wait, so each kernel can run for every rank before the next one does.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deepinfer.kernels.exchange import triton_launch as kernels
from deepinfer.kernels.exchange.layout import ExchangeLayout
from deepinfer.kernels.exchange.reference import copy_blocks_reference
from deepinfer.kernels.quant import fake_quantize_fp8
from deepinfer.kernels.testing import assert_bitwise_equal

EXPERTS, CHOICES, WIDTH = 12, 3, 128


class Ranks:
    """Buffers of all ranks, and a table in which some experts have two replicas."""

    def __init__(self, size: int, capacity: int, is_exact: bool, device: torch.device) -> None:
        self.layout = ExchangeLayout(
            num_ranks=size,
            capacity=capacity,
            num_choices=CHOICES,
            hidden_size=WIDTH,
            is_exact=is_exact,
        )
        num_bytes = self.layout.num_bytes
        self.buffers = [
            torch.zeros(num_bytes, dtype=torch.uint8, device=device) for _ in range(size)
        ]
        self.peers = torch.tensor([b.data_ptr() for b in self.buffers], device=device)
        self.round_number = torch.zeros(1, dtype=torch.int32, device=device)
        expert = torch.arange(EXPERTS)
        owner = torch.stack([expert % size, (expert + 1) % size], dim=1)
        place = torch.stack([expert // size, 100 + expert], dim=1)
        count = 1 + (expert % 4 == 0).long() * (size > 1)
        self.table = tuple(t.contiguous().to(device) for t in (owner, place, count))

    def exchange(self, tokens: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[list, list[Tensor]]:
        """What each rank receives, and what comes back: experts double and add their place."""
        layout, now = self.layout, self.round_number
        now += 1
        size, most = layout.num_ranks, max(len(x) for x, _, _ in tokens)
        ranks = [
            kernels.send_tokens_triton(layout, self.peers, r, now, *tokens[r], self.table, most)
            for r in range(size)
        ]
        arrived = [
            kernels.receive_tokens_triton(layout, self.buffers[r], now, most) for r in range(size)
        ]
        for rank, (x, places, _) in enumerate(arrived):
            pairs = expert_output(x.repeat_interleave(CHOICES, 0), places.flatten())
            rows = torch.arange(places.numel(), dtype=torch.int32, device=x.device)
            rows = torch.where(places.flatten() >= 0, rows, -1)
            kernels.send_results_triton(layout, self.peers, rank, now, pairs, rows)
        back = [
            kernels.receive_results_triton(layout, self.buffers[r], now, ranks[r])
            for r in range(size)
        ]
        return arrived, back


def expert_output(x: Tensor, place: Tensor) -> Tensor:
    return (x.float() * 2 + place[:, None]).bfloat16()


def tokens_of(count: int, seed: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, WIDTH, generator=generator)
    x = (x * torch.randn(count, 1, generator=generator).mul(4).exp2()).bfloat16()
    ids = torch.rand(count, EXPERTS, generator=generator).argsort(-1)[:, :CHOICES].sort(-1).values
    return x.to(device), ids.to(device), torch.rand(count, CHOICES, generator=generator).to(device)


@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize("counts", [(5,), (4, 2), (0, 3), (2, 5, 1, 0)])
def test_tokens_come_and_results_go_back(
    counts: tuple[int, ...], is_exact: bool, device: torch.device
) -> None:
    size, most = len(counts), max(counts)
    ranks = Ranks(size, most + 2, is_exact, device)
    for seed in range(2):  # the second round overwrites the first
        tokens = [tokens_of(count, 10 * seed + r, device) for r, count in enumerate(counts)]
        arrived, back = ranks.exchange(tokens)
        for sender, (x, ids, weights) in enumerate(tokens):
            rounded = fake_quantize_fp8(x)
            turn = (sender + torch.arange(len(x), device=device))[:, None] % ranks.table[2][ids]
            owner = ranks.table[0][ids].gather(2, turn[..., None])[..., 0]
            place = ranks.table[1][ids].gather(2, turn[..., None])[..., 0]
            for receiver, (got, places, factors) in enumerate(arrived):
                here = slice(sender * most, sender * most + len(x))
                assert_bitwise_equal(places[here], torch.where(owner == receiver, place, -1))
                assert (places[here.stop : (sender + 1) * most] == -1).all()
                wanted = (owner == receiver).any(1)
                assert_bitwise_equal(got[here][wanted], rounded[wanted])
                assert_bitwise_equal(factors[here], weights)
            assert_bitwise_equal(back[sender], expected(rounded, owner, place, size, is_exact))


def expected(x: Tensor, owner: Tensor, place: Tensor, size: int, is_exact: bool) -> Tensor:
    outputs = [expert_output(x, place[:, choice]).float() for choice in range(CHOICES)]
    total = torch.zeros_like(x, dtype=torch.float32)
    if is_exact:
        for output in outputs:
            total += output
        return total
    for rank in range(size):
        part = torch.zeros_like(total)
        for choice, output in enumerate(outputs):
            part += torch.where(owner[:, choice, None] == rank, output, 0)
        total += part.bfloat16().float()
    return total


def test_values_that_are_not_numbers_arrive(device: torch.device) -> None:
    ranks = Ranks(2, 2, True, device)
    tokens = [tokens_of(2, seed, device) for seed in range(2)]
    tokens[0][0][1, 5], tokens[1][0][0] = float("nan"), 0
    _, back = ranks.exchange(tokens)
    assert back[0][1, 5].isnan() and back[1].isfinite().all()


def test_round_numbers_may_wrap_around(device: torch.device) -> None:
    ranks = Ranks(2, 3, True, device)
    ranks.round_number.fill_(2**31 - 2)
    for buffer in ranks.buffers:  # as if all rounds before had been
        for start, end in (
            (ranks.layout.arrived, ranks.layout.results),
            (ranks.layout.returned, None),
        ):
            buffer[start:end].view(torch.int32).fill_(2**31 - 2)
    tokens = [tokens_of(3, seed, device) for seed in range(2)]
    first = ranks.exchange(tokens)[1]
    second = ranks.exchange(tokens)[1]
    assert int(ranks.round_number) < 0 and torch.equal(first[0], second[0])


@pytest.mark.parametrize("width", [9216, 8778])
def test_blocks_are_copied_to_where_they_belong(width: int, device: torch.device) -> None:
    """8,778 bytes are no whole number of 16."""
    source = torch.randint(256, (9, width), dtype=torch.uint8).to(device)
    target = torch.zeros(12, width, dtype=torch.uint8, device=device)
    rows, targets = torch.tensor([3, 8, 0], device=device), torch.tensor([11, 0, 5], device=device)
    kernels.copy_blocks_triton(source, rows, target.data_ptr(), targets)
    expected = torch.zeros(12, width, dtype=torch.uint8)
    copy_blocks_reference(source.cpu(), rows, expected.data_ptr(), targets)
    assert_bitwise_equal(target.cpu(), expected)
    assert torch.equal(expected[11], source[3].cpu()) and not expected[1].any()
