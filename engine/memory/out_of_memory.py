"""Out-of-memory errors: recognizing them, and freeing memory before the next attempt."""

from __future__ import annotations

import gc

import torch

# torch has no exception class for these.
_WORDS = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "NPU out of memory")


def is_out_of_memory(error: Exception) -> bool:
    """Whether ``error`` is about memory, so that a smaller step may succeed."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _WORDS)


def free_unused(device: str) -> None:
    """Release unused memory.  After a failed step, call it outside of ``except``: the exception
    keeps the frames of the step, and with them its tensors."""
    gc.collect()
    if device != "cpu":
        torch.get_device_module(device).empty_cache()
