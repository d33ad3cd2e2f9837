"""Linear layers at the model's shapes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from deepinfer.kernels.gemm import (
    Weight,
    fp32_linear,
    grouped_linear,
    native_grouped_weight,
    native_weight,
    quantized_linear,
)
from deepinfer.kernels.gemm.activations import quantize_activations
from deepinfer.kernels.gemm.k_order import KOrder
from deepinfer.kernels.gemm.matrix_path import MatrixPath

from .case import KernelCase

# N, K of the projections: q_a with kv, q_b, o_b.
_DENSE = {"wq_a_kv": (1792, 5120), "wq_b": (32768, 1280), "wo_b": (5120, 8192)}
_VOCABULARY = 129_280


def random_weight(kind: str, *shape: int) -> Weight:
    """Random codes and nearby scales: "fp8", "fp4" (both packed) or "bf16", [..., N, K]."""
    *members, n, k = shape
    if kind == "bf16":
        return Weight(torch.randn(*members, n, k, device="cuda").to(torch.bfloat16) / k**0.5)
    if kind == "fp8":
        codes = torch.randn(*members, n, k, device="cuda").mul_(60).to(torch.float8_e4m3fn)
        scales = _exponents(114, 3, *members, n // 32, k // 32)
        return Weight(codes, scales)
    codes = torch.randint(-128, 128, (*members, n, k // 2), dtype=torch.int8, device="cuda")
    return Weight(codes, _exponents(118, 6, *members, n, k // 32))


def _exponents(low: int, spread: int, *shape: int) -> Tensor:
    exponents = torch.randint(low, low + spread, shape, dtype=torch.uint8, device="cuda")
    return exponents.view(torch.float8_e8m0fnu)


def random_rows(*shape: int) -> Tensor:
    """bf16 activations whose blocks of 32 differ in size."""
    x = torch.randn(*shape, device="cuda")
    sizes = torch.exp2(torch.randint(-2, 3, (*shape[:-1], shape[-1] // 32), device="cuda"))
    return (x * sizes.repeat_interleave(32, -1)).to(torch.bfloat16)


def cases() -> Iterator[KernelCase]:
    for name, (n, k) in _DENSE.items():
        weight = random_weight("fp8", n, k)
        for form, layer in (("on disk", weight), ("native", native_weight(weight))):
            for rows in (16, 64, 256, 1536, 4096):
                yield KernelCase(
                    f"{name} fp8 {form} with quantise, {rows} x {n} x {k}",
                    partial(quantized_linear, random_rows(rows, k), layer),
                    2 * rows * n * k,
                    rows * (2 * k + 2 * n) + n * k,
                )
    x, path = random_rows(4096, 5120), MatrixPath.of(torch.device("cuda"))
    quantise = partial(quantize_activations, x, path, KOrder.PLAIN)
    yield KernelCase("quantise 4096 x 5120", quantise, 0, x.numel() * 3)
    stored = random_weight("fp8", 8, 1024, 4096)
    for inputs in ("bf16", "fp8"):
        is_fp8 = inputs == "fp8"
        groups = native_grouped_weight(stored, fp8=is_fp8)
        for rows in (64, 256, 1536, 4096):
            yield KernelCase(
                f"wo_a, {inputs} inputs, {rows} rows",
                partial(grouped_linear, random_rows(rows, 8, 4096), groups, fp8=is_fp8),
                2 * rows * 8 * 1024 * 4096,
                rows * 8 * 2 * 5120 + groups.values.nbytes,
                "FP8" if is_fp8 else "bf16",
            )
    weight = random_weight("bf16", _VOCABULARY, 5120)
    for rows in (16, 256, 1536):
        yield KernelCase(
            f"lm head bf16, {rows} rows",
            partial(fp32_linear, random_rows(rows, 5120), weight),
            2 * rows * _VOCABULARY * 5120,
            2 * rows * 5120 + 4 * rows * _VOCABULARY + 2 * _VOCABULARY * 5120,
            "bf16",
        )
