"""Sparse attention on the device of its tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from torch import Tensor

from deepinfer.kernels.placement import on_accelerator
from deepinfer.kernels.rope import apply_rope

from .reference import sparse_attention_reference

if TYPE_CHECKING:
    from deepinfer.kernels.gemm.activations import Activations


class _Options(TypedDict):
    lse: Tensor | None
    q_norm_eps: float | None


def sparse_attention(
    q: Tensor,
    window_rows: Tensor,
    window_index: Tensor,
    main_rows: Tensor | None,
    main_index: Tensor | None,
    sink: Tensor,
    scale: float,
    *,
    rope: tuple[Tensor, Tensor] | None = None,
    piece_keys: int | None = None,
    quantized: bool = False,
    lse: Tensor | None = None,
    q_norm_eps: float | None = None,
) -> Tensor | Activations:
    """``sparse_attention_reference`` of q; with ``rope`` (two [T, R] f32 of ``rope_table``) of the
    rotated q, its result turned back.

    ``lse`` is written, and wants scores of rotated q, as they count.
    ``piece_keys`` is for GPUs and few queries: keys are worked on in pieces of that many at once.
    Returns [T, H, D] bf16; if ``quantized``, which is for products of NVIDIA SM90 alone, FP8
    activations of [T, H D].  Raises: TensorError for operands that the device's form cannot take.
    """
    rows = (window_rows, window_index, main_rows, main_index, sink, scale)
    more: _Options = {"lse": lse, "q_norm_eps": q_norm_eps}
    if on_accelerator(q):
        from deepinfer.kernels.launch import is_hopper

        # No Gluon elsewhere: other compilers' Triton has no such module.
        if is_hopper(q.device):
            from .gluon_launch import fits_gluon, sparse_attention_gluon

            if fits_gluon(q, window_rows, main_rows, rope):
                return sparse_attention_gluon(
                    q, *rows, rope=rope, piece_keys=piece_keys, quantized=quantized, **more
                )
        from .triton_kernel import sparse_attention_triton

        out = sparse_attention_triton(q, *rows, rope=rope, piece_keys=piece_keys, **more)
        if not quantized:
            return out
        from deepinfer.kernels.gemm.activations import quantize_activations
        from deepinfer.kernels.gemm.k_order import KOrder
        from deepinfer.kernels.gemm.matrix_path import MatrixPath

        return quantize_activations(out.flatten(1), MatrixPath.FP8, KOrder.PLAIN)
    if rope is None:
        return sparse_attention_reference(q, *rows, **more)
    out = sparse_attention_reference(apply_rope(q, *rope), *rows, **more)
    return apply_rope(out, *rope, inverse=True)
