"""Location of the embedded model, which ships with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def embedded_model_path() -> Path:
    """The folder with the embedded model's config.json, tokenizer.json and weights."""
    return Path(str(files("deepinfer.recipes") / "tiny"))
