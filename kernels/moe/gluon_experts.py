"""Routed experts with ``HopperWeight``s, on NVIDIA SM90."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.gemm import HopperWeight
from deepinfer.kernels.gemm.activations import Activations, quantize_activations
from deepinfer.kernels.gemm.expert_rows import ExpertRows
from deepinfer.kernels.gemm.gluon_kernel import (
    check_rows,
    fits_gate,
    gated_rows_gluon,
    linear_rows_gluon,
)
from deepinfer.kernels.gemm.hopper_tile import NarrowTile, Tile, TripleTile, hopper_tile
from deepinfer.kernels.gemm.k_order import KOrder
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.launch import check_tensor

from .pages import Pages
from .slots import Slots
from .triton_kernel import order_experts, sum_of_pairs
from .triton_swiglu import swiglu_of_rows

if TYPE_CHECKING:
    from deepinfer.kernels.exchange import Arrivals


# By tile rows: the largest number of tokens for which pages were not slower, measured with 384
# experts.  GEMMs on pages of 16 rows take 0.5 % longer, which is more than 2 us unless tokens are
# few.
_MOST_PAGED = {16: 16, 32: 1536, 64: 1536}


def slots_gluon(x: Tensor, choices: int, gate_up: HopperWeight) -> Slots | Pages:
    """As ``slots_for``: pages for narrow tiles, the only ones that support paged rows."""
    tokens, members = len(x), gate_up.members
    pairs = tokens * choices
    tile = hopper_tile(gate_up, pairs // members)
    if not isinstance(tile, NarrowTile) or tokens > _MOST_PAGED.get(tile.rows, 0):
        return Slots.empty(tokens, choices, members, x.device)
    form = MatrixPath.FP8, gate_up.order
    return Pages.empty(tokens, choices, members, tile.rows, x.shape[1], *form, x.device)


def experts_gluon(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: HopperWeight,
    down: HopperWeight,
    limit: float,
    num_pairs: int | None = None,
) -> Tensor:
    """As ``experts_triton``."""
    if not ids.numel():
        return torch.zeros(len(x), down.num_rows, dtype=torch.float32, device=x.device)
    return sum_of_pairs(*expert_pairs_gluon(x, ids, weights, gate_up, down, limit, num_pairs))


def expert_pairs_gluon(
    x: Tensor | Arrivals,
    ids: Tensor,
    weights: Tensor,
    gate_up: HopperWeight,
    down: HopperWeight,
    limit: float,
    num_pairs: int | None = None,
    slots: Slots | Pages | None = None,
) -> tuple[Tensor, ExpertRows]:
    """As ``expert_pairs_triton``."""
    activated, rows, tile = _first_half(x, ids, weights, gate_up, down, limit, num_pairs, slots)
    return linear_rows_gluon(activated, down, rows, tile), rows


def send_back_experts_gluon(
    arrivals: Arrivals,
    places: Tensor,
    weights: Tensor,
    gate_up: HopperWeight,
    down: HopperWeight,
    limit: float,
    num_pairs: int | None = None,
) -> None:
    """As ``send_back_experts``: the last GEMM stores each row where its token came from."""
    common = (arrivals, places, weights, gate_up, down, limit, num_pairs)
    activated, rows, tile = _first_half(*common, slots=None)
    if isinstance(tile, TripleTile):
        arrivals.send_back(linear_rows_gluon(activated, down, rows, tile), rows)
    else:
        linear_rows_gluon(activated, down, rows, tile, arrivals)


def _check_experts(gate_up: HopperWeight, down: HopperWeight) -> None:
    """Raises: TensorError if their numbers of experts or expert widths differ."""
    members, width = gate_up.members, gate_up.num_rows // 2
    if (down.members, down.k) != (members, width):
        raise TensorError(
            f"down: expected {members} members [any, {width}], found {down.members} [any, {down.k}]"
        )


def _first_half(
    x: Tensor | Arrivals,
    ids: Tensor,
    weights: Tensor,
    gate_up: HopperWeight,
    down: HopperWeight,
    limit: float,
    num_pairs: int | None,
    slots: Slots | Pages | None,
) -> tuple[Activations, ExpertRows, Tile]:
    """Sort tokens by expert, gate and up projections, SwiGLU: input, layout and tile of
    ``down``."""
    if isinstance(x, Tensor):
        check_rows(x, gate_up)
    check_tensor("ids", ids, torch.int64, (len(x), None), ids)
    check_tensor("weights", weights, torch.float32, (len(x), ids.shape[1]), ids)
    _check_experts(gate_up, down)
    num_pairs = ids.numel() if num_pairs is None else num_pairs
    tile = hopper_tile(gate_up, num_pairs // gate_up.members)
    if isinstance(slots, Pages):
        rows, acts = slots.rows, slots.acts
        assert rows.tile_rows == tile.rows, "pages were made for another number of pairs"
    else:
        form = MatrixPath.FP8, gate_up.order
        rows, acts = order_experts(x, ids, gate_up.members, tile.rows, *form, slots)
    return _activated(acts, gate_up, tile, down.order, limit, rows, weights), rows, tile


def gated_linear_gluon(
    x: Tensor | Activations, gate_up: HopperWeight, limit: float, linear: HopperWeight
) -> Activations:
    """As ``gated_linear``."""
    if isinstance(x, Tensor):
        check_rows(x, gate_up)
        x = quantize_activations(x, MatrixPath.FP8, gate_up.order)
    tile = hopper_tile(gate_up, len(x.values))
    return _activated(x, gate_up, tile, linear.order, limit, None, None)


def _activated(
    acts: Activations,
    gate_up: HopperWeight,
    tile: Tile,
    order: KOrder,
    limit: float,
    rows: ExpertRows | None,
    weights: Tensor | None,
) -> Activations:
    if fits_gate(gate_up, tile, len(acts.values)):
        return gated_rows_gluon(acts, gate_up, tile, order, limit, rows, weights)
    hidden = linear_rows_gluon(acts, gate_up, rows, tile)
    return swiglu_of_rows(
        hidden, limit, weights, rows, MatrixPath.FP8, order, alternate=gate_up.is_gated
    )
