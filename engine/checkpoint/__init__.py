"""Weights in the official format: read, written, checked."""
