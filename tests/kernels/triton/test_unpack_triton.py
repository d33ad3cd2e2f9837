"""Packed rows to bf16: the kernel against the reference, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deepinfer.kernels.attention.triton_unpack import unpack_rows_triton
from deepinfer.kernels.quant import (
    pack_main_rows,
    pack_window_rows,
    unpack_main_rows,
    unpack_window_rows,
)
from deepinfer.kernels.testing import assert_bitwise_equal


def _values(num_rows: int, width: int) -> Tensor:
    """Sizes far apart, so that scales are at both ends of their ranges."""
    size = 10.0 ** torch.randint(-9, 3, (num_rows, width // 16)).float()
    return torch.randn(num_rows, width) * size.repeat_interleave(16, dim=1)


@pytest.mark.parametrize(
    "num_window, num_main, width",
    [(0, 0, 512), (1, 37, 512), (37, 0, 512), (9, None, 64), (5, 8, 192)],
)
def test_matches_reference(
    num_window: int, num_main: int | None, width: int, device: torch.device
) -> None:
    window = pack_window_rows(_values(num_window, width)).to(device)
    main = None if num_main is None else pack_main_rows(_values(num_main, width)).to(device)
    wanted = unpack_window_rows(window)
    assert torch.equal(wanted.bfloat16().float(), wanted), "not exact in bf16"
    window_out, main_out = unpack_rows_triton(window, main, width)
    assert_bitwise_equal(window_out, wanted.bfloat16())
    if main is None:
        assert main_out is None
    else:
        assert_bitwise_equal(main_out, unpack_main_rows(main).bfloat16())


def test_every_byte_is_a_scale(device: torch.device) -> None:
    """UE8M0 from 0, which is 2**-127, to 255, which is NaN; E4M3 with both of its NaNs."""
    byte = torch.arange(256, dtype=torch.uint8)
    window = torch.randint(0, 256, (256, 528), dtype=torch.uint8)
    main = torch.randint(0, 256, (256, 288), dtype=torch.uint8)
    window[:, 512:], main[:, 256:] = byte[:, None], byte[:, None]
    window, main = window.to(device), main.to(device)
    window_out, main_out = unpack_rows_triton(window, main, 512)
    assert_bitwise_equal(window_out, unpack_window_rows(window).bfloat16())
    assert main_out is not None
    assert_bitwise_equal(main_out, unpack_main_rows(main).bfloat16())
