"""Ranks that write into each other's memory: here all of them in one process, one after the other.

Sends never wait, so each kernel can run for every rank before the next one does.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from deepinfer.kernels.exchange import Arrivals
from deepinfer.kernels.exchange import triton_launch as kernels
from deepinfer.kernels.exchange.layout import ExchangeLayout
from deepinfer.kernels.exchange.reference import copy_blocks_reference
from deepinfer.kernels.gemm.k_order import KOrder
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.moe.pair_order import order_pairs, order_tokens
from deepinfer.kernels.quant import fake_quantize_fp8
from deepinfer.kernels.testing import assert_bitwise_equal

EXPERTS, CHOICES, WIDTH, TILE = 8, 3, 256, 4
Tokens = tuple[Tensor, Tensor, Tensor]


class Ranks:
    """Buffers of all ranks, and a table in which some experts have two replicas."""

    def __init__(
        self, size: int, capacity: int, is_exact: bool, device: torch.device, block: int = 32
    ) -> None:
        self.layout = ExchangeLayout(
            num_ranks=size,
            capacity=capacity,
            num_choices=CHOICES,
            hidden_size=WIDTH,
            is_exact=is_exact,
            block=block,
        )
        num_bytes = self.layout.num_bytes
        self.buffers = [
            torch.zeros(num_bytes, dtype=torch.uint8, device=device) for _ in range(size)
        ]
        self.peers = torch.tensor([b.data_ptr() for b in self.buffers], device=device)
        self.rounds = [torch.zeros(1, dtype=torch.int32, device=device) for _ in range(size)]
        expert = torch.arange(EXPERTS)
        owner = torch.stack([expert % size, (expert + 1) % size], dim=1)
        place = torch.stack([expert // size, EXPERTS + expert], dim=1)
        count = 1 + (expert % 4 == 0).long() * (size > 1)
        self.table = tuple(t.contiguous().to(device) for t in (owner, place, count))

    def send(self, tokens: list[Tokens], most: int) -> list[Tensor]:
        to_all = (self.layout, self.peers)
        return [
            kernels.send_tokens_triton(*to_all, r, self.rounds[r], *tokens[r], self.table, most)
            for r in range(len(tokens))
        ]

    def receive(self, rank: int, most: int) -> tuple[Tensor, Tensor]:
        here = (self.layout, self.buffers[rank], self.rounds[rank])
        return kernels.receive_tokens_triton(*here, most)

    def exchange(
        self, tokens: list[Tokens], parts: Sequence[range] = (range(WIDTH),)
    ) -> tuple[list, list[Tensor]]:
        """What each rank receives, and what comes back: experts double and add their place."""
        layout, most = self.layout, max(len(x) for x, _, _ in tokens)
        result_rows = self.send(tokens, most)
        arrived = [self.receive(rank, most) for rank in range(len(tokens))]
        for rank, (places, _) in enumerate(arrived):
            arrivals = Arrivals(layout, self.buffers[rank], most)
            rows = order_pairs(places, 2 * EXPERTS, TILE)
            acts = arrivals.activations(MatrixPath.DECODED, KOrder.PLAIN, rows)
            outputs = expert_output(acts.values, places.flatten()[rows.pair.clamp(min=0).long()])
            to_all = (layout, self.peers, rank, self.rounds[rank])
            for part, columns in enumerate(parts):
                some = outputs[:, columns.start : columns.stop].contiguous()
                kernels.send_results_triton(*to_all, some, rows, most, part, columns.start)
        for rank, rounds in enumerate(self.rounds):
            kernels.end_round_triton(layout, self.buffers[rank], rounds, most, len(parts))
        results = [layout.results_of(buffer) for buffer in self.buffers]
        back = [
            sum_of(result, row.view(-1, layout.num_slots))
            for result, row in zip(results, result_rows, strict=True)
        ]
        return arrived, back


def expert_output(x: Tensor, place: Tensor) -> Tensor:
    return (x.float() * 2 + place[:, None]).bfloat16()


def sum_of(results: Tensor, row: Tensor) -> Tensor:
    """[T, S] rows, added in the order of slots."""
    total = torch.zeros(len(row), WIDTH, device=row.device)
    for slot in row.unbind(1):
        total += torch.where(slot[:, None] >= 0, results[slot.clamp(min=0).long()].float(), 0)
    return total


def tokens_of(count: int, seed: int, device: torch.device) -> Tokens:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, WIDTH, generator=generator)
    x = (x * torch.randn(count, 1, generator=generator).mul(4).exp2()).bfloat16()
    ids = torch.rand(count, EXPERTS, generator=generator).argsort(-1)[:, :CHOICES].sort(-1).values
    return x.to(device), ids.to(device), torch.rand(count, CHOICES, generator=generator).to(device)


def route(ranks: Ranks, sender: int, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Rank and place of each choice."""
    rank_of, place_of, count = ranks.table
    turn = (sender + torch.arange(len(ids), device=ids.device))[:, None] % count[ids]
    return tuple(of[ids].gather(2, turn[..., None])[..., 0] for of in (rank_of, place_of))


