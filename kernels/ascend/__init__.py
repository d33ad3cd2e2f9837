"""Kernels for Ascend 950: the vendor's front end and compiler, in an environment of their own."""
