"""Sparse attention: the reference on a CPU, Triton or Gluon kernels on a GPU."""

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
    """``sparse_attention_reference``; ``rope`` (cos and sin, [T, R] f32 of ``rope_table``) rotates
    q before and un-rotates the output after.

    ``lse`` [T, H] f32, if given, receives the log-sum-exp of the scores of the rotated q.
    ``piece_keys``, for GPUs and few queries: split the keys into pieces of so many, which are
    processed concurrently and then combined (flash decoding).
    Returns [T, H, D] bf16; with ``quantized``, for NVIDIA SM90 only, FP8 activations [T, H D].
    Raises: TensorError for operands that the device's kernel does not support.
    """
    rows = (window_rows, window_index, main_rows, main_index, sink, scale)
    more: _Options = {"lse": lse, "q_norm_eps": q_norm_eps}
    if on_accelerator(q):
        from deepinfer.kernels.launch import is_hopper

        # Imported only there: Triton for other vendors' devices may lack Gluon.
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
