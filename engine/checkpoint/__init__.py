"""Checkpoints in the official format: reading, writing, validation."""
