"""Structured output outside the engine: constraints, their compilation, masks, validation."""
