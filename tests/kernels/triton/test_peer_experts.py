"""The exchange as the engine makes it, with one rank in place of many: streams do nothing here, and
the rank's own memory stands for the peers'."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.engine.parallel import peer_exchange
from deepinfer.engine.parallel.expert_balance import plain_placement
from deepinfer.engine.parallel.groups import Group
from deepinfer.engine.parallel.peer_exchange import PeerChannel, PeerExperts
from deepinfer.engine.parallel.routing_table import RoutingTable
from deepinfer.errors import EngineError
from deepinfer.kernels.exchange import Arrivals, ExchangeLayout
from deepinfer.kernels.gemm.k_order import KOrder
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.moe.pair_order import order_pairs
from deepinfer.kernels.quant import fake_quantize_fp8
from deepinfer.kernels.testing import assert_bitwise_equal

EXPERTS, CHOICES, WIDTH, CAPACITY = 6, 2, 128, 8


class Nothing:
    """In place of a stream or an event."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


class OwnMemory:
    def __init__(self, group: Group, num_bytes: int, device: torch.device) -> None:
        self.own = torch.zeros(num_bytes, dtype=torch.uint8)
        self.addresses = torch.tensor([self.own.data_ptr()])
        self.peers: dict[int, Tensor] = {}


class Scaled:
    """Experts that multiply by the weight of the choice and add their number."""

    def send_back(self, arrivals: Arrivals, places: Tensor, weights: Tensor) -> None:
        rows = order_pairs(places, EXPERTS, 4)
        pair = rows.pair.clamp(min=0).long()
        values = arrivals.activations(MatrixPath.DECODED, KOrder.PLAIN, rows).values
        outputs = output(values, places.flatten()[pair], weights.flatten()[pair])
        arrivals.send_back(outputs, rows)


def output(x: Tensor, expert: Tensor, weight: Tensor) -> Tensor:
    return (x.float() * weight[:, None] + expert[:, None]).bfloat16()


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if torch.cuda.is_available():
        pytest.skip("ranks of their own are checked by benchmarks/two_gpus.py")
    for name in ("Stream", "Event", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, Nothing)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(peer_exchange, "PeerMemory", OwnMemory)
    yield


def routed() -> tuple[PeerExperts, PeerChannel]:
    layout = ExchangeLayout(
        num_ranks=1,
        capacity=CAPACITY,
        num_choices=CHOICES,
        hidden_size=WIDTH,
        block=32,
    )
    channel = PeerChannel(Group.single(), layout, torch.device("cpu"))
    table = RoutingTable.of(plain_placement(1, EXPERTS, 1), 0)
    return PeerExperts(Scaled(), table, channel), channel


def test_passes_of_all_sizes_one_after_the_other() -> None:
    experts, channel = routed()
    for most, count in ((8, 7), (8, 3), (3, 3), (2, 0), (8, 8)):
        channel.most_tokens = most
        if not count:
            experts.assist()
            continue
        x = torch.randn(count, WIDTH).bfloat16()
        ids = torch.rand(count, EXPERTS).argsort(-1)[:, :CHOICES].sort(-1).values
        weights = torch.rand(count, CHOICES)
        rounded = fake_quantize_fp8(x)
        first, second = (
            output(rounded, ids[:, choice], weights[:, choice]).float() for choice in range(CHOICES)
        )
        assert_bitwise_equal(experts(x, ids, weights), first + second)


def test_more_tokens_than_agreed_upon_are_refused() -> None:
    experts, channel = routed()
    channel.most_tokens = 2
    x, ids = torch.zeros(3, WIDTH).bfloat16(), torch.zeros(3, CHOICES, dtype=torch.int64)
    with pytest.raises(EngineError, match="3 tokens in a step, but the exchange has room for 2"):
        experts(x, ids, ids.float())
