"""Expert parallelism: dispatch sends tokens in FP8, combine returns expert outputs in bf16.

T tokens of this rank, K selected experts each, d width.  Two forms of combine:

exact    the output of each expert returns separately, and they are added in ascending order of
         expert ids as on one rank: any number of ranks gives the same bits.
reduced  each rank adds its outputs for a token and sends one row: less traffic, other rounding.

A "rank" may be a whole node: then its experts are reached by a second exchange inside the node, and
each token crosses the network once per node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from deepinfer.engine.model.share import RoutedExperts, Steps, added_up, only
from deepinfer.kernels.norm import NormedRows
from deepinfer.kernels.placement import on_accelerator

from .groups import Group
from .payload import pack, quantize_rows, unpack
from .routing_table import RoutingTable


class ExchangedExperts:
    """The routed experts of one layer, of which ``local`` are on this rank.

    ``local`` takes local indices instead of expert ids.  Every rank of ``group`` must make the same
    calls; those without tokens call ``assist``.  Sizes are exchanged first, for which the host
    waits, so nothing is padded and the number of tokens is not limited.
    """

    def __init__(
        self,
        local: RoutedExperts,
        table: RoutingTable,
        group: Group,
        *,
        hidden_size: int,
        num_choices: int,
        is_exact: bool = True,
    ) -> None:
        self.local = local
        self.table = table
        self.group = group
        self.hidden_size = hidden_size
        self.num_choices = num_choices
        self.is_exact = is_exact

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return added_up(self.begin(NormedRows(x, x), ids, weights)()(), len(x))

    def assist(self) -> None:
        device = self.table.rank.device
        x = torch.empty(0, self.hidden_size, dtype=torch.bfloat16, device=device)
        ids = torch.empty(0, self.num_choices, dtype=torch.int64, device=device)
        self(x, ids, ids.float())

    def begin(self, rows: NormedRows, ids: Tensor, weights: Tensor) -> Steps:
        """Send the tokens; the last step gives [T, d] f32."""
        x = rows.values
        ranks, places = self.table.route(ids, self.group.rank)
        wanted = torch.stack([(ranks == rank).any(-1) for rank in range(self.group.size)])
        owner, token = wanted.nonzero(as_tuple=True)
        send = wanted.sum(1).tolist()
        here = torch.where(ranks[token] == owner[:, None], places[token], -1)
        payload = pack(quantize_rows(x)[token], here, weights[token])
        receive = self.group.exchange_counts(send, x.device)
        arriving = self.group.all_to_all(payload, send, receive)

        def compute() -> Callable[[], Tensor]:
            hidden, chosen, factors = unpack(arriving(), self.hidden_size)
            if self.is_exact:
                return self._combine_exact(ids.shape, here, token, send, receive,
                                           *self._pairs(hidden, chosen, factors))  # fmt: skip
            sums = self.local(hidden, chosen, factors).to(torch.bfloat16)
            returning = self.group.all_to_all(sums, receive, send)
            return lambda: self._add_by_rank(len(ids), token, send, returning())

        return compute

    def _pairs(self, x: Tensor, places: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The output of every local expert choice, [P, d] bf16, and how many each row has."""
        row, choice = (places >= 0).nonzero(as_tuple=True)
        pairs = self.local(x[row], places[row, choice, None], weights[row, choice, None])
        return pairs.to(torch.bfloat16), (places >= 0).sum(1)

    def _combine_exact(
        self,
        shape: torch.Size,
        here: Tensor,
        token: Tensor,
        send: Sequence[int],
        receive: Sequence[int],
        pairs: Tensor,
        num_pairs: Tensor,
    ) -> Callable[[], Tensor]:
        """Return outputs to the tokens' ranks; the result adds up those received here."""
        num_tokens, num_choices = shape
        row, choice = (here >= 0).nonzero(as_tuple=True)
        given = [int(part.sum()) for part in torch.split(num_pairs, list(receive))]
        counts = (here >= 0).sum(1)
        expected = [int(part.sum()) for part in torch.split(counts, list(send))]
        returning = self.group.all_to_all(pairs, given, expected)

        def collect() -> Tensor:
            returned = returning()
            by_choice = returned.new_zeros(num_tokens * num_choices, self.hidden_size)
            by_choice[token[row] * num_choices + choice] = returned
            return add_choices(by_choice.view(*shape, self.hidden_size))

        return collect

    def _add_by_rank(
        self, num_tokens: int, token: Tensor, send: Sequence[int], rows: Tensor
    ) -> Tensor:
        """Add the rows rank by rank; each rank sends at most one per token."""
        total = torch.zeros(num_tokens, self.hidden_size, device=rows.device)
        parts = zip(torch.split(token, list(send)), torch.split(rows, list(send)), strict=True)
        for where, part in parts:
            total[where] += part.float()
        return total


class PresentExperts:
    """Local experts that ignore ids of -1."""

    def __init__(self, local: RoutedExperts) -> None:
        self.local = local

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        if on_accelerator(x):
            return self.local(x, ids, weights)
        row, choice = (ids >= 0).nonzero(as_tuple=True)
        pairs = self.local(x[row], ids[row, choice, None], weights[row, choice, None])
        by_choice = pairs.new_zeros(*ids.shape, x.shape[1])
        by_choice[row, choice] = pairs
        return add_choices(by_choice)

    def begin(self, rows: NormedRows, ids: Tensor, weights: Tensor) -> Steps:
        return only(lambda: self(rows.values, ids, weights))

    def assist(self) -> None:
        self.local.assist()


def add_choices(rows: Tensor) -> Tensor:
    """[T, K, d] -> [T, d] f32, summed in the order of choices."""
    total = rows[:, 0].float()
    for choice in range(1, rows.shape[1]):
        total = total + rows[:, choice].float()
    return total
