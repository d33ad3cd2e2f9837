"""One rank's share of an expert-parallel deployment on one device.

The other ranks do not exist: what they would send is synthesized here, according to ``Traffic``.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.nn import functional

from deepinfer.engine.model.layer_tensors import LayerTensors
from deepinfer.engine.model.schedule import LayerPlan
from deepinfer.engine.model.share import (
    LocalExperts,
    Outputs,
    RoutedExperts,
    Steps,
    added_up,
    only,
)
from deepinfer.engine.parallel.exchange import PresentExperts
from deepinfer.kernels.exchange import Arrivals
from deepinfer.kernels.moe import sum_rows
from deepinfer.kernels.norm import NormedRows

from .arrived import ArrivedTokens
from .plan import padded_experts
from .traffic import Traffic


class SliceShare:
    """A rank's ``Share``: all of attention, and its part of the routed experts.

    ``num_redundant``: redundant experts on this rank; even and skewed routing do not use them."""

    tensor_rank = 0
    tensor_size = 1

    def __init__(self, ranks: int, seed: int, num_redundant: int = 0) -> None:
        self.ranks = ranks
        self.seed = seed
        self.num_redundant = num_redundant
        self.routing = "even"
        self.arrived = ArrivedTokens()

    def has_layer(self, plan: LayerPlan) -> bool:
        return True

    def gather_groups(self, groups: Tensor) -> Tensor:
        return groups

    def routed_experts(self, plan: LayerPlan, tensors: LayerTensors, limit: float) -> RoutedExperts:
        num_held = padded_experts(plan.n_routed_experts, self.ranks) + self.num_redundant
        local = LocalExperts(tensors, range(num_held), limit, plan.n_routed_experts)
        if self.ranks == 1:
            return local
        return ReceivedTokens(local, self, plan)

    def traffic(self, plan: LayerPlan) -> Traffic:
        """What this rank receives in a layer with the current routing."""
        num_held = padded_experts(plan.n_routed_experts, self.ranks)
        return Traffic(
            routing=self.routing,
            num_experts=plan.n_routed_experts,
            num_choices=plan.num_experts_per_tok,
            num_held=num_held + (self.num_redundant if self.routing == "balanced" else 0),
            ranks=self.ranks,
            seed=self.seed + plan.layer_id,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Table:
    """What all ranks send here when each has T tokens: N tokens with expert choices [N, K] i64, of
    which ``num_pairs`` are local, and weights [N, K] f32.

    back [T copies] i32: the result rows that a token of this rank gets back.  ``arrivals``: the
    buffer with the tokens on a GPU, with choices of -1 for unused places.
    """

    choices: Tensor
    factors: Tensor
    num_pairs: int
    back: Tensor
    copies: int
    arrivals: Arrivals | None = None


class ReceivedTokens:
    """Local experts applied to the tokens that all ranks would send, with as many results as would
    return.

    On a GPU it works like the exchange between GPUs of one host: the tokens are in place from the
    start, and a result per expert choice returns.  On a CPU the tokens are copies of this rank's
    own, and each rank's results are summed before they return.
    """

    def __init__(self, local: LocalExperts, share: SliceShare, plan: LayerPlan) -> None:
        self.local = local
        self._share = share
        self._plan = plan
        self._tables: dict[tuple[str, int], _Table] = {}

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return added_up(self.begin(NormedRows(x, x), ids, weights)()(), len(x))

    def begin(self, rows: NormedRows, ids: Tensor, weights: Tensor) -> Steps:
        x = rows.values
        table = self._table(len(x), x.device)

        def compute() -> Outputs:
            if table.arrivals is not None:
                self.local.send_back(table.arrivals, table.choices, table.factors, table.num_pairs)
                return table.arrivals.buffers.results, table.back
            received = x[torch.arange(len(table.choices)) % len(x)]
            experts = PresentExperts(self.local)
            results = experts(received, table.choices, table.factors).to(torch.bfloat16)
            return sum_rows(results, table.back, table.copies)

        return only(compute)

    def assist(self) -> None:
        """Nothing to do: there are no other ranks."""

    def _table(self, num_tokens: int, device: torch.device) -> _Table:
        key = self._share.routing, num_tokens
        if key not in self._tables:
            choices = self._share.traffic(self._plan).choices(num_tokens).to(device)
            make = self._on_gpu if device.type == "cuda" else self._on_cpu
            self._tables[key] = make(choices, num_tokens)
        return self._tables[key]

    def _on_gpu(self, choices: Tensor, num_tokens: int) -> _Table:
        (count, per_token), device = choices.shape, choices.device
        width = self.local.down.num_rows
        arrivals = self._share.arrived.tokens(count, num_tokens, width, per_token, device)
        # A token's local choices come last.  Rotated by a different number for each sending rank,
        # they write all result rows of this rank's tokens.
        source = torch.arange(count, device=device)[:, None] // num_tokens
        turned = torch.arange(per_token, device=device) - source - 1
        choices = choices.gather(1, turned % per_token)
        return _Table(
            choices=functional.pad(choices, (0, 0, 0, len(arrivals) - count), value=-1),
            factors=torch.full((len(arrivals), per_token), 1 / per_token, device=device),
            num_pairs=int((choices >= 0).sum()),
            back=torch.arange(num_tokens * per_token, dtype=torch.int32, device=device),
            copies=per_token,
            arrivals=arrivals,
        )

    def _on_cpu(self, choices: Tensor, num_tokens: int) -> _Table:
        count = len(choices)
        copies = -(-count // num_tokens)
        back = torch.arange(copies * num_tokens, dtype=torch.int32)
        back = torch.where(back < count, back, -1).view(copies, num_tokens).t()
        return _Table(
            choices=choices,
            factors=torch.full(choices.shape, 1 / choices.shape[1]),
            num_pairs=int((choices >= 0).sum()),
            back=back.flatten(),
            copies=copies,
        )
