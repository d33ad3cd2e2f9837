"""Linear layers on the GPU: checks against the references, and times of the model's shapes.

``python benchmarks/kernel_gemm.py`` checks, then prints one JSON line for each shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from kernel_timing import Ceilings, Row, microseconds, print_row
from torch import Tensor

from deepinfer.kernels.gemm import (
    Weight,
    fp32_linear,
    grouped_linear,
    linear,
    native_grouped_weight,
    native_weight,
    quantized_linear,
)
from deepinfer.kernels.gemm.activations import quantize_activations
from deepinfer.kernels.gemm.k_order import KOrder
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.gemm.reference import (
    fp32_linear_reference,
    grouped_linear_reference,
    linear_reference,
    quantized_linear_reference,
)

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


def calc_diff(x: Tensor, y: Tensor) -> float:
    """``1 - 2 <x, y> / (<x, x> + <y, y>)``, NaN counted as the worst."""
    a, b = x.double(), y.double()
    diff = float(1 - 2 * (a * b).sum() / ((a * a).sum() + (b * b).sum()))
    return diff if diff == diff else float("inf")


def checks() -> Iterator[tuple[str, Callable[[], str]]]:
    """(name, check); a check returns what it measured and raises AssertionError."""
    for name, (n, k) in _DENSE.items():
        for kind in ("fp8", "fp4"):
            yield f"{name} {kind}", partial(_check_quantized, kind, n, k)
    yield "odd shapes", _check_odd
    yield "wo_a, eight groups", _check_grouped
    yield "bf16 with fp32 sums", _check_fp32
    for kind in ("fp8", "fp4", "bf16"):
        yield f"same bits in any batch, {kind}", partial(_check_bits, kind)


def _check_quantized(kind: str, n: int, k: int) -> str:
    weight = random_weight(kind, n, k)
    worst = 0.0
    for rows in (1, 7, 64, 129, 1024):
        x = random_rows(rows, k)
        expected = quantized_linear_reference(x, weight)
        for form in (weight, native_weight(weight)):
            worst = max(worst, calc_diff(quantized_linear(x, form), expected))
    assert worst < 1e-5, f"calc_diff {worst:.2e}"
    return f"calc_diff {worst:.2e}"


def _check_odd() -> str:
    worst = 0.0
    for rows, n, k in [(3, 32, 32), (17, 96, 160), (65, 608, 224), (400, 160, 1184)]:
        x = random_rows(rows, k)
        for kind in ("fp8", "fp4"):
            weight = random_weight(kind, n, k)
            diff = calc_diff(quantized_linear(x, weight), quantized_linear_reference(x, weight))
            worst = max(worst, diff)
        plain = random_weight("bf16", n, k)
        worst = max(worst, calc_diff(linear(x, plain), linear_reference(x, plain)))
    assert worst < 1e-5, f"calc_diff {worst:.2e}"
    return f"calc_diff {worst:.2e}"


def _check_grouped() -> str:
    worst = 0.0
    for weight in (random_weight("fp8", 8, 1024, 4096), random_weight("bf16", 8, 1024, 4096)):
        for rows in (1, 65, 512):
            x = random_rows(rows, 8, 4096)
            diff = calc_diff(grouped_linear(x, weight), grouped_linear_reference(x, weight))
            worst = max(worst, diff)
    assert worst < 1e-5, f"calc_diff {worst:.2e}"
    return f"calc_diff {worst:.2e}"


def _check_fp32() -> str:
    weight, x = random_weight("bf16", 384, 5120), random_rows(70, 5120)
    exact = x.double() @ weight.values.double().t()
    ours = float((fp32_linear(x, weight) - exact).abs().max() / exact.abs().max())
    torch_error = fp32_linear_reference(x, weight) - exact
    theirs = float(torch_error.abs().max() / exact.abs().max())
    assert ours < 3e-5, f"relative error {ours:.2e}, torch fp32 {theirs:.2e}"
    return f"relative error {ours:.2e}, torch fp32 {theirs:.2e}"


def _check_bits(kind: str) -> str:
    plain, x = random_weight(kind, 5120, 5120), random_rows(2048, 5120)
    if kind == "bf16":
        return _check_bits_of(partial(linear, weight=plain), x)
    return " and ".join(
        _check_bits_of(partial(quantized_linear, weight=weight), x)
        for weight in (plain, native_weight(plain))
    )


def _check_bits_of(op: Callable[[Tensor], Tensor], x: Tensor) -> str:
    whole = op(x)
    for rows in (1, 2, 7, 16, 17, 64, 256, 1025):
        same = torch.equal(op(x[:rows].contiguous()), whole[:rows])
        assert same, f"{rows} rows differ from the same rows of 2,048"
    assert torch.equal(op(x), whole), "a second run differs"
    return "1 to 2,048 rows"


def timings(ceilings: Ceilings) -> Iterator[Row]:
    path = MatrixPath.of(torch.device("cuda"))
    for name, (n, k) in _DENSE.items():
        weight = random_weight("fp8", n, k)
        for form, layer in (("on disk", weight), ("native", native_weight(weight))):
            for rows in (16, 64, 256, 1536, 4096):
                x = random_rows(rows, k)
                us = microseconds(partial(quantized_linear, x, layer))
                num_bytes = rows * (2 * k + 2 * n) + n * k
                label = f"{name} fp8 {form} with quantise, {rows} x {n} x {k}"
                yield ceilings.row(label, us, 2 * rows * n * k, num_bytes)
    x = random_rows(4096, 5120)
    us = microseconds(partial(quantize_activations, x, path, KOrder.PLAIN))
    yield ceilings.row("quantise 4096 x 5120", us, 0, x.numel() * 3)
    weight = native_grouped_weight(random_weight("fp8", 8, 1024, 4096))
    for rows in (64, 256, 4096):
        x = random_rows(rows, 8, 4096)
        us = microseconds(partial(grouped_linear, x, weight))
        flop, num_bytes = 2 * rows * 8 * 1024 * 4096, rows * 8 * 2 * 5120 + weight.values.numel()
        yield ceilings.row(f"wo_a, {rows} rows", us, flop, num_bytes)
    for name, n, k in [("lm head", _VOCABULARY, 5120), ("router", 384, 5120)]:
        weight = random_weight("bf16", n, k)
        for rows in (16, 256, 1536):
            x = random_rows(rows, k)
            us = microseconds(partial(fp32_linear, x, weight))
            num_bytes = 2 * rows * k + 4 * rows * n + 2 * n * k
            yield ceilings.row(f"{name} bf16, {rows} rows", us, 2 * rows * n * k, num_bytes)


def main() -> None:
    for name, check in checks():
        print(f"{name}: {check()}", flush=True)
    for row in timings(Ceilings.measure()):
        print_row(row)


if __name__ == "__main__":
    main()
