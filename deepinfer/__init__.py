"""The public API.  Everything that is not exported here is internal.

Imports are lazy, so that ``deepinfer --help`` and ``deepinfer.recipes`` never import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepinfer.engine.types import SamplingParams

    from .errors import DeepInferError
    from .offline import OfflineEngine
    from .outputs import RequestOutput

__version__ = "0.1.0"

__all__ = ["DeepInferError", "OfflineEngine", "RequestOutput", "SamplingParams", "__version__"]

_HOMES = {
    "DeepInferError": "deepinfer.errors",
    "OfflineEngine": "deepinfer.offline",
    "RequestOutput": "deepinfer.outputs",
    "SamplingParams": "deepinfer.engine.types",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'deepinfer' has no attribute {name!r}")
