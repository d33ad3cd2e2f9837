"""Checks of the operands of the Triton and Gluon GEMMs."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.launch import cdiv, describe

from .activations import GROUP, Activations
from .k_order import KOrder
from .matrix_path import MatrixPath
from .weights import Weight


def check_operands(
    x: Tensor,
    weight: Weight,
    member: Tensor,
    *,
    groups: tuple[int, ...] = (),
    float32: bool = False,
) -> None:
    """Check that x is [T, *groups, K] for a ``member`` [N, K] of the weight, on the same device.

    Raises: TensorError that names the tensor, what was expected and what was found.
    """
    if member.dim() != 2:
        raise TensorError(f"weight: expected [N, K] of each, found {describe(weight.values)}")
    k = weight.shape[-1]
    allowed = (torch.bfloat16, torch.float32) if float32 else (torch.bfloat16,)
    shape = (*groups, k)
    if x.dtype not in allowed or x.shape[1:] != shape or x.device != weight.values.device:
        names = " or ".join(str(dtype) for dtype in allowed)
        raise TensorError(
            f"x: expected {names} [any, {', '.join(map(str, shape))}] on {weight.values.device} "
            f"for a weight of {list(weight.values.shape)} {weight.values.dtype}, found "
            f"{describe(x)}"
        )
    check_weight("weight", weight)


def check_groups(x: Tensor, weight: Weight) -> None:
    """The same for x [T, G, K] and a weight [G, N, K].  Raises: TensorError."""
    check_members("weight", weight)
    check_operands(x, weight, weight.values[0], groups=tuple(weight.values.shape[:1]))


def check_members(name: str, weight: Weight) -> None:
    """Raises: TensorError unless ``weight`` is a stack of at least one."""
    if weight.values.dim() != 3 or not len(weight.values):
        raise TensorError(
            f"{name}: expected one [N, K] or more, [G, N, K], found {describe(weight.values)}"
        )


def check_parts(weight: Weight, parts: int) -> None:
    """Raises: TensorError if K of a weight [N, K] is not divisible by ``parts``."""
    n, k = weight.shape
    if not n or parts < 1 or k % parts:
        raise TensorError(
            f"weight: expected rows and a K that {parts} parts divide, found "
            f"{describe(weight.values)}"
        )


def check_activations(acts: Activations, weight: Weight) -> None:
    """Raises: TensorError if they were not quantized for such a weight."""
    k = cdiv(weight.shape[-1], GROUP) * GROUP
    order = weight.order if acts.path is MatrixPath.FP8 else KOrder.PLAIN
    if acts.values.shape[1] != k or acts.order is not order:
        raise TensorError(
            f"x: expected activations [any, {k}] in order {order.name}, found "
            f"{acts.path.name} [any, {acts.values.shape[1]}] in {acts.order.name}"
        )


def check_weight(name: str, weight: Weight) -> None:
    """Raises: TensorError with the reason if kernels do not support the weight."""
    if weight.fault is not None:
        raise TensorError(f"{name}: {weight.fault}")
