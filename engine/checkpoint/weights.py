"""A checkpoint in the official format, checked in full before any data is read.

Opening reads config.json, the index and the shard headers; tensors stay on disk until they are
used, so a rank maps only what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.config_json import read_json_object
from deepinfer.engine.model.tensors import VISION_PREFIXES, check_tensors, expected_tensors
from deepinfer.errors import CheckpointError

from .hub_cache import resolve_model_folder
from .safetensors_file import SafetensorsFile, TensorEntry, open_safetensors

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint; ``files`` maps each text tensor to its shard."""

    folder: Path
    config: ModelConfig
    files: Mapping[str, SafetensorsFile]

    def tensor(self, name: str) -> Tensor:
        """One tensor on the CPU, memory-mapped; treat it as read-only."""
        return self.files[name].tensor(name)

    def load(self, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, Tensor]:
        """The tensors whose name is ``wanted``, memory-mapped: nothing is copied."""
        return {name: self.tensor(name) for name in self.files if wanted(name)}


def open_checkpoint(model: Path | str) -> Checkpoint:
    """Open a folder, or a Hub id in the local cache; validates everything but the values.

    Raises: CheckpointError naming the tensor or field, the file and the expectation.
    """
    folder = resolve_model_folder(model)
    config_path = folder / "config.json"
    raw = read_json_object(config_path)
    files = _open_files(folder)
    config = ModelConfig.from_dict(raw, where=str(config_path), tensor_names=files.keys())
    entries: dict[str, TensorEntry] = {name: file.entries[name] for name, file in files.items()}
    check_tensors(
        expected_tensors(config),
        entries,
        where=lambda name: str(files[name].path if name in files else folder),
    )
    text = {name: file for name, file in files.items() if not name.startswith(VISION_PREFIXES)}
    return Checkpoint(folder, config, text)


def _open_files(folder: Path) -> dict[str, SafetensorsFile]:
    index_path = folder / INDEX_NAME
    if not index_path.exists():
        if not (folder / SINGLE_NAME).exists():
            raise CheckpointError(
                f"{folder} holds no weights: expected {INDEX_NAME} with its shards, "
                f"or {SINGLE_NAME}"
            )
        file = open_safetensors(folder / SINGLE_NAME)
        return dict.fromkeys(file.entries, file)
    weight_map = _read_weight_map(index_path)
    shards = {name: _open_shard(index_path, name) for name in sorted(set(weight_map.values()))}
    _check_index(index_path, weight_map, shards)
    return {name: shards[shard] for name, shard in weight_map.items()}


def _read_weight_map(index_path: Path) -> dict[str, str]:
    weight_map = read_json_object(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index_path}: weight_map is missing or empty; expected an object")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not shard.endswith(".safetensors") or "/" in shard:
            raise CheckpointError(
                f"{index_path}: weight_map[{name!r}]={shard!r}; expected the name of a "
                f".safetensors file in the same folder"
            )
    return weight_map


def _open_shard(index_path: Path, shard: str) -> SafetensorsFile:
    path = index_path.parent / shard
    if "\0" in shard or not path.exists():
        raise CheckpointError(f"{path} does not exist, but {index_path} lists it; download it")
    return open_safetensors(path)


def _check_index(
    index_path: Path, weight_map: Mapping[str, str], shards: Mapping[str, SafetensorsFile]
) -> None:
    for name, shard in weight_map.items():
        if name not in shards[shard].entries:
            raise CheckpointError(
                f"tensor {name!r} is not in {shards[shard].path}, where {index_path} says it is"
            )
    for shard, file in shards.items():
        for name in file.entries:
            listed = weight_map.get(name)
            if listed != shard:
                fault = (
                    "not listed" if listed is None else f"listed in {listed}, so it exists twice"
                )
                raise CheckpointError(f"tensor {name!r} of {file.path} is {fault} in {index_path}")
