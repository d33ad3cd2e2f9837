"""Writes a checkpoint in the official format: config.json, safetensors shards, index."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.tensors import check_tensors, expected_tensors

from .safetensors_file import DTYPES
from .weights import INDEX_NAME, SINGLE_NAME

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def write_checkpoint(
    folder: Path | str,
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    *,
    max_shard_bytes: int = 5_000_000_000,
) -> None:
    """Write ``tensors`` (checked against ``config``) into ``folder``, made if needed.

    ``max_shard_bytes`` limits the tensor data of a shard; a larger tensor gets a shard of its own.
    A single shard is ``model.safetensors`` without an index, as usual on the Hub.  The same input
    gives the same bytes.  Raises: CheckpointError when a tensor is missing, unexpected or wrong.
    """
    folder = Path(folder)
    check_tensors(expected_tensors(config), tensors, where=lambda name: f"writing {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INDEX_NAME).unlink(missing_ok=True)  # an old index would refer to old shards
    shards = _split(tensors, max_shard_bytes)
    names = [SINGLE_NAME]
    if len(shards) > 1:
        names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for file_name, shard in zip(names, shards, strict=True):
        write_safetensors(folder / file_name, {name: tensors[name] for name in shard})
    if len(shards) > 1:
        weight_map = {
            name: file for file, shard in zip(names, shards, strict=True) for name in shard
        }
        total = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        _write_json(folder / INDEX_NAME, index)
    _write_json(folder / "config.json", config.to_dict())


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write one file.  Wide dtypes come first, so that every tensor is aligned to its dtype."""
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name in order:
        tensor = tensors[name]
        header[name] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [position, position + tensor.nbytes],
        }
        position += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in order:
            flat = tensors[name].detach().cpu().contiguous().flatten()
            file.write(flat.view(torch.uint8).numpy().data)


def _split(tensors: Mapping[str, Tensor], max_shard_bytes: int) -> list[list[str]]:
    """Tensor names of each shard, in order, so that no shard exceeds the limit."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > max_shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += tensor.nbytes
    return shards


def _write_json(path: Path, value: Mapping[str, object] | Sequence[object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
