"""Tensor operations: reference, Triton, dispatch.  Knows nothing of requests, text or files."""
