"""Without rows no kernel is launched, so nothing beside the empty result can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer.kernels import relaunch
from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.gemm.triton_kernel import (
    fp32_linear_parts_triton,
    fp32_linear_triton,
    grouped_linear_triton,
    linear_triton,
    quantized_linear_triton,
)
from deepinfer.kernels.hyper_connection import Entrance, HyperMix, Mixer
from deepinfer.kernels.hyper_connection import triton_kernel as hyper
from deepinfer.kernels.moe.triton_kernel import experts_triton
from deepinfer.kernels.moe.triton_router import route_triton
from deepinfer.kernels.moe.triton_swiglu import swiglu_triton
from deepinfer.kernels.rows.triton_kernel import rms_norm_triton


def _packed(*shape: int) -> Weight:
    *members, n, k = shape
    values = torch.zeros(*members, n, k // 2, dtype=torch.int8)
    scales = torch.full((*members, n, k // 32), 127, dtype=torch.uint8)
    return Weight(values, scales.view(torch.float8_e8m0fnu))


def _bf16(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def _experts() -> Tensor:
    ids, gate_up, down = (
        torch.empty(0, 2, dtype=torch.int64),
        _packed(3, 64, 64),
        _packed(3, 64, 32),
    )
    return experts_triton(_bf16(0, 64), ids, torch.empty(0, 2), gate_up, down, 10.0)


def _route() -> Tensor:
    gate, bias = Weight(_bf16(8, 64)), torch.zeros(8)
    return route_triton(
        _bf16(0, 64), gate, bias, num_experts_per_tok=2, normalize=True, scaling_factor=1.5
    )[0]


def _advance() -> Tensor:
    mix = HyperMix(torch.empty(0, 4), torch.empty(0, 4), torch.empty(0, 4, 4))
    mixer = Mixer(Weight(torch.zeros(24, 256)), torch.ones(3), torch.zeros(24), 20, 1e-6)
    entrance = Entrance(_bf16(64), 1e-6, _packed(64, 64))
    return hyper.advance_streams_triton(_bf16(0, 4, 64), _bf16(0, 64), mix, mixer, entrance)[0]


OPERATIONS: dict[str, Callable[[], Tensor]] = {
    "linear": lambda: linear_triton(_bf16(0, 64), Weight(_bf16(32, 64))),
    "fp32_linear": lambda: fp32_linear_triton(_bf16(0, 64), Weight(_bf16(32, 64))),
    "fp32_linear_parts": lambda: fp32_linear_parts_triton(_bf16(0, 64), Weight(_bf16(32, 64)), 4),
    "quantized_linear": lambda: quantized_linear_triton(_bf16(0, 64), _packed(32, 64)),
    "grouped_linear": lambda: grouped_linear_triton(_bf16(0, 2, 64), Weight(_bf16(2, 32, 64))),
    "experts": _experts,
    "route": _route,
    "swiglu": lambda: swiglu_triton(_bf16(0, 64), 10.0, torch.empty(0)),
    "advance_streams": _advance,
    "collapse_streams": lambda: hyper.collapse_streams_triton(_bf16(0, 4, 64), torch.empty(0, 4)),
    "rms_norm": lambda: rms_norm_triton(_bf16(0, 64), _bf16(64), 1e-6),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_nothing_is_launched(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(kernel: Any, *arguments: Any, **named: Any) -> None:
        raise AssertionError(f"{kernel} was launched")

    monkeypatch.setattr(relaunch, "_launch", refuse)
    assert not OPERATIONS[name]().numel()
