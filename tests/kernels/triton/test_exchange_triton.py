"""Ranks that write into each other's memory: here all of them in one process, one after the other.

Sends never wait, so each kernel can run for every rank before the next one does.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.exchange import Arrivals, Buffers, copy_blocks, copy_tokens
from deepinfer.kernels.exchange import triton_launch as kernels
from deepinfer.kernels.exchange.layout import ExchangeLayout
from deepinfer.kernels.exchange.reference import copy_blocks_reference
from deepinfer.kernels.gemm.activations import quantize_activations
from deepinfer.kernels.gemm.k_order import KOrder
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.moe.pair_order import order_pairs, order_tokens
from deepinfer.kernels.quant import fake_quantize_fp8
from deepinfer.kernels.testing import assert_bitwise_equal

EXPERTS, CHOICES, WIDTH, TILE = 8, 3, 256, 4
Tokens = tuple[Tensor, Tensor, Tensor]


class Ranks:
    """Buffers of all ranks, and a table in which some experts have two replicas."""

    def __init__(self, size: int, capacity: int, device: torch.device, block: int = 32) -> None:
        self.layout = ExchangeLayout(
            num_ranks=size,
            capacity=capacity,
            num_choices=CHOICES,
            hidden_size=WIDTH,
            block=block,
        )
        num_bytes = self.layout.num_bytes
        memory = [torch.zeros(num_bytes, dtype=torch.uint8, device=device) for _ in range(size)]
        homes = [own.data_ptr() + self.layout.results for own in memory]
        self.buffers = [
            Buffers(
                layout=self.layout,
                rank=rank,
                own=own,
                peers={peer: memory[peer] for peer in range(size) if peer != rank},
                homes=torch.tensor(homes, device=device),
                rounds=torch.zeros(1, dtype=torch.int32, device=device),
            )
            for rank, own in enumerate(memory)
        ]
        expert = torch.arange(EXPERTS)
        owner = torch.stack([expert % size, (expert + 1) % size], dim=1)
        place = torch.stack([expert // size, EXPERTS + expert], dim=1)
        count = 1 + (expert % 4 == 0).long() * (size > 1)
        self.table = tuple(t.contiguous().to(device) for t in (owner, place, count))

    def send(self, tokens: list[Tokens], most: int) -> tuple[list[Tensor], list[Arrivals]]:
        """Where results will be on each rank, and what is there when all have sent."""
        path = MatrixPath.FP8 if self.layout.block == 128 else MatrixPath.SCALED
        result_rows, arrivals = [], []
        for buffers, (x, ids, weights) in zip(self.buffers, tokens, strict=True):
            sent = quantize_activations(x, path, KOrder.PLAIN)
            row = kernels.make_heads_triton(buffers, sent, ids, weights, self.table, most)
            for peer in buffers.peers:
                copy_tokens(buffers, sent, peer, most)
            result_rows.append(row)
            arrivals.append(Arrivals(buffers, sent, most))
        return result_rows, arrivals

    def exchange(self, tokens: list[Tokens]) -> tuple[list, list[Tensor]]:
        """What each rank receives, and what comes back: experts double and add their place."""
        most = max(len(x) for x, _, _ in tokens)
        result_rows, all_arrivals = self.send(tokens, most)
        arrived = [kernels.receive_tokens_triton(own, most) for own in self.buffers]
        for arrivals, (places, _) in zip(all_arrivals, arrived, strict=True):
            rows = order_pairs(places, 2 * EXPERTS, TILE)
            acts = arrivals.activations(MatrixPath.DECODED, KOrder.PLAIN, rows)
            outputs = expert_output(acts.values, places.flatten()[rows.pair.clamp(min=0).long()])
            arrivals.send_back(outputs, rows)
        self.end_round()
        back = [
            sum_of(buffers.results, row.view(-1, CHOICES))
            for buffers, row in zip(self.buffers, result_rows, strict=True)
        ]
        return arrived, back

    def end_round(self) -> None:
        """One after the other: flags of the ranks that follow are put there for each."""
        for rank, buffers in enumerate(self.buffers):
            buffers.returned[rank + 1 :] = buffers.rounds + 1
            kernels.end_round_triton(buffers)


def expert_output(x: Tensor, place: Tensor) -> Tensor:
    return (x.float() * 2 + place[:, None]).bfloat16()


def sum_of(results: Tensor, row: Tensor) -> Tensor:
    """[T, K] rows, added in the order of choices."""
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


@pytest.mark.parametrize("counts", [(5,), (0, 3), (2, 5, 1, 0)])
def test_tokens_come_and_results_go_back(counts: tuple[int, ...], device: torch.device) -> None:
    size, most = len(counts), max(counts)
    ranks = Ranks(size, most + 2, device)
    for seed in range(2):  # the second round overwrites the first
        tokens = [tokens_of(count, 10 * seed + r, device) for r, count in enumerate(counts)]
        arrived, back = ranks.exchange(tokens)
        for sender, (x, ids, weights) in enumerate(tokens):
            owner, place = route(ranks, sender, ids)
            for receiver, (places, factors) in enumerate(arrived):
                here = slice(sender * most, sender * most + len(x))
                assert_bitwise_equal(places[here], torch.where(owner == receiver, place, -1))
                assert (places[here.stop : (sender + 1) * most] == -1).all()
                assert_bitwise_equal(factors[here], weights)
            rounded = fake_quantize_fp8(x)
            assert_bitwise_equal(back[sender], expected(rounded, place))


def expected(x: Tensor, place: Tensor) -> Tensor:
    total = torch.zeros_like(x, dtype=torch.float32)
    for choice in range(CHOICES):
        total += expert_output(x, place[:, choice]).float()
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
    ranks, most = Ranks(2, 5, device, path.block), 4
    tokens = [tokens_of(count, count, device) for count in (4, 3)]
    tokens[0][0][0] = 0
    tokens[1][0][2, 3:90] *= 1e-6  # below the smallest normal number of its block
    _, all_arrivals = ranks.send(tokens, most)
    everyone = torch.cat([tokens[0][0], tokens[1][0], tokens[1][0][:1]])
    for arrivals in all_arrivals:
        places, _ = kernels.receive_tokens_triton(arrivals.buffers, most)
        rows = order_pairs(places, 2 * EXPERTS, TILE)
        got = arrivals.activations(path, order, rows)
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
    ranks = Ranks(2, 2, device)
    tokens = [tokens_of(2, seed, device) for seed in range(2)]
    tokens[0][0][1, 5], tokens[1][0][0] = float("nan"), 0
    _, back = ranks.exchange(tokens)
    assert back[0][1, 5].isnan() and back[1].isfinite().all()


def test_round_numbers_may_wrap_around(device: torch.device) -> None:
    ranks = Ranks(2, 3, device)
    for buffers in ranks.buffers:
        buffers.rounds.fill_(2**31 - 2)
        buffers.sent.fill_(2**31 - 2)
        buffers.returned.fill_(2**31 - 2)
    tokens = [tokens_of(3, seed, device) for seed in range(2)]
    first, second, third = (ranks.exchange(tokens)[1] for _ in range(3))
    assert int(ranks.buffers[0].rounds) < 0
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


def test_more_tokens_than_there_is_room_for_are_not_sent(device: torch.device) -> None:
    """They would be written over those of the next rank."""
    ranks = Ranks(2, 3, device)
    before = [buffers.own.clone() for buffers in ranks.buffers]
    x, ids, weights = tokens_of(4, 0, device)
    sent = quantize_activations(x, MatrixPath.SCALED, KOrder.PLAIN)
    own = ranks.buffers[0]
    for most in (3, 4):  # more than any rank brings; more than the capacity
        with pytest.raises(TensorError, match="tokens: expected at most"):
            kernels.make_heads_triton(own, sent, ids, weights, ranks.table, most)
        with pytest.raises(TensorError, match="tokens: expected at most"):
            copy_tokens(own, sent, 1, most)
    with pytest.raises(TensorError, match="tokens: expected at most"):
        kernels.receive_tokens_triton(own, 4)
    for buffers, kept in zip(ranks.buffers, before, strict=True):
        assert_bitwise_equal(buffers.own, kept)


def test_what_an_exchange_cannot_take_is_named(device: torch.device) -> None:
    ranks = Ranks(2, 4, device)
    own, (x, ids, weights) = ranks.buffers[0], tokens_of(3, 0, device)
    sent = quantize_activations(x, MatrixPath.SCALED, KOrder.PLAIN)

    def refused(name: str, ids: Tensor, weights: Tensor, table: tuple[Tensor, ...]) -> None:
        with pytest.raises(TensorError, match=f"^{name}: "):
            kernels.make_heads_triton(own, sent, ids, weights, table, 4)

    rank, place, count = ranks.table
    for wrong in (ids.int(), ids[:2], ids[:, :2].contiguous(), ids.t().contiguous().t()):
        refused("ids", wrong, weights, ranks.table)
    for wrong in (weights.double(), weights[:2], weights.t().contiguous().t()):
        refused("weights", ids, wrong, ranks.table)
    for table in (
        (rank.int(), place, count), (rank, place[1:], count), (rank, place, count[1:]),
        (rank[:, 0], place[:, 0], count), (rank.t().contiguous().t(), place, count),
        (rank, place, count[0]),
    ):  # fmt: skip
        refused("table", ids, weights, table)
    kernels.make_heads_triton(own, sent, ids, weights, ranks.table, 4)
    arrivals, places = Arrivals(own, sent, 4), torch.zeros(8, CHOICES, device=device).long()
    rows = order_pairs(places, EXPERTS, TILE)
    good = torch.zeros(len(rows.pair), WIDTH, device=device).bfloat16()
    for wrong in (good.float(), good[1:], good[:, 1:].contiguous(), good.t().contiguous().t()):
        with pytest.raises(TensorError, match="^outputs: "):
            arrivals.send_back(wrong, rows)


def test_copies_of_blocks_name_what_they_cannot_take(device: torch.device) -> None:
    source = torch.zeros(4, 32, dtype=torch.uint8, device=device)
    there, rows = torch.zeros_like(source), torch.arange(4, device=device)
    address = there.data_ptr()
    for operands in (
        (source.int(), rows, address, rows), (source[0], rows, address, rows),
        (source[:, ::2], rows, address, rows), (source, rows.int(), address, rows),
        (source, rows, address, rows.int()), (source, rows, address, rows[1:]),
        (source, rows[::2], address, rows[:2]), (source, rows[:2], address, rows[::2]),
        (source, rows[None], address, rows[None]),
    ):  # fmt: skip
        with pytest.raises(TensorError, match="copy_blocks: expected contiguous"):
            copy_blocks(*operands)
    copy_blocks(source, rows, address, rows)
