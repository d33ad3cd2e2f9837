"""Linear layers on the device of their operands."""

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
    """``weight`` as its device multiplies it fastest, for ``quantized_linear`` and ``experts``.

    On NVIDIA SM90 a copy of the same size in another layout, unless its sizes do not fit; else the
    weight itself.  The form decides the order of summation, so make it once and use it always.
    """
    return (prepare_weight(weight) if _is_hopper(weight) else None) or weight


def native_gate_up(weight: Weight) -> Weight | HopperWeight:
    """``native_weight`` of gates, then ups, for ``gated_linear`` and ``experts``."""
    return (prepare_gate_up(weight) if _is_hopper(weight) else None) or weight


def native_grouped_weight(weight: Weight, *, fp8: bool = False) -> Weight | HopperWeight:
    """``weight`` [G, N, K] as its device multiplies it fastest, for ``grouped_linear``.

    On NVIDIA SM90 the same numbers in bf16 for activations that are: decoding them for each product
    takes longer than reading twice the bytes.  For FP8 ones in another layout, if its sizes fit.
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

    x may be ``Activations`` that another operation left, quantised for this weight or for one of
    the same kind.
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
    """``linear_reference``; on a GPU a packed weight stays packed and meets bf16 activations.

    Activations that are quantised already are better given to ``quantized_linear``: rounding twice
    changes nothing, and its products are FP8 where the device has them.
    """
    if on_accelerator(x):
        from .triton_kernel import linear_triton

        return linear_triton(x, weight)
    return linear_reference(x, weight)


def grouped_linear(
    x: Tensor | Activations, weight: Weight | HopperWeight, *, fp8: bool = False
) -> Tensor:
    """``grouped_linear_reference``; x may be ``Activations`` that another operation left for a
    ``HopperWeight``."""
    if isinstance(weight, HopperWeight):
        if isinstance(x, Tensor) and not on_accelerator(x):
            return grouped_linear_reference(x, weight.plain, fp8=True)
        from .gluon_grouped_launch import grouped_linear_gluon

        out = grouped_linear_gluon(x, weight)
        assert isinstance(out, Tensor)
        return torch.unflatten(out, 1, (weight.members, -1))
    assert isinstance(x, Tensor), "activations are for weights of SM90"
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
    """``grouped_linear``, [T, G N], as ``quantized_linear`` takes it for ``linear``: for many rows
    on NVIDIA SM90 quantised in passing."""
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
    """``fp32_linear_reference``, plus ``addend`` [T, N] f32, in ``out`` if that is given; products
    of bf16 operands are exact in the GPU's accumulator."""
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
    """``fp32_linear`` by equal parts of K, for whoever adds them up in ascending order: [T, parts,
    N] f32, or [T, 1, N] where that is done.

    On a GPU only, where a weight of few rows keeps more of it busy this way.  ``parts`` must not
    depend on T, or results would.  ``preset``: numbers [any] i32 and what they
    are set to, on Hopper in passing.
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
