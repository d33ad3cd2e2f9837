"""Benchmarks: measures this machine with the model, and computes the limits of a deployment."""