@pytest.mark.parametrize("parts", [(range(WIDTH),), (range(192), range(192, WIDTH))])
@pytest.mark.parametrize("is_exact", [True, False])
@pytest.mark.parametrize("counts", [(5,), (0, 3), (2, 5, 1, 0)])
def test_tokens_come_and_results_go_back(
    counts: tuple[int, ...], is_exact: bool, parts: tuple[range, ...], device: torch.device
) -> None:
    size, most = len(counts), max(counts)
    ranks = Ranks(size, most + 2, is_exact, device)
    for seed in range(2):  # the second round overwrites the first
        tokens = [tokens_of(count, 10 * seed + r, device) for r, count in enumerate(counts)]
        arrived, back = ranks.exchange(tokens, parts)
        for sender, (x, ids, weights) in enumerate(tokens):
            owner, place = route(ranks, sender, ids)
            for receiver, (places, factors) in enumerate(arrived):
                here = slice(sender * most, sender * most + len(x))
                assert_bitwise_equal(places[here], torch.where(owner == receiver, place, -1))
                assert (places[here.stop : (sender + 1) * most] == -1).all()
                assert_bitwise_equal(factors[here], weights)
            rounded = fake_quantize_fp8(x)
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


@pytest.mark.parametrize(
    ("path", "order"),
    [
        (MatrixPath.DECODED, KOrder.PLAIN),
        (MatrixPath.FP8, KOrder.PLAIN),
        (MatrixPath.FP8, KOrder.SPLIT),
        (MatrixPath.FP8, KOrder.FRAGMENT),
        (MatrixPath.SCALED, KOrder.PLAIN),
    ],
)
def test_experts_read_the_bytes_of_one_rank(
    path: MatrixPath, order: KOrder, device: torch.device
) -> None:
    """Whatever the form in which a device multiplies: tokens are rounded once, by their sender."""
    ranks, most = Ranks(2, 5, True, device, path.block), 4
    tokens = [tokens_of(count, count, device) for count in (4, 3)]
    tokens[0][0][0] = 0
    tokens[1][0][2, 3:90] *= 1e-6  # below the smallest normal number of its block
    ranks.send(tokens, most)
    everyone = torch.cat([tokens[0][0], tokens[1][0], tokens[1][0][:1]])
    for rank, buffer in enumerate(ranks.buffers):
        places, _ = ranks.receive(rank, most)
        rows = order_pairs(places, 2 * EXPERTS, TILE)
        got = Arrivals(ranks.layout, buffer, most).activations(path, order, rows)
        _, wanted = order_tokens(everyone, places, 2 * EXPERTS, TILE, path, order)
        real = torch.where(rows.pair[: int(rows.used)] >= 0)[0]
        assert len(real) > 5
        assert_bitwise_equal(_bytes(got.values)[real], _bytes(wanted.values)[real])
        if path is MatrixPath.FP8:
            assert_bitwise_equal(got.scales[:, real], wanted.scales[:, real])
        if path is MatrixPath.SCALED:
            assert_bitwise_equal(got.scales[real], wanted.scales[real])


def _bytes(values: Tensor) -> Tensor:
    return values.view(torch.uint8)


def test_values_that_are_not_numbers_arrive(device: torch.device) -> None:
    ranks = Ranks(2, 2, True, device)
    tokens = [tokens_of(2, seed, device) for seed in range(2)]
    tokens[0][0][1, 5], tokens[1][0][0] = float("nan"), 0
    _, back = ranks.exchange(tokens)
    assert back[0][1, 5].isnan() and back[1].isfinite().all()


def test_round_numbers_may_wrap_around(device: torch.device) -> None:
    ranks = Ranks(2, 3, True, device)
    for rounds, buffer in zip(ranks.rounds, ranks.buffers, strict=True):
        rounds.fill_(2**31 - 2)
        buffer[ranks.layout.sent :].view(torch.int32).fill_(2**31 - 2)
    tokens = [tokens_of(3, seed, device) for seed in range(2)]
    first, second, third = (ranks.exchange(tokens)[1] for _ in range(3))
    assert int(ranks.rounds[0]) < 0
    assert torch.equal(first[0], second[0]) and torch.equal(first[0], third[0])


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
