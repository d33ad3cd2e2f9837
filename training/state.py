"""Training state on disk: complete, to resume on the same machine; or compact, to move to another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from training.parameters import Weights

MAX_FILE_BYTES = 15_000_000
COMPLETE = "state.pt"


def save_compact(folder: Path, masters: Weights, progress: dict[str, float]) -> None:
    """Save masters as bf16 in files of at most ``MAX_FILE_BYTES``, with the progress as metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    files: list[dict[str, Tensor]] = [{}]
    room = MAX_FILE_BYTES
    for name, master in masters.items():
        kept = master.detach().cpu()
        kept = kept if kept.dim() < 2 else kept.to(torch.bfloat16)
        if kept.nbytes > room:
            files.append({})
            room = MAX_FILE_BYTES
        files[-1][name] = kept.contiguous()
        room -= kept.nbytes
    metadata = {key: repr(value) for key, value in progress.items()}
    for i, tensors in enumerate(files):
        save_file(tensors, folder / f"masters-{i}.safetensors", metadata)


def load_compact(folder: Path, masters: Weights) -> dict[str, float]:
    """Load saved masters into ``masters``; returns the progress."""
    from safetensors import safe_open

    progress: dict[str, float] = {}
    for path in sorted(folder.glob("masters-*.safetensors")):
        with safe_open(path, "pt") as file:
            progress = {key: float(value) for key, value in file.metadata().items()}
        for name, tensor in load_file(path).items():
            with torch.no_grad():
                masters[name].copy_(tensor)
    return progress


def save_complete(folder: Path, masters: Weights, rest: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{COMPLETE}.tmp"
    torch.save({"masters": {n: m.detach() for n, m in masters.items()}, **rest}, temporary)
    temporary.replace(folder / COMPLETE)


def load_complete(folder: Path, masters: Weights) -> dict[str, Any]:
    """Load saved masters into ``masters``; returns the rest."""
    saved: dict[str, Any] = torch.load(folder / COMPLETE, map_location="cpu", weights_only=True)
    for name, tensor in saved.pop("masters").items():
        with torch.no_grad():
            masters[name].copy_(tensor)
    return saved
