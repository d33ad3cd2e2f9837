"""The exchange with a fixed capacity: no size depends on the routing, so nothing waits for the host
and a decode step can be captured as a CUDA graph.

Every token is sent to every rank; expert ids that are not on the receiving rank are -1.  R ranks, C
tokens of capacity, K selected experts, d width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from deepinfer.engine.model.share import RoutedExperts, Steps
from deepinfer.errors import EngineError
from deepinfer.kernels.norm import NormedRows

from .exchange import ExchangedExperts, add_choices
from .groups import Group
from .payload import pack, quantize_rows, unpack
from .routing_table import RoutingTable


class FixedCapacityExperts(ExchangedExperts):
    """As ``ExchangedExperts``, for at most ``capacity`` tokens per rank; ``local`` must ignore -1.

    Raises: EngineError for more tokens, before anything is sent.
    """

    def __init__(
        self,
        local: RoutedExperts,
        table: RoutingTable,
        group: Group,
        *,
        hidden_size: int,
        num_choices: int,
        capacity: int,
        is_exact: bool = True,
    ) -> None:
        super().__init__(
            local,
            table,
            group,
            hidden_size=hidden_size,
            num_choices=num_choices,
            is_exact=is_exact,
        )
        self.capacity = capacity

    def begin(self, rows: NormedRows, ids: Tensor, weights: Tensor) -> Steps:
        """Send the tokens; the last step gives [T, d] f32."""
        x = rows.values
        count, choices = ids.shape
        if count > self.capacity:
            raise EngineError(
                f"{count} tokens in a step, but the exchange has room for {self.capacity} per "
                "rank: raise its capacity or lower max_num_seqs"
            )
        ranks, places = self.table.route(ids, self.group.rank)
        everyone = torch.arange(self.group.size, device=ids.device)[:, None, None]
        here = ids.new_full((self.group.size, self.capacity, choices), -1)
        here[:, :count] = torch.where(ranks == everyone, places, -1)
        codes = quantize_rows(x)
        padded = codes.new_zeros(self.capacity, codes.shape[1])
        padded[:count] = codes
        factors = weights.new_zeros(self.capacity, choices)
        factors[:count] = weights
        payload = torch.stack([pack(padded, part, factors) for part in here.unbind()])
        arriving = self.group.all_to_all(payload.flatten(0, 1), None, None)

        def compute() -> Callable[[], Tensor]:
            hidden, chosen, factors = unpack(arriving(), self.hidden_size)
            if not self.is_exact:
                sums = self.local(hidden, chosen, factors).to(torch.bfloat16)
                returning = self.group.all_to_all(sums, None, None)
                by_rank = (self.group.size, self.capacity)
                return lambda: add_choices(
                    torch.unflatten(returning(), 0, by_rank)[:, :count].transpose(0, 1)
                )
            pairs = self.local(
                hidden.repeat_interleave(choices, dim=0),
                chosen.flatten()[:, None],
                factors.flatten()[:, None],
            ).to(torch.bfloat16)
            returning = self.group.all_to_all(pairs, None, None)
            wanted = ranks.clamp(min=0)[None, ..., None].expand(1, -1, -1, self.hidden_size)

            def collect() -> Tensor:
                by_rank = returning().view(self.group.size, self.capacity, choices, -1)[:, :count]
                return add_choices(by_rank.gather(0, wanted)[0])

            return collect

        return compute
