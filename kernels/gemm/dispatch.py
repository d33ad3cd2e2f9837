"""Public functions for linear layers: the reference on a CPU, Triton or Gluon kernels on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.placement import on_accelerator

from .hopper_weights import HopperWeight, prepare_gate_up, prepare_weight
from .k_order import KOrder
from .reference import (
    fp32_linear_reference,
    grouped_linear_reference,
    linear_reference,
    quantized_linear_reference,
)
from .weights import Weight

if TYPE_CHECKING:
    from .activations import Activations


def native_weight(weight: Weight) -> Weight | HopperWeight:
    """``weight`` in its device's fastest format, for ``quantized_linear`` and ``experts``.

    On NVIDIA SM90 this is a copy of the same size in another layout if the shape allows it; else
    the weight itself.  The format determines the order of summation: convert once, then use only
    the result.
    """
    return (prepare_weight(weight) if _is_hopper(weight) else None) or weight


def native_gate_up(weight: Weight) -> Weight | HopperWeight:
    """``native_weight`` of gate rows followed by up rows, for ``gated_linear`` and ``experts``."""
    return (prepare_gate_up(weight) if _is_hopper(weight) else None) or weight


def native_grouped_weight(weight: Weight, *, fp8: bool = False) -> Weight | HopperWeight:
    """``weight`` [G, N, K] in its device's fastest format, for ``grouped_linear``.

    On NVIDIA SM90: for bf16 activations the same values in bf16, since decoding them in every GEMM
    takes longer than reading twice the bytes; with ``fp8`` the layout of ``native_weight``, if the
    shape allows it.
    """
    if not _is_hopper(weight):
        return weight
    if not fp8:
        return Weight(weight.dense)
    from .gluon_grouped_launch import fits_grouped

    prepared = prepare_weight(weight)
    return prepared if prepared is not None and fits_grouped(prepared) else weight


def _is_hopper(weight: Weight) -> bool:
    device = weight.values.device
    if device.type != "cuda":
        return False
    from deepinfer.kernels.launch import capability

    return capability(device)[0] == 9


def quantized_linear(x: Tensor | Activations, weight: Weight | HopperWeight) -> Tensor:
    """``quantized_linear_reference``; on a GPU the weight stays packed.

    x may be ``Activations`` that another operation has quantized for a weight of the same format.
    """
    if isinstance(x, Tensor) and not on_accelerator(x):
        plain = weight.plain[0] if isinstance(weight, HopperWeight) else weight
        return quantized_linear_reference(x, plain)
    if isinstance(weight, HopperWeight):
        from .gluon_kernel import quantized_linear_gluon

        return quantized_linear_gluon(x, weight)
    from .triton_kernel import quantized_linear_triton

    return quantized_linear_triton(x, weight)


def linear(x: Tensor, weight: Weight) -> Tensor:
    """``linear_reference``; on a GPU a packed weight stays packed, and activations are bf16.

    For activations that were already rounded to FP8, ``quantized_linear`` is faster: rounding twice
    changes nothing, and it uses FP8 tensor cores where the device has them.
    """
    if on_accelerator(x):
        from .triton_kernel import linear_triton

        return linear_triton(x, weight)
    return linear_reference(x, weight)


def grouped_linear(
    x: Tensor | Activations, weight: Weight | HopperWeight, *, fp8: bool = False
) -> Tensor:
    """``grouped_linear_reference``; for a ``HopperWeight`` x may be ``Activations`` that another
    operation has quantized."""
    if isinstance(weight, HopperWeight):
        if isinstance(x, Tensor) and not on_accelerator(x):
            return grouped_linear_reference(x, weight.plain, fp8=True)
        from .gluon_grouped_launch import grouped_linear_gluon

        out = grouped_linear_gluon(x, weight)
        assert isinstance(out, Tensor)
        return torch.unflatten(out, 1, (weight.members, -1))
    assert isinstance(x, Tensor), "Activations need a HopperWeight"
    if not on_accelerator(x):
        return grouped_linear_reference(x, weight, fp8=fp8)
    if _is_hopper(weight) and not fp8:
        from .gluon_plain_launch import fits_plain, plain_linear_gluon

        if fits_plain(x, weight):
            return plain_linear_gluon(x, weight)
    from .triton_kernel import grouped_linear_triton

    return grouped_linear_triton(x, weight, fp8=fp8)


def grouped_linear_quantized(
    x: Tensor | Activations,
    weight: Weight | HopperWeight,
    linear: Weight | HopperWeight,
    *,
    fp8: bool = False,
) -> Tensor | Activations:
    """``grouped_linear``, [T, G N], as input of ``quantized_linear`` with the weight ``linear``: on
    NVIDIA SM90 with many rows the epilogue quantizes it."""
    if not isinstance(x, Tensor) or on_accelerator(x):
        if isinstance(weight, HopperWeight):
            from .gluon_grouped_launch import grouped_linear_gluon

            return grouped_linear_gluon(x, weight, linear)
        assert isinstance(x, Tensor)
        if isinstance(linear, HopperWeight) and linear.order is KOrder.PLAIN and not fp8:
            from .gluon_plain_launch import fits_plain, plain_linear_quantized_gluon

            if fits_plain(x, weight):
                return plain_linear_quantized_gluon(x, weight, linear)
    return grouped_linear(x, weight, fp8=fp8).flatten(1)


def fp32_linear(
    x: Tensor, weight: Weight, *, addend: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """``fp32_linear_reference`` plus ``addend`` [T, N] f32, written to ``out`` if given.  Products
    of bf16 operands are exact in the fp32 accumulator."""
    if not on_accelerator(x):
        product = fp32_linear_reference(x, weight)
        return _summed(product, addend, out)
    if _is_hopper(weight):
        from .gluon_plain_launch import fits_plain, plain_fp32_linear_gluon

        if fits_plain(x, weight):
            return plain_fp32_linear_gluon(x, weight, addend, out)
    from .triton_kernel import fp32_linear_triton

    if addend is None:
        return fp32_linear_triton(x, weight, out)
    return _summed(fp32_linear_triton(x, weight), addend, out)


def _summed(product: Tensor, addend: Tensor | None, out: Tensor | None) -> Tensor:
    for name, x in (("addend", addend), ("out", out)):
        if x is not None and (x.dtype, x.shape) != (product.dtype, product.shape):
            raise TensorError(
                f"{name}: expected {product.dtype} {list(product.shape)}, found {x.dtype} "
                f"{list(x.shape)}"
            )
    if addend is not None:
        return torch.add(addend, product, out=out)
    return product if out is None else out.copy_(product)


def fp32_linear_parts(
    x: Tensor, weight: Weight, parts: int, preset: tuple[Tensor, int] | None = None
) -> Tensor:
    """Split-K ``fp32_linear``: partial sums [T, parts, N] f32, which the caller adds up in
    ascending order, or [T, 1, N] if the kernel has added them up already.

    For GPUs only: a weight of few rows occupies more SMs this way.  ``parts`` must not depend on T,
    or results would.  ``preset``: an i32 buffer [any] for a later kernel and the value to fill it
    with; on Hopper the GEMM kernel does that.
    """
    from .triton_kernel import fp32_linear_parts_triton

    if _is_hopper(weight):
        from .gluon_parts_launch import fits_parts, fp32_linear_parts_gluon

        if fits_parts(x, weight, parts):
            return fp32_linear_parts_gluon(x, weight, parts, preset=preset)
    if preset is not None:
        numbers, value = preset
        numbers.fill_(value)
    return fp32_linear_parts_triton(x, weight, parts)
