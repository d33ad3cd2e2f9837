"""Benchmarks of each kernel family at the model's shapes, with ceilings of the same GPU."""
