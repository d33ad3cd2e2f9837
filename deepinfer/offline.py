"""``OfflineEngine``: the Python API, which the command line uses, too."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from deepinfer.engine.config import EngineConfig
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.types import EngineStats, SamplingParams
from deepinfer.recipes.types import THINKING_CHOICES, Thinking

from .arguments import EngineArguments
from .engine.memory.memory_plan import memory_plan
from .engine.speculation.measure_steps import device_name
from .engine_facts import EngineFacts
from .errors import ConfigError, EngineError
from .outputs import RequestOutput
from .rows.prompts import Prompt, numbered_rows, prompt_rows, run_constraint, sampling_for_each
from .session import HasProcesses, Session, open_session


class OfflineEngine:
    """A loaded model on the accelerators of this machine.

    ``model_path`` is a checkpoint folder, or a Hub id that is in the local Hugging Face cache;
    ``None`` is the small model that ships in the package.

    Parallelism: ``expert_parallel_size`` ranks split the routed experts, and each answers its own
    rows; ``tensor_parallel_size`` ranks split attention.  ``prefill_ranks`` only prefill, for
    ``decode_ranks`` that only decode.  Every ``expert_rebalance_interval`` passes experts are moved
    to even out the load, with ``num_redundant_experts`` additional replicas (by default as many as
    fit in memory).  With ``exact_exchange`` answers are those of a single rank.  ``cluster`` is the
    address of a Ray cluster, or auto, for ``num_replicas`` replicas of the whole engine.  Each rank
    is a process, on a GPU or the CPU, so a script needs ``if __name__ == "__main__":``.  Sizes that
    this machine or model does not support raise ConfigError with the reason.

    ``enable_flash_mla``: fused attention.  GPUs have no other; a CPU runs the reference either way.

    Speculation: ``enable_speculative_dspark`` drafts with the model's own DSpark stages,
    ``num_speculative_tokens`` at a time.  Without that number, as many drafts are verified as pay
    off, given their confidence and step times measured in under a second at start;
    ``schedule_drafts=True`` does the same with the number as a maximum.  ``profile_path`` keeps
    these times between runs.  A model without such stages answers without drafts, and ``notes``
    says so.  ``rejection_sampling`` accepts more drafts, but sampled answers then depend on how
    they were drafted and are not reproducible.

    ``batch_invariant=None`` follows the variable DEEPINFER_BATCH_INVARIANT.  ``exact`` runs every
    layer on every prompt token.
    ``num_threads``: torch's threads in this process until ``close`` (default: one for a model with
    small layers, else torch's own number).
    ``kernels``: a folder of kernels that ``deepinfer build`` compiled for this GPU and model; those
    for others are refused with the reason.  Without it the default folder is searched, and missing
    kernels are compiled at first use.
    Further arguments are fields of ``EngineConfig``; ``None`` means a default that fits the model.

    Use it as a context manager, or call ``close``.
    """

    def __init__(
        self,
        model_path: str | Path | None = None,
        *,
        tensor_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
        expert_parallel_size: int = 1,
        prefill_ranks: int = 0,
        decode_ranks: int = 0,
        num_redundant_experts: int | None = None,
        expert_rebalance_interval: int = 0,
        exact_exchange: bool = True,
        cluster: str | None = None,
        num_replicas: int | None = None,
        enable_flash_mla: bool = True,
        enable_speculative_dspark: bool = True,
        num_speculative_tokens: int | None = None,
        schedule_drafts: bool | None = None,
        profile_path: str | Path | None = None,
        rejection_sampling: bool = False,
        seed: int = 0,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        max_model_len: int | None = None,
        block_size: int | None = None,
        num_blocks: int | None = None,
        cache_memory_gib: float | None = None,
        gpu_memory: float | None = None,
        enable_prefix_caching: bool | None = None,
        batch_invariant: bool | None = None,
        exact: bool | None = None,
        expert_weights: str | None = None,
        output_projection: str | None = None,
        num_threads: int | None = None,
        kernels: str | Path | None = None,
        device: str = "auto",
    ) -> None:
        arguments = EngineArguments(
            tensor_parallel_size=tensor_parallel_size,
            pipeline_parallel_size=pipeline_parallel_size,
            expert_parallel_size=expert_parallel_size,
            prefill_ranks=prefill_ranks,
            decode_ranks=decode_ranks,
            num_redundant_experts=num_redundant_experts,
            expert_rebalance_interval=expert_rebalance_interval,
            exact_exchange=exact_exchange,
            cluster=cluster,
            num_replicas=num_replicas,
            enable_flash_mla=enable_flash_mla,
            enable_speculative_dspark=enable_speculative_dspark,
            num_speculative_tokens=num_speculative_tokens,
            schedule_drafts=schedule_drafts,
            profile_path=profile_path,
            rejection_sampling=rejection_sampling,
            seed=seed,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            block_size=block_size,
            num_blocks=num_blocks,
            cache_memory_gib=cache_memory_gib,
            gpu_memory=gpu_memory,
            enable_prefix_caching=enable_prefix_caching,
            batch_invariant=batch_invariant,
            exact=exact,
            expert_weights=expert_weights,
            output_projection=output_projection,
            num_threads=num_threads,
            kernels=kernels,
            device=device,
        )
        self._session: Session | None = open_session(model_path, arguments)
        self._process = os.getpid()  # threads and locks of a model do not survive a fork

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        raw: bool = False,
        thinking: Thinking | None = None,
        constraint: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer all prompts and return their outputs in the order of ``prompts``.

        A prompt is a string (one user turn, or plain text with ``raw``), a list of token ids, or a
        row as in a file.  ``sampling_params``: one for all, or one per prompt.  ``thinking``: off,
        low, default or max; without it string prompts do not think and ``messages`` follow the
        recipe.  ``constraint``: what answers must match, with the fields of a row: ``{"regex":
        ...}``, ``{"grammar": ...}`` or ``{"response_format": ...}``; it applies to rows that have
        none of these fields and no tools.  A bad row gives an output with ``error`` set.
        Raises: ConfigError for invalid arguments, EngineError after ``close``.
        """
        rows = prompt_rows(prompts)
        params = sampling_for_each(sampling_params, len(rows))
        _check_thinking(thinking)
        numbered = zip(range(len(rows)), rows, params, strict=True)
        spec = run_constraint(constraint)
        outputs = self._open().rows.run(numbered, raw=raw, thinking=thinking, constraint=spec)
        return sorted(outputs, key=lambda output: output.row)

    def stream(
        self,
        rows: Prompt | Iterable[Prompt | tuple[int, Any]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        raw: bool = False,
        thinking: Thinking | None = None,
        constraint: Mapping[str, Any] | None = None,
    ) -> Iterator[RequestOutput]:
        """Like ``generate``, but yields outputs in the order in which they finish.

        ``rows`` may be any iterable, even an infinite one: rows are pulled only when there is room.
        ``output.row`` is the index of a prompt, or its number if it is given as ``(number,
        prompt)``; derived seeds depend on that number.  A bad row yields an output with
        ``error_kind`` set and never raises.  Closing the iterator aborts running requests.
        """
        _check_thinking(thinking)
        return self._open().rows.run(
            numbered_rows(rows, sampling_params),
            raw=raw,
            thinking=thinking,
            constraint=run_constraint(constraint),
        )

    @property
    def model_config(self) -> ModelConfig:
        """Sizes and schedules of the loaded model."""
        return self._open().model_config

    @property
    def model_folder(self) -> Path:
        """The folder of the checkpoint."""
        return self._open().folder

    @property
    def engine_config(self) -> EngineConfig:
        """The engine's settings, all resolved."""
        return self._open().engine.config

    @property
    def device(self) -> str:
        """The device of the model: cpu, cuda or cuda:N, never auto."""
        return self.engine_config.device

    def facts(self) -> EngineFacts:
        """Device, model and memory, as a report shows them."""
        session = self._open()
        return EngineFacts(
            device=self.device,
            device_name=device_name(self.device),
            model_folder=self.model_folder,
            memory=memory_plan(
                self.model_config,
                session.engine.config,
                num_expert_ranks=session.num_expert_ranks,
            ),
        )

    @property
    def process_ids(self) -> list[int]:
        """Ids of the processes that compute: the ranks, or this process."""
        engine = self._open().engine
        return engine.process_ids if isinstance(engine, HasProcesses) else [self._process]

    @property
    def max_model_len(self) -> int:
        """Maximum tokens of prompt plus answer."""
        return self._open().engine.max_model_len

    @property
    def notes(self) -> Mapping[str, str]:
        """Settings that could not be applied, and why."""
        return self._open().notes

    def stats(self) -> EngineStats:
        """Counters since the engine was created."""
        return self._open().engine.stats()

    def close(self) -> None:
        """Abort running requests, and free the model and its caches.  Idempotent."""
        if self._session is None:
            return
        session, self._session = self._session, None
        session.close()

    def _open(self) -> Session:
        if self._session is None:
            raise EngineError("this OfflineEngine is closed; create a new one")
        if os.getpid() != self._process:
            raise EngineError(
                "this OfflineEngine belongs to the process that created it; create one per process"
            )
        return self._session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _check_thinking(thinking: Thinking | None) -> None:
    if thinking is not None and thinking not in THINKING_CHOICES:
        choices = ", ".join(THINKING_CHOICES)
        raise ConfigError(f"thinking={thinking!r}: expected one of {choices}")
