"""``Session``: a running engine with its row stream, in this process or on several ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from deepinfer.engine.config import EngineConfig
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.types import EngineStats, SamplingParams
from deepinfer.recipes.constraints.spec import ConstraintSpec
from deepinfer.recipes.embedded import embedded_model_path
from deepinfer.recipes.types import Thinking

from .arguments import EngineArguments
from .engine.checkpoint.weights import open_checkpoint
from .loading import load_model
from .machine import set_cpu_threads
from .outputs import RequestOutput
from .ranks.messages import RankOrder
from .rows.row_stream import ROWS_AHEAD, RowStream


class RunningEngine(Protocol):
    """The properties of an engine that are needed besides its rows."""

    @property
    def config(self) -> EngineConfig: ...

    @property
    def max_model_len(self) -> int: ...

    def stats(self) -> EngineStats: ...

    def close(self) -> None: ...


@runtime_checkable
class HasProcesses(Protocol):
    """An engine whose ranks are processes of their own."""

    @property
    def process_ids(self) -> list[int]: ...


class Rows(Protocol):
    """``RowStream``, or ``RankedEngine``."""

    def run(
        self,
        rows: Iterable[tuple[int, Any, SamplingParams]],
        *,
        raw: bool = False,
        thinking: Thinking | None = None,
        constraint: ConstraintSpec | None = None,
    ) -> Iterator[RequestOutput]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """``threads_before``: torch's threads before they were changed, None if they were not.
    ``num_expert_ranks``: ranks that split the routed experts."""

    folder: Path
    model_config: ModelConfig
    engine: RunningEngine
    rows: Rows
    notes: Mapping[str, str]
    threads_before: int | None
    num_expert_ranks: int = 1

    def close(self) -> None:
        """Abort running requests, and free the model and its caches."""
        self.rows.close()
        self.engine.close()
        if self.threads_before is not None:
            set_cpu_threads(self.threads_before, self.model_config.hidden_size)


def open_session(model_path: str | Path | None, arguments: EngineArguments) -> Session:
    """Load a model; ``None`` is the embedded model."""
    if arguments.cluster is not None or arguments.parallel_sizes().world_size > 1:
        return _open_ranks(model_path, arguments)
    loaded = load_model(model_path, arguments.engine_settings(), **arguments.loading())
    rows = RowStream(
        loaded.engine,
        loaded.tokenizer,
        max_model_len=loaded.engine.max_model_len,
        vocab_size=loaded.config.vocab_size,
        max_in_flight=ROWS_AHEAD * loaded.engine.config.max_num_seqs,
        seed=arguments.seed,
    )
    return Session(
        folder=loaded.folder,
        model_config=loaded.config,
        engine=loaded.engine,
        rows=rows,
        notes=loaded.notes,
        threads_before=loaded.threads_before,
    )


def _open_ranks(model_path: str | Path | None, arguments: EngineArguments) -> Session:
    """The same with rank processes, or with replicas on a cluster."""
    sizes = arguments.parallel_sizes()
    checkpoint = open_checkpoint(embedded_model_path() if model_path is None else model_path)
    sizes.check_model(checkpoint.config)
    order = RankOrder(
        rank=0,
        sizes=sizes,
        host="127.0.0.1",
        port=0,
        model_path=model_path,
        settings=arguments.engine_settings(),
        seed=arguments.seed,
        **arguments.loading(),
    )
    if arguments.cluster is not None:
        from .ranks.cluster import start_replicas

        ranks = start_replicas(arguments.cluster, arguments.num_replicas, order)
    else:
        from .ranks.local_ranks import start_ranks

        ranks = start_ranks(order)
    return Session(
        folder=ranks.folder,
        model_config=ranks.model_config,
        engine=ranks,
        rows=ranks,
        notes=ranks.notes,
        threads_before=None,
        num_expert_ranks=sizes.num_expert_ranks,
    )
