"""The part of ``engine.kernel_plan`` for the exchange between GPUs of one host, for common numbers
of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch

from deepinfer.engine.cache.kv_cache import KVCache
from deepinfer.engine.model.moe import MoE
from deepinfer.engine.model.share import LocalExperts
from deepinfer.kernels.exchange import (
    Arrivals,
    Buffers,
    ExchangeLayout,
    copy_blocks,
    end_round,
    make_heads,
    receive_tokens,
    sendable,
    token_block,
)
from deepinfer.kernels.norm import NormedRows

from .handover import block_rows, ring_rows

_RANKS = (2, 4, 8)
_NUM_TOKENS = 3
# Tokens per expert, on both sides of every tile threshold.
_EXPERT_ROWS = (1, 17, 33, 65, 81, 97, 129, 193, 257, 513)
# Tokens, on both sides of every threshold of the router's tiles.
_ROUTED = (1, 512, 1024, 1280, 1536, 2640, 8192)
_ADDRESS = 1 << 44  # of a peer's memory


def rehearse_exchanges(layers: Sequence[MoE], hidden_size: int, cache: KVCache) -> None:
    """Launch all of them inside a rehearsal: kernels are compiled for the number of ranks, the
    width, and the number of experts per token.

    ``layers``: one complete layer for each number of experts per token.
    """
    for part in (*block_rows(cache, [0]), *ring_rows(cache, 0)):
        copy_blocks(part.table, part.rows, _ADDRESS, part.rows)
    for layer, rows in product(layers, _ROUTED):  # before dispatch, and so without slots
        layer.route(torch.zeros(rows, hidden_size, dtype=torch.bfloat16), None)
    if hidden_size % ExchangeLayout.WIDTH_MULTIPLE:
        return
    for layer, num_ranks in product(layers, _RANKS):
        assert isinstance(layer.routed, LocalExperts)
        layout = ExchangeLayout(
            num_ranks=num_ranks,
            capacity=_NUM_TOKENS,
            num_choices=layer.num_experts_per_tok,
            hidden_size=hidden_size,
            block=token_block(cache.history.device),
        )
        _exchange(layout, layer.routed)


def _exchange(layout: ExchangeLayout, experts: LocalExperts) -> None:
    x = torch.zeros(_NUM_TOKENS, layout.hidden_size, dtype=torch.bfloat16)
    ids = torch.zeros(_NUM_TOKENS, layout.num_choices, dtype=torch.int64)
    # One replica per expert: rank, local index, number of replicas.
    table = (ids[:, :1].contiguous(), ids[:, :1].contiguous(), ids[:, 0].contiguous())
    buffers = Buffers(
        layout=layout,
        rank=0,
        own=torch.zeros(layout.num_bytes, dtype=torch.uint8),
        peers={},
        homes=torch.zeros(layout.num_ranks, dtype=torch.int64),
        rounds=torch.zeros(1, dtype=torch.int32),
    )
    tokens = sendable(NormedRows(x, x))
    make_heads(buffers, tokens, ids, ids.float(), table, _NUM_TOKENS)
    received = receive_tokens(buffers, _NUM_TOKENS)
    experts.send_back(Arrivals(buffers, tokens, _NUM_TOKENS), *received)
    end_round(buffers)
    if layout.num_ranks == _RANKS[0]:  # the GEMMs do not depend on the number of ranks
        for rows in _EXPERT_ROWS:
            most = -(-rows * experts.num_members // (layout.num_ranks * layout.num_choices))
            arrivals = Arrivals(buffers, tokens, most)
            places = torch.zeros(len(arrivals), layout.num_choices, dtype=torch.int64)
            experts.send_back(arrivals, places, places.float())
