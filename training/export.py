"""Exports master weights to a checkpoint in the official format, and loads one to continue training."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path

import torch
from torch import Tensor
from training.parameters import _EXPERT, Weights
from training.straight_through import dequantize_table

from deepinfer.engine.checkpoint.checkpoint_writer import write_checkpoint
from deepinfer.engine.checkpoint.weight_formats import (
    encode_fp4_rows,
    encode_fp8_rows,
    encode_fp8_tiles,
)
from deepinfer.engine.checkpoint.weights import Checkpoint, open_checkpoint
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.tensors import TensorSpec, expected_tensors
from deepinfer.kernels.quant.weights import dequantize_weight

MAX_SHARD_BYTES = 11_700_000


def checkpoint_tensors(masters: Weights, config: ModelConfig) -> dict[str, Tensor]:
    """All tensors of the checkpoint, on the CPU, in their stored formats."""
    tensors: dict[str, Tensor] = {}
    for name, spec in expected_tensors(config).items():
        if spec.is_scale:
            continue  # created with its weight
        master = _master_of(masters, name)
        if spec.dtype.itemsize > 1:
            tensors[name] = master.to(spec.dtype).contiguous()
            continue
        values, scale = _encode(name, spec, master)
        tensors[name] = values.contiguous()
        tensors[name.removesuffix("weight") + "scale"] = scale.contiguous()
    return tensors


def _master_of(masters: Weights, name: str) -> Tensor:
    expert = _EXPERT.search(name)
    stacked = masters[_EXPERT.sub(".experts.", name).replace("bias_vl", "bias")]
    master = stacked[int(expert[1])] if expert else stacked
    return master.detach().float().cpu()


def _encode(name: str, spec: TensorSpec, master: Tensor) -> tuple[Tensor, Tensor]:
    if spec.dtype == torch.int8:
        return encode_fp4_rows(master)
    return encode_fp8_rows(master) if ".engram.embed." in name else encode_fp8_tiles(master)


def export(masters: Weights, config: ModelConfig, folder: Path, tokenizer: Path) -> None:
    """Write the checkpoint and its tokenizer to ``folder``."""
    tensors = checkpoint_tensors(masters, config)
    write_checkpoint(folder, config, tensors, max_shard_bytes=MAX_SHARD_BYTES)
    if tokenizer.resolve() != (folder / "tokenizer.json").resolve():
        shutil.copyfile(tokenizer, folder / "tokenizer.json")


def load_checkpoint(folder: Path, masters: Weights) -> None:
    """Copy the dequantized weights of an exported checkpoint into ``masters``.

    These values are fixed points of the rounding, so training starts from exactly the exported model.
    """
    checkpoint = open_checkpoint(folder)
    stacks: dict[str, list[Tensor]] = defaultdict(list)
    for name, spec in expected_tensors(checkpoint.config).items():
        if not spec.is_scale and not name.endswith("bias_vl"):
            stacks[_EXPERT.sub(".experts.", name)].append(_values(checkpoint, name, spec))
    for name, values in stacks.items():
        with torch.no_grad():
            masters[name].copy_(torch.stack(values) if len(values) > 1 else values[0])


def _values(checkpoint: Checkpoint, name: str, spec: TensorSpec) -> Tensor:
    stored = checkpoint.tensor(name)
    if spec.dtype.itemsize > 1:
        return stored.float()
    scale = checkpoint.tensor(name.removesuffix("weight") + "scale")
    if ".engram.embed." in name:
        return dequantize_table(stored, scale).float()
    return dequantize_weight(stored, scale).float()
