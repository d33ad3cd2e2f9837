"""Kernels for Ascend 950: the vendor's Triton and compiler, in an environment of their own."""
