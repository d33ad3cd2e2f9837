"""What the GPUs of a host launch to exchange tokens and caches, for the numbers of ranks that hosts
have: a part of ``engine.kernel_plan``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import product

import torch

from deepinfer.engine.cache.kv_cache import KVCache
from deepinfer.engine.model.moe import MoE
from deepinfer.engine.model.share import LocalExperts
from deepinfer.kernels.exchange import (
    Arrivals,
    ExchangeLayout,
    copy_blocks,
    end_round,
    receive_tokens,
    send_results,
    send_tokens,
    token_block,
)

from .handover import block_rows, ring_rows

_RANKS = (2, 4, 8)
_NUM_TOKENS = 3
_ADDRESS = 1 << 44  # of a peer's memory


def rehearse_exchanges(layers: Iterable[MoE], hidden_size: int, cache: KVCache) -> None:
    """Launch each of them, inside a rehearsal: the code of a kernel depends on the ranks, the width
    and the choices of a token, and whether each choice returns by itself.

    ``layers`` are whole ones, one of each number of choices.
    """
    for part in (*block_rows(cache, [0]), *ring_rows(cache, 0)):
        copy_blocks(part.table, part.rows, _ADDRESS, part.rows)
    if hidden_size % ExchangeLayout.WIDTH_MULTIPLE:
        return
    for layer, num_ranks, is_exact in product(layers, _RANKS, (True, False)):
        assert isinstance(layer.routed, LocalExperts)
        layout = ExchangeLayout(
            num_ranks=num_ranks,
            capacity=_NUM_TOKENS,
            num_choices=layer.num_experts_per_tok,
            hidden_size=hidden_size,
            is_exact=is_exact,
            block=token_block(cache.history.device),
        )
        _exchange(layout, layer.routed)


def _exchange(layout: ExchangeLayout, experts: LocalExperts) -> None:
    x = torch.zeros(_NUM_TOKENS, layout.hidden_size, dtype=torch.bfloat16)
    ids = torch.zeros(_NUM_TOKENS, layout.num_choices, dtype=torch.int64)
    # Each expert once: rank, place, and how many replicas.
    table = (ids[:, :1].contiguous(), ids[:, :1].contiguous(), ids[:, 0].contiguous())
    peers = torch.zeros(layout.num_ranks, dtype=torch.int64)
    own = torch.zeros(layout.num_bytes, dtype=torch.uint8)
    rounds = torch.zeros(1, dtype=torch.int32)
    to_all, here = (layout, peers, 0, rounds), (layout, own, rounds)
    send_tokens(*to_all, x, ids, ids.float(), table, _NUM_TOKENS)
    received = receive_tokens(*here, _NUM_TOKENS)
    arrivals = Arrivals(layout, own, _NUM_TOKENS)
    for parts in (experts.parts(1), experts.parts(sys.maxsize)):
        for part, results in enumerate(experts.arrived(arrivals, *received, parts)):
            send_results(*to_all, *results, _NUM_TOKENS, part, parts[part].start)
        end_round(*here, _NUM_TOKENS, len(parts))
