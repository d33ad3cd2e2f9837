"""Structured output outside the engine: what an answer must match, masks for it, its validation."""
