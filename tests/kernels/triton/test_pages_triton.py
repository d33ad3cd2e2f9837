"""Tokens in pages of their experts, against choosing and quantising by themselves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.gemm.activations import quantize_activations
from deepinfer.kernels.gemm.k_order import KOrder
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.moe.pages import Pages
from deepinfer.kernels.moe.pair_order import order_pairs
from deepinfer.kernels.moe.triton_router import route_triton
from deepinfer.kernels.testing import assert_bitwise_equal

_CHOICES = 3


def _case(tokens: int, experts: int, device: torch.device) -> tuple[Tensor, Weight, Tensor]:
    x = torch.randn(tokens, 256, device=device).to(torch.bfloat16)
    gate = Weight((torch.randn(experts, 256, device=device) / 4).to(torch.bfloat16))
    return x, gate, torch.randn(experts, device=device)


def _route(
    x: Tensor, gate: Weight, bias: Tensor, slots: Pages | None = None
) -> tuple[Tensor, Tensor]:
    return route_triton(
        x, gate, bias, num_experts_per_tok=_CHOICES, normalize=True, scaling_factor=1.5, slots=slots
    )


def _check(x: Tensor, gate: Weight, bias: Tensor, tile_rows: int, order: KOrder) -> None:
    """Twice, since what is counted must begin anew."""
    tokens, experts = len(x), len(bias)
    form = MatrixPath.of(x.device), order
    ids, weights = _route(x, gate, bias)
    pages = Pages.empty(tokens, _CHOICES, experts, tile_rows, x.shape[1], *form, x.device)
    pages.numbers.fill_(12345)
    for _ in range(2):
        actual_ids, actual_weights = _route(x, gate, bias, pages)
        assert_bitwise_equal(actual_ids, ids, "ids")
        assert_bitwise_equal(actual_weights, weights, "weights")
        rows, flat = pages.rows, ids.flatten()
        row = rows.row.long()
        assert rows.pair[row].tolist() == list(range(len(flat)))
        assert int((rows.pair != -1).sum()) == len(flat)
        expected = order_pairs(ids, experts, tile_rows)
        whose_tile = torch.where(rows.expert < 0, -1, rows.expert & 0xFFFF)
        assert_bitwise_equal(whose_tile, expected.expert, "tiles in the order of experts")
        assert_bitwise_equal(rows.used, expected.used, "used")
        tiles = int(rows.used) // tile_rows
        page = (rows.expert[:tiles] >> 16).long()
        assert page.sort().values.tolist() == list(range(tiles))
        whose = torch.full_like(rows.expert, -1)
        whose[page] = whose_tile[:tiles]
        assert_bitwise_equal(whose[row // tile_rows].long(), flat, "whose rows")
        in_tile = (rows.pair.view(-1, tile_rows) >= 0).int()
        assert (in_tile.diff(dim=1) <= 0).all(), "rows of no pair come last in a tile"
        moved, whole = pages.acts.values[row], quantize_activations(x, *form).values
        each = torch.arange(len(flat), device=x.device) // _CHOICES
        assert_bitwise_equal(moved.view(torch.uint8), whole[each].view(torch.uint8), "codes")


@pytest.mark.parametrize("tokens, experts", [(1, 128), (5, 20), (7, 3)])
def test_each_token_is_in_a_page_of_each_of_its_experts(
    tokens: int, experts: int, device: torch.device
) -> None:
    """With few experts, in several pages of four rows."""
    _check(*_case(tokens, experts, device), 4, KOrder.PLAIN)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 7, 48, 100])
@pytest.mark.parametrize("is_alike", [False, True])
def test_many_programs_share_pages(tokens: int, is_alike: bool, device: torch.device) -> None:
    """As many as run at once, which choose anything, or all the same."""
    x, gate, bias = _case(tokens, 384, device)
    for seed in range(20):
        torch.manual_seed(seed)
        x.copy_(torch.randn(1 if is_alike else tokens, 256))
        _check(x, gate, bias, 16, KOrder.FRAGMENT)


def test_a_nan_token_harms_no_other(device: torch.device) -> None:
    x, gate, bias = _case(3, 8, device)
    x[1] = float("nan")
    _check(x, gate, bias, 16, KOrder.PLAIN)
