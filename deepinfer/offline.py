"""``OfflineEngine``: prompts in, answers out, in Python.  The command line uses the same class."""

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

    ``model_path`` is a checkpoint folder or a Hub id that is already in the local Hugging Face
    cache; ``None`` is the small model inside the package.

    ``expert_parallel_size`` ranks share the routed experts and answer rows of their own,
    ``tensor_parallel_size`` ranks share attention; ``prefill_ranks`` only read prompts, which
    ``decode_ranks`` then answer.  Every ``expert_rebalance_interval`` passes the ranks move experts
    so that their loads are even, with ``num_redundant_experts`` further copies (by default as many
    as memory allows).  Answers are those of one rank as long as ``exact_exchange`` is on.
    ``cluster`` is the address of a Ray cluster, or auto, on which ``num_replicas`` whole engines
    answer.  Each rank is a process, on a GPU or the CPU, and a script that uses them needs
    ``if __name__ == "__main__":``.  Sizes that this machine or model cannot honour raise
    ConfigError with the reason.

    ``enable_flash_mla`` is the fused attention of a GPU, which has no other; on a CPU both settings
    run the reference.

    ``enable_speculative_dspark`` drafts with the model's own DSpark stages,
    ``num_speculative_tokens`` at a time.  Without that number as many are verified as pay, from
    confidence and step times measured in under a second at start; ``schedule_drafts=True`` does
    the same below the number.  ``profile_path`` keeps these times from run to run.  A model
    without such stages answers without drafts, and ``notes`` says so.  ``rejection_sampling``
    accepts more drafts of random answers, which then depend on how they were drafted.

    ``batch_invariant=None`` follows the variable DEEPINFER_BATCH_INVARIANT.  ``exact`` runs every
    layer on every prompt token.
    ``num_threads`` is what torch may use in this process until ``close`` (default: one for a model
    of small layers, else torch's own number).
    ``kernels`` is a folder of kernels that ``deepinfer build`` compiled for this GPU and model;
    they are refused with the reason if they are for others.  Without it the default folder is
    looked into, and kernels that are not there are compiled when they are first used.
    Further arguments are fields of ``EngineConfig``; ``None`` keeps a default that fits the model.

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

        A prompt is a string (one user turn; plain text with ``raw``), a list of token ids, or a
        row as in a file.  ``sampling_params`` is one for all, or one per prompt.  ``thinking`` is
        off, low, default or max; without it string prompts do not think and ``messages`` follow
        the recipe.  ``constraint`` is what answers must match, as a row would say it:
        ``{"regex": ...}``, ``{"grammar": ...}`` or ``{"response_format": ...}``; it holds for rows
        that have none of these fields and no tools.  A bad row gives an output with ``error`` set.
        Raises: ConfigError for arguments of a wrong form, EngineError after ``close``.
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
        """Answer what ``generate`` takes; outputs come in the order in which they finish.

        ``rows`` may be any iterable and endless: they are pulled only as there is room for them.
        ``output.row`` is the place of a prompt, or its number where it comes as a tuple
        ``(number, prompt)``; derived seeds depend on that number.  A bad row yields an output with
        ``error_kind`` set and never raises.  Closing the iterator aborts what is running.
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
        """Where the checkpoint lies."""
        return self._open().folder

    @property
    def engine_config(self) -> EngineConfig:
        """The settings in use."""
        return self._open().engine.config

    @property
    def device(self) -> str:
        """Where the model runs: cpu, cuda or cuda:N, never auto."""
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
        """The processes that compute: the ranks, or this one."""
        engine = self._open().engine
        return engine.process_ids if isinstance(engine, HasProcesses) else [self._process]

    @property
    def max_model_len(self) -> int:
        """Most tokens that prompt and answer may have together."""
        return self._open().engine.max_model_len

    @property
    def notes(self) -> Mapping[str, str]:
        """Settings that could not be followed, and why."""
        return self._open().notes

    def stats(self) -> EngineStats:
        """Counters since the engine was made."""
        return self._open().engine.stats()

    def close(self) -> None:
        """Abort what runs and free the model and its caches.  May be called twice."""
        if self._session is None:
            return
        session, self._session = self._session, None
        session.close()

    def _open(self) -> Session:
        if self._session is None:
            raise EngineError("this OfflineEngine is closed; make a new one")
        if os.getpid() != self._process:
            raise EngineError(
                "this OfflineEngine belongs to the process that made it; make one in each process"
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
