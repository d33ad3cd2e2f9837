"""``deepinfer build``: kernels compiled ahead of time."""
