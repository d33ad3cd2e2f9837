"""Rows of a file on their way through the engine."""
