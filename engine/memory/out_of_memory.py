"""Steps that do not fit into memory: how to know one, and what to give back before the next."""

from __future__ import annotations

import gc

import torch

# torch has no class of its own for these.
_WORDS = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "NPU out of memory")


def is_out_of_memory(error: Exception) -> bool:
    """Whether a smaller step may work where this one failed."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _WORDS)


def free_unused(device: str) -> None:
    """Give back memory that nothing needs any more.  After a failed step, call it outside of
    ``except``: the error holds the frames, and with them the tensors, of the step."""
    gc.collect()
    if device != "cpu":
        torch.get_device_module(device).empty_cache()
