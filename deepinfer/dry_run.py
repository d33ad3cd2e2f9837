"""``DryRun``: everything about a run that can be determined without loading weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepinfer.engine.config import EngineConfig
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.types import SamplingParams
from deepinfer.errors import ConfigError, RowError
from deepinfer.recipes.constraints.compiler import ConstraintCompiler
from deepinfer.recipes.constraints.spec import ConstraintSpec
from deepinfer.recipes.constraints.vocabulary import ConstraintVocabulary
from deepinfer.recipes.types import Thinking

from .arguments import EngineArguments
from .compiled_kernels import find_kernels
from .engine.checkpoint.engram_tables import MOST_DEVICE_BYTES
from .engine.memory.capacity import size_cache
from .engine.memory.device_memory import DeviceMemory
from .engine.memory.expert_form import more_bytes_as_fp8
from .engine.memory.memory_plan import memory_plan
from .engine.memory.weight_bytes import weight_bytes
from .loading import model_name, open_model
from .machine import resolve_device
from .rows.assemble import RowInFlight
from .rows.prepare import RowPreparer
from .rows.run_sampling import check_run_sampling


class DryRun:
    """The checks and sizes of ``OfflineEngine(model_path, **arguments)``, without creating it.

    config: that of the engine, with all sizes resolved.  model_config: that of the model.  memory:
    weights and caches, per rank with expert parallelism.  notes: settings that could not be
    applied, and why.  Raises: CheckpointError about the folder, ConfigError about an argument.
    """

    def __init__(self, model_path: str | Path | None, arguments: EngineArguments) -> None:
        device = resolve_device(arguments.device)
        opened = open_model(model_path, arguments.engine_settings(), device=device)
        self.model_config = opened.checkpoint.config
        self.model_folder = opened.checkpoint.folder
        sizes = arguments.parallel_sizes()
        sizes.check_model(self.model_config)
        num_ranks = sizes.num_expert_ranks
        if arguments.kernels is not None and arguments.cluster is None:
            name = model_name(model_path, self.model_folder)
            find_kernels(Path(arguments.kernels), self.model_config, name, device)
        memory = DeviceMemory.of(device)
        if memory is not None:
            weights = _device_bytes(self.model_config, opened.engine_config, num_ranks)
            memory = memory.less(weights)
        self.config = size_cache(self.model_config, opened.engine_config, memory)
        self.memory = memory_plan(self.model_config, self.config, num_expert_ranks=num_ranks)
        self.notes: Mapping[str, str] = opened.notes
        self._tokenizer = opened.tokenizer
        assert self.config.max_model_len is not None
        self._preparer = RowPreparer(
            opened.tokenizer,
            max_model_len=self.config.max_model_len,
            vocab_size=self.model_config.vocab_size,
            seed=arguments.seed,
        )
        self._compiler: ConstraintCompiler | None = None
        self._compiled: dict[str, RowError | None] = {}

    def prepare(
        self,
        number: int,
        row: Mapping[str, Any],
        defaults: SamplingParams,
        *,
        raw: bool = False,
        thinking: Thinking | None = None,
        constraint: ConstraintSpec | None = None,
    ) -> RowInFlight:
        """The input of the engine for a row.  Raises: RowError, as the run would."""
        prepared = self._preparer.prepare(
            number, row, defaults, raw=raw, thinking=thinking, constraint=constraint
        )
        if prepared.encoded.constraint is not None:
            self._compile(prepared.encoded.constraint)
        return prepared

    def check(self, sampling: SamplingParams, constraint: ConstraintSpec | None) -> None:
        """Check the defaults for all rows.  Raises: ConfigError, as the run would."""
        assert self.config.max_model_len is not None
        check_run_sampling(
            sampling,
            vocab_size=self.model_config.vocab_size,
            max_model_len=self.config.max_model_len,
            is_constrained=constraint is not None,
        )
        if constraint is not None:
            try:
                self._compile(constraint)
            except RowError as error:
                raise ConfigError(f"{error.kind}: {error}") from error

    def _compile(self, spec: ConstraintSpec) -> None:
        """Compile a constraint, once for all rows that have it."""
        if spec.digest not in self._compiled:
            if self._compiler is None:
                vocabulary = ConstraintVocabulary(self._tokenizer, self.model_config.vocab_size)
                self._compiler = ConstraintCompiler(vocabulary)
            try:
                self._compiler.compile(spec)
                self._compiled[spec.digest] = None
            except RowError as error:
                self._compiled[spec.digest] = error
        failure = self._compiled[spec.digest]
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Stop the threads that compile constraints."""
        if self._compiler is not None:
            self._compiler.close()


def _device_bytes(model: ModelConfig, config: EngineConfig, num_expert_ranks: int) -> int:
    """Weight bytes on a rank's device; large Engram tables stay on the host."""
    weights = weight_bytes(model)
    experts = weights.experts
    if config.expert_weights == "fp8":
        experts += more_bytes_as_fp8(model)
    tables = weights.tables if weights.tables <= MOST_DEVICE_BYTES else 0
    return weights.shared + experts // num_expert_ranks + tables
