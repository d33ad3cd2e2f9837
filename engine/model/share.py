"""The part of each layer that a rank computes: by default all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.moe import (
    Pages,
    Slots,
    expert_pairs,
    experts,
    native_experts,
    send_back_experts,
    slots_for,
    sum_rows,
)
from deepinfer.kernels.placement import on_accelerator

if TYPE_CHECKING:
    from deepinfer.kernels.exchange import Arrivals
    from deepinfer.kernels.norm import NormedRows

    from .layer_tensors import LayerTensors
    from .schedule import LayerPlan


# Output of experts: [T, d] f32, or on a GPU rows [R, d] bf16 to be summed and the rows of each
# token, [T S] i32 with -1 for none.
Outputs = Tensor | tuple[Tensor, Tensor]
# The two steps that follow ``begin``: compute, then wait for the results of other ranks.
Steps = Callable[[], Callable[[], Outputs]]


def added_up(outputs: Outputs, num_tokens: int) -> Tensor:
    """The summed outputs, [T, d] f32."""
    if isinstance(outputs, Tensor):
        return outputs
    rows, row = outputs
    return sum_rows(rows, row, len(row) // num_tokens)


def only(compute: Callable[[], Outputs]) -> Steps:
    """The steps if no other ranks take part."""

    def step() -> Callable[[], Outputs]:
        outputs = compute()
        return lambda: outputs

    return step


class RoutedExperts(Protocol):
    """The routed experts of one layer, on this rank or others."""

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """x [T, d] bf16, ids [T, K] i64 ascending, weights [T, K] f32 -> [T, d] f32."""
        ...

    def begin(self, rows: NormedRows, ids: Tensor, weights: Tensor) -> Steps:
        """Dispatch tokens to the ranks of their experts.  The first returned step runs the local
        experts and sends their results, the second waits for the results of others.  Work between
        the steps hides the exchange."""
        ...

    def assist(self) -> None:
        """Compute for other ranks' tokens when this rank has none."""
        ...


class Share(Protocol):
    """One rank's share of every layer."""

    def has_layer(self, plan: LayerPlan) -> bool:
        """Whether this rank has this backbone layer."""
        ...

    @property
    def tensor_rank(self) -> int: ...

    @property
    def tensor_size(self) -> int:
        """Ranks that split the attention heads, consecutive output groups each."""
        ...

    def gather_groups(self, groups: Tensor) -> Tensor:
        """All-gather: [T, G / tensor_size, r] of every rank, in rank order -> [T, G, r]."""
        ...

    def routed_experts(
        self, plan: LayerPlan, tensors: LayerTensors, limit: float
    ) -> RoutedExperts: ...


class WholeModel:
    """The share of a single rank: everything."""

    tensor_rank = 0
    tensor_size = 1

    def has_layer(self, plan: LayerPlan) -> bool:
        return True

    def gather_groups(self, groups: Tensor) -> Tensor:
        return groups

    def routed_experts(self, plan: LayerPlan, tensors: LayerTensors, limit: float) -> RoutedExperts:
        return LocalExperts(tensors, range(plan.n_routed_experts), limit, plan.n_routed_experts)


class LocalExperts:
    """Experts whose weights are on this rank, in the given order; ids are local indices.

    If they are not all of ``num_experts``, every token must have at least one of them.
    """

    def __init__(
        self, tensors: LayerTensors, members: Sequence[int], limit: float, num_experts: int
    ) -> None:
        layers = [tensors.under(f"ffn.experts.{expert}.") for expert in members]
        self.gate_up, self.down = native_experts(
            Weight.stack([gate_up(layer) for layer in layers]),
            Weight.stack([layer.weight("w2") for layer in layers]),
            as_fp8=tensors.experts_as_fp8,
        )
        self.limit = limit
        self.num_members = len(members)
        self._share = min(1.0, len(members) / num_experts)

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        num_pairs = self._num_pairs(ids)
        return experts(x, ids, weights, self.gate_up, self.down, self.limit, num_pairs=num_pairs)

    def slots(self, x: Tensor, choices: int) -> Slots | Pages:
        """``kernels.moe.slots_for``."""
        return slots_for(x, choices, self.gate_up)

    def pairs(
        self,
        x: Tensor | Arrivals,
        ids: Tensor,
        weights: Tensor,
        slots: Slots | Pages | None = None,
    ) -> tuple[Tensor, Tensor]:
        """``kernels.moe.expert_pairs``: the output of each expert separately, on a GPU."""
        common = (x, ids, weights, self.gate_up, self.down, self.limit)
        return expert_pairs(*common, num_pairs=self._num_pairs(ids), slots=slots)

    def send_back(
        self, arrivals: Arrivals, places: Tensor, weights: Tensor, num_pairs: int | None = None
    ) -> None:
        """``kernels.moe.send_back_experts`` for the tokens of all ranks, places [N, K] i64; about
        ``num_pairs`` of their experts are local, by default this rank's share."""
        if num_pairs is None:
            num_pairs = round(places.numel() * self._share)
        common = (arrivals, places, weights, self.gate_up, self.down, self.limit)
        send_back_experts(*common, num_pairs=num_pairs)

    def begin(
        self, rows: NormedRows, ids: Tensor, weights: Tensor, slots: Slots | Pages | None = None
    ) -> Steps:
        """``slots``: those of these ids, if the router filled them on a GPU."""
        x = rows.values
        if on_accelerator(x) and len(x):
            return only(lambda: self.pairs(x, ids, weights, slots))
        return only(lambda: self(x, ids, weights))

    def assist(self) -> None:
        """Nothing to do: other ranks' tokens never come here."""

    def _num_pairs(self, ids: Tensor) -> int:
        """About how many of these expert ids are local."""
        choices = ids.shape[1]
        present = choices * self._share / (1 - (1 - self._share) ** choices)
        return round(len(ids) * present)


def gate_up(tensors: LayerTensors) -> Weight:
    """The first two linear layers of an expert as one weight."""
    return Weight.concat([tensors.weight("w1"), tensors.weight("w3")])


WHOLE_MODEL = WholeModel()
