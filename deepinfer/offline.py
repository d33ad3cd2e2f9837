"""``OfflineEngine``: prompts in, answers out, in Python.  The command line uses the same class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from deepinfer.engine.types import EngineStats, SamplingParams
from deepinfer.recipes.types import Thinking

from .outputs import RequestOutput

Prompt = str | Sequence[int] | Mapping[str, Any]


class OfflineEngine:
    """A loaded model on the accelerators of this machine.

    ``model_path`` is a checkpoint folder or a Hub id that is already in the local Hugging Face
    cache; ``None`` is the small model inside the package.  Sizes that this machine cannot honour
    raise ConfigError with the reason.  Use it as a context manager, or call ``close``.
    """

    def __init__(
        self,
        model_path: str | Path | None = None,
        *,
        tensor_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
        expert_parallel_size: int = 1,
        enable_flash_mla: bool = True,
        enable_speculative_dspark: bool = True,
        seed: int = 0,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        max_model_len: int | None = None,
        enable_prefix_caching: bool = True,
        batch_invariant: bool | None = None,
        exact: bool = False,
        device: str = "auto",
    ) -> None:
        raise NotImplementedError

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        raw: bool = False,
        thinking: Thinking | None = None,
    ) -> list[RequestOutput]:
        """Answer all prompts and return their outputs in the order of ``prompts``.

        A prompt is a string (one user turn; plain text with ``raw``), a list of token ids, or a
        row as in a file.  ``sampling_params`` is one for all, or one per prompt.
        """
        raise NotImplementedError

    def stream(
        self,
        rows: Iterable[tuple[int, Mapping[str, Any]]],
        sampling_params: SamplingParams | None = None,
        *,
        raw: bool = False,
        thinking: Thinking | None = None,
    ) -> Iterator[RequestOutput]:
        """Answer ``(row number, row)`` pairs; outputs come in the order in which they finish.

        Rows are pulled only as there is room for them.  A bad row yields an output with
        ``error_kind`` set and never raises.  Closing the iterator aborts what is running.
        """
        raise NotImplementedError

    @property
    def stats(self) -> EngineStats:
        """Counters since the engine was made."""
        raise NotImplementedError

    def close(self) -> None:
        """Free the model and its caches.  May be called twice."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
