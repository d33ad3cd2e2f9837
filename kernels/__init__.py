"""Tensor operations: reference, Triton, dispatch.  They know nothing of requests, text or files."""
