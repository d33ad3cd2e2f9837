"""Several ranks that are here: real exchange between them, stand-ins for the others, one row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from deepinfer.bench.plan import BenchPlan
from deepinfer.bench.present_share import PresentShare, even_table, write_arrivals
from deepinfer.bench.rank_steps import deployments, measure_rank
from deepinfer.bench.rank_tensors import RandomTensors
from deepinfer.bench.results import Measurement
from deepinfer.bench.together import combined, measure_together
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.layer_tensors import LayerTensors
from deepinfer.engine.model.share import WHOLE_MODEL
from deepinfer.engine.parallel.fixed_exchange import FixedCapacityExperts
from deepinfer.engine.parallel.groups import Group
from deepinfer.errors import EngineError
from deepinfer.kernels.exchange import Buffers, ExchangeLayout
from deepinfer.kernels.testing import relative_error

TINY = ModelConfig.from_file(Path(__file__).parents[1] / "goldens" / "tiny-a" / "checkpoint")
PLAN = BenchPlan(
    requests=(2,), context=100, tokens=(50,), drafts=(None, 2), decode_ranks=(4,),
    prefill_ranks=(2,), num_steps=2, modes=(),
)  # fmt: skip


def test_as_many_ranks_run_as_there_are_devices() -> None:
    """Of four ranks two are here and the link to the others is modelled; of two, all."""
    said: list[str] = []
    plan = dataclasses.replace(PLAN, drafts=(1,))
    rows = list(measure_rank(plan, TINY, ["cpu", "cpu"], said.append))
    assert [(row.name, row.ranks, row.present) for row in rows] == [
        ("2 requests, 1 drafts", 4, 2), ("50 tokens", 2, 2),
    ]  # fmt: skip
    for row in rows:
        assert min(row.step_s) > 0 and (row.link_s > 0) == (row.ranks > row.present)
    assert said[0] == "random weights of 2 of 4 ranks" and "prefill of 2 of 2 ranks" in said


def test_a_rank_that_fails_says_why() -> None:
    plan = dataclasses.replace(PLAN, decode_ranks=(2,), phases=("decode",))
    [deployment] = deployments(plan, TINY, "cpu")
    with pytest.raises(EngineError, match="rank 1 of 2"):
        list(measure_together(deployment, ["cpu", "cuda:99"], lambda text: None))


def test_rows_of_ranks_become_one() -> None:
    one = Measurement(
        phase="decode", name="2 requests, auto", size=2, context=10, ranks=4, num_drafts=2.0,
        num_tokens=4.0, step_s=(1.0, 4.0), accepted_length=2.0, energy_j=3.0, present=2,
    )  # fmt: skip
    other = dataclasses.replace(
        one, num_drafts=3.0, num_tokens=5.0, step_s=(2.0, 3.0), accepted_length=2.5, energy_j=None
    )
    row = combined([one, other])
    assert row.step_s == (2.0, 4.0), "each step as long as on the slowest"
    assert (row.num_drafts, row.num_tokens, row.accepted_length) == (2.5, 4.5, 2.25)
    assert row.energy_j == 3.0 and row.present == 2


def test_experts_are_spread_in_their_order() -> None:
    table = even_table(10, 4, torch.device("cpu"))
    assert table.members == ((0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 9, 9))
    assert table.rank[:, 0].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    assert table.place[:, 0].tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]


def routed(ranks: int) -> FixedCapacityExperts:
    """The experts of the first of so many ranks, of which no other is here."""
    plan, device = TINY.layers[-1], torch.device("cpu")
    share = PresentShare(ranks, Group.single(), 16)
    torch.manual_seed(0)
    layer = LayerTensors(RandomTensors(TINY, 0, device), f"layers.{plan.layer_id}.", device, share)
    found = share.routed_experts(plan, layer, TINY.swiglu_limit)
    assert isinstance(found, FixedCapacityExperts)
    return found


def tokens() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    plan = TINY.layers[-1]
    x = torch.randn(12, TINY.hidden_size, generator=generator).bfloat16()
    order = torch.rand(12, plan.n_routed_experts, generator=generator).argsort(-1)
    ids = order[:, : plan.num_experts_per_tok].sort(-1).values
    return x, ids, torch.rand(ids.shape, generator=generator)


def test_where_all_ranks_are_here_the_exchange_gives_what_the_experts_do() -> None:
    plan, device = TINY.layers[-1], torch.device("cpu")
    tensors = RandomTensors(TINY, 0, device)
    layer = LayerTensors(tensors, f"layers.{plan.layer_id}.", device, WHOLE_MODEL)
    torch.manual_seed(0)
    whole = WHOLE_MODEL.routed_experts(plan, layer, TINY.swiglu_limit)
    assert float(relative_error(routed(1)(*tokens()), whole(*tokens())).max()) < 0.01


def test_experts_compute_on_as_many_tokens_as_all_ranks_would_send() -> None:
    """What goes to absent ranks comes back as theirs: each choice is computed once."""
    experts, seen = routed(4), []
    local = experts.local

    class Counting:
        def __call__(
            self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
        ) -> torch.Tensor:
            seen.append((len(x), int((ids >= 0).sum())))
            return local(x, ids, weights)

    experts.local = Counting()  # type: ignore[assignment]
    x, ids, weights = tokens()
    found = experts(x, ids, weights)
    assert found.shape == x.shape and bool(found.isfinite().all())
    assert seen == [(4 * experts.capacity, ids.numel())]


@pytest.mark.parametrize("num_choices", [3, 6])
def test_tokens_of_absent_ranks_lie_where_a_gpu_reads_them(num_choices: int) -> None:
    layout = ExchangeLayout(
        num_ranks=4, capacity=64, num_choices=num_choices, hidden_size=256, block=128,
    )  # fmt: skip
    nothing = torch.zeros(4, dtype=torch.int32)
    own = torch.zeros(layout.num_bytes, dtype=torch.uint8)
    buffers = Buffers(layout=layout, rank=1, own=own, peers={}, homes=nothing, rounds=nothing)
    write_arrivals(buffers, 2, 16)
    assert not any(own[part(rank)].any() for rank in (0, 1) for part in parts(buffers))
    for rank in (2, 3):
        values = own[buffers.values_of(rank)].view(torch.float8_e4m3fn).float()
        assert bool(values.isfinite().all()) and float(values.std()) > 0.5
        heads = own[buffers.heads_of(rank)].view(torch.int32).view(64, -1)
        owners = heads[:, 1 : 1 + num_choices]
        assert int((owners & 65535).max()) == 3, "four experts on each rank"
        assert int((owners >> 16).max()) == 3
        assert float((owners >> 16 == 1).float().mean()) == pytest.approx(1 / 4, abs=0.08)
        factors = heads.view(torch.float32)[:, 1 + num_choices : 1 + 2 * num_choices]
        assert bool((factors == 1 / num_choices).all())
    for flags in (buffers.sent, buffers.returned):
        assert flags.tolist() == [0, 0, 1 << 30, 1 << 30]


def parts(buffers: Buffers) -> tuple[Callable[[int], slice], ...]:
    return buffers.values_of, buffers.heads_of
