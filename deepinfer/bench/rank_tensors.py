"""Random weights of one rank, in the checkpoint's formats, and Engram tables of its size.

Weights are normally distributed: kernels do the same work as on trained weights, at about the same
power.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from deepinfer.engine.checkpoint.random_weights import random_linear, random_tensor
from deepinfer.engine.memory.weight_bytes import weight_bytes
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.engram_buckets import bucket_primes
from deepinfer.engine.model.tensors import TensorSpec, expected_tensors, is_engram_table

# Size of a table on the host: too large to be cached, but quick to pin.
HOST_TABLE_BYTES = 4 * 2**30


def rank_config(model: ModelConfig, ranks: int, most_table_bytes: int | None = None) -> ModelConfig:
    """The model with Engram tables of the size of one rank's part, and of at most about
    ``most_table_bytes``: hashes are taken modulo smaller primes."""
    if not model.engram_layer_ids:
        return model
    vocab_size = model.engram_vocab_size // ranks
    if most_table_bytes is not None:
        most = model.engram_vocab_size * most_table_bytes // weight_bytes(model).tables
        vocab_size = min(vocab_size, most)
    vocab_size = max(1, vocab_size)
    primes = bucket_primes(
        num_layers=len(model.engram_layer_ids),
        num_orders=model.engram_max_ngram_size - 1,
        num_heads=model.engram_n_heads,
        vocab_size=vocab_size,
    )
    rows = tuple(sum(map(sum, layer)) for layer in primes)
    return dataclasses.replace(model, engram_vocab_size=vocab_size, engram_num_embeddings=rows)


class RandomTensors(Mapping[str, Tensor]):
    """A checkpoint whose tensors are made on ``device`` at first use; with ``tables_on_host``
    Engram tables are moved to pinned host memory."""

    def __init__(
        self,
        config: ModelConfig,
        seed: int,
        device: torch.device | str,
        *,
        tables_on_host: bool = False,
    ) -> None:
        self._config = config
        self._seed = seed
        self._device = torch.device(device)
        self._tables_on_host = tables_on_host
        self._specs = expected_tensors(config)
        # Codes and scale are made together; the scale is asked for next.
        self._newest: tuple[str, tuple[Tensor, ...]] = "", ()

    def __getitem__(self, name: str) -> Tensor:
        spec = self._specs[name]
        if is_engram_table(name):
            table = self._table(spec)
            return _pinned(table) if self._tables_on_host else table
        if not spec.is_scale and spec.dtype.itemsize > 1:
            return random_tensor(self._config, name, spec, self._seed, self._device)
        if self._newest[0] != name.rpartition(".")[0]:
            self._newest = name.rpartition(".")[0], self._linear(name)
        codes, scale = self._newest[1]
        return scale if spec.is_scale else codes

    def __contains__(self, name: object) -> bool:
        return name in self._specs

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def _linear(self, name: str) -> tuple[Tensor, Tensor]:
        weight = f"{name.rpartition('.')[0]}.weight"
        return random_linear(weight, self._specs[weight], self._seed, self._device)

    def _table(self, spec: TensorSpec) -> Tensor:
        """Uniform codes: no GEMM reads them, and making normal numbers takes four times the
        memory."""
        if spec.is_scale:
            return torch.full(spec.shape, 127, dtype=torch.uint8, device=self._device).view(
                spec.dtype
            )
        codes = torch.empty(spec.shape, dtype=torch.uint8, device=self._device)
        codes.random_(0, 256)
        codes &= 0xBF  # magnitudes below 2, no NaN
        return codes.view(spec.dtype)


def _pinned(table: Tensor) -> Tensor:
    return table.view(torch.uint8).cpu().pin_memory().view(table.dtype)
