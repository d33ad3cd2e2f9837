"""Rows through the engine: preparation, constraints, seeds, and assembly of outputs."""
