"""Random tensors in the checkpoint's formats, scaled so that activations stay well-behaved.

Every tensor depends only on the seed and its name, so a rank that makes a part of them gets the
same tensors as the whole checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.tensors import TensorSpec, expected_tensors, is_engram_table

from .weight_formats import encode_fp4_rows, encode_fp8_rows, encode_fp8_tiles


def random_tensors(
    config: ModelConfig,
    seed: int,
    *,
    wanted: Callable[[str], bool] = lambda name: True,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """The ``wanted`` tensors of a random checkpoint, created on ``device`` one linear at a time.

    ``wanted`` must treat ``X.weight`` and ``X.scale`` alike.  Values differ between device types.
    """
    specs = {name: spec for name, spec in expected_tensors(config).items() if wanted(name)}
    tensors: dict[str, Tensor] = {}
    for name, spec in specs.items():
        if spec.is_scale:
            continue  # created with its weight
        if spec.dtype.itemsize > 1:
            tensors[name] = random_tensor(config, name, spec, seed, device)
        else:
            scale_name = name.removesuffix("weight") + "scale"
            tensors[name], tensors[scale_name] = random_linear(name, spec, seed, device)
    return {name: tensors[name] for name in specs}


def random_tensor(
    config: ModelConfig, name: str, spec: TensorSpec, seed: int, device: torch.device | str
) -> Tensor:
    """One unquantized (bf16 or fp32) tensor of ``random_tensors``."""
    return _plain(config, name, spec, _generator(seed, name, device))


def random_linear(
    name: str, spec: TensorSpec, seed: int, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """Codes and scales of one quantized weight of ``random_tensors``, normally distributed."""
    return _quantised(name, spec, _generator(seed, name, device))


def _generator(seed: int, name: str, device: torch.device | str) -> torch.Generator:
    return torch.Generator(device).manual_seed(_tensor_seed(seed, name))


def _tensor_seed(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def _normal(shape: tuple[int, ...], generator: torch.Generator, std: float) -> Tensor:
    return torch.randn(shape, generator=generator, device=generator.device) * std


def _quantised(name: str, spec: TensorSpec, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    rows, columns = spec.shape
    if is_engram_table(name):
        return encode_fp8_rows(_normal((rows, columns), generator, 1.0))
    if spec.dtype == torch.int8:
        inputs = 2 * columns
        return encode_fp4_rows(_normal((rows, inputs), generator, inputs**-0.5))
    return encode_fp8_tiles(_normal((rows, columns), generator, columns**-0.5))


def _plain(config: ModelConfig, name: str, spec: TensorSpec, generator: torch.Generator) -> Tensor:
    noise = _normal(spec.shape, generator, 1.0)
    if name.endswith(("norm.weight", "q_weight", "k_weight")):
        value = 1 + 0.1 * noise
    elif name.endswith(("_base", "_scale")):
        value = _mixing(config, name, noise)
    elif name.endswith("attn_sink"):
        value = noise
    elif ".gate.bias" in name:
        value = 0.1 * noise  # a tenth of the scores' spread, so it changes some choices
    elif "embed." in name:
        value = noise
    else:
        value = noise * spec.shape[-1] ** -0.5
    return value.to(spec.dtype)


def _mixing(config: ModelConfig, name: str, noise: Tensor) -> Tensor:
    """Stream mixing close to the identity, so that the streams stay apart through all layers."""
    if name.endswith("_scale"):
        return 0.5 + 0.1 * noise
    streams = config.hc_mult
    keep = 2 * torch.eye(streams, device=noise.device).flatten()
    return 0.5 * noise + torch.cat([torch.zeros(2 * streams, device=noise.device), keep])
