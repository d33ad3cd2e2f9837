"""Every setting once: its name, type, default and help."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deepinfer.engine.config import EXPERT_WEIGHTS, OUTPUT_PROJECTION, EngineConfig
from deepinfer.engine.types import SamplingParams

from .definition import param, setting
from .values import (
    BYTES,
    COUNT,
    DRAFTS,
    ERROR_LIMIT,
    NUMBER,
    PROM_FILE,
    SECONDS,
    SHARD,
    SWITCH,
    TEXT,
    at_least,
    choice,
    many,
    optional,
    pairs,
)

_FILE = optional(dataclasses.replace(TEXT, expects="a file", metavar="FILE"))
_MAP = pairs(TEXT, TEXT, "FIELD=COLUMN such as prompt=question, each field once", "FIELD=COLUMN")
_ENGINE = EngineConfig()  # what holds where a setting of the engine is not given
_BIAS = pairs(COUNT, NUMBER, "TOKEN_ID=BIAS such as 1234=-5", "ID=BIAS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a run.  Field names are the YAML keys; flags have dashes instead of ``_``."""

    model: str | None = setting(
        None, optional(TEXT), "Model", "Checkpoint folder, or Hub id in the local cache. "
        "Without it, the small model inside the package answers.", answers=True,
    )  # fmt: skip
    device: str = setting(
        "auto", TEXT, "Model", "auto (an H100 or H200, else the CPU), cpu, cuda or npu.",
        answers=True,
    )  # fmt: skip
    max_model_len: int | None = setting(
        None, optional(COUNT), "Model", "Longest prompt plus answer, in tokens; by default the "
        "model's context, or what the caches hold.", answers=True,
    )  # fmt: skip
    exact: bool = setting(
        False, SWITCH, "Model", "Run all layers on all prompt tokens, without bounded replay.",
        answers=True,
    )  # fmt: skip
    batch_invariant: bool = setting(
        False, SWITCH, "Model", "Bitwise equal answers whatever runs beside them.", answers=True
    )
    speculative: str = setting(
        "auto", DRAFTS, "Model", "Drafts verified per answer and step: auto (as many as pay here), "
        "0 to the model's 5, or auto:3 (at most 3). Answers stay the same.", answers=True,
    )  # fmt: skip
    speculation_profile: str | None = setting(
        None, optional(TEXT), "Model", "File that keeps the step times that auto measures."
    )
    rejection_sampling: bool = setting(
        False, SWITCH, "Model", "Accept more drafts; random answers then cannot be repeated.",
        answers=True,
    )  # fmt: skip

    map: Mapping[str, str] = setting(
        {}, _MAP, "Prompts", "Take a field from another column: prompt=question. Repeatable.",
        answers=True,
    )  # fmt: skip
    thinking: str | None = setting(
        None, optional(choice("off", "low", "default", "max")), "Prompts",
        "How long to think before answering, where a row does not say.", answers=True,
    )  # fmt: skip
    raw: bool = setting(
        False, SWITCH, "Prompts", "Prompts are plain text to continue, not a user's turn.",
        answers=True,
    )  # fmt: skip

    regex: str | None = setting(
        None, optional(TEXT), "Form of the answers", "The whole answer matches it.", answers=True
    )
    grammar: str | None = setting(
        None, _FILE, "Form of the answers", "The answer follows this GBNF or Lark grammar.",
        answers=True,
    )  # fmt: skip
    json_schema: str | None = setting(
        None, _FILE, "Form of the answers",
        "The answer is JSON that this schema allows. Like the two above, for rows that say nothing "
        "else and have no tools.", answers=True,
    )  # fmt: skip

    temperature: float = param("temperature", NUMBER, "0 always takes the likeliest token.")
    top_p: float = param("top_p", NUMBER, "Keep the likeliest tokens with this total share.")
    top_k: int = param("top_k", COUNT, "Keep this many likeliest tokens; 0 keeps all.")
    min_p: float = param("min_p", NUMBER, "Keep tokens above this share of the likeliest.")
    presence_penalty: float = param("presence_penalty", NUMBER, "Against tokens already used.")
    frequency_penalty: float = param("frequency_penalty", NUMBER, "The same, by times used.")
    repetition_penalty: float = param(
        "repetition_penalty", NUMBER, "Divide logits of tokens seen before; 1 is off."
    )
    logit_bias: Mapping[int, float] = param(
        "logit_bias", _BIAS, "Add to the logit of a token: 1234=-5. Repeatable."
    )
    max_tokens: int | None = param(
        "max_tokens", optional(COUNT), "Longest answer, in tokens; by default up to the context."
    )
    min_tokens: int = param("min_tokens", COUNT, "Shortest answer, in tokens.")
    stop: tuple[str, ...] = param("stop", many(TEXT), "End the answer at this text. Repeatable.")
    stop_token_ids: tuple[int, ...] = param(
        "stop_token_ids", many(COUNT), "End the answer at this token. Repeatable."
    )
    ignore_eos: bool = param("ignore_eos", SWITCH, "Go on after the end-of-text token.")
    logprobs: bool = param("logprobs", SWITCH, "Keep each token's log-probability.")
    top_logprobs: int = param("top_logprobs", COUNT, "And those of so many alternatives.")
    n: int = param("n", COUNT, "Answers per row.")
    seed: int = setting(
        0, COUNT, "Sampling", "From it and the row number come the seeds of rows without one.",
        answers=True,
    )  # fmt: skip

    limit: int | None = setting(
        None, optional(at_least(0, COUNT)), "Rows", "Stop after so many input rows."
    )
    order: str = setting(
        "input", choice("input", "completion"), "Rows", "Order of the result rows."
    )
    carry: tuple[str, ...] = setting(
        (), many(TEXT), "Rows", "Copy this input column to the result, '*' all. Repeatable.",
        answers=True,
    )  # fmt: skip
    keep_token_ids: bool = setting(
        False, SWITCH, "Rows", "Write the token ids of prompt and answer.", answers=True
    )
    timing: bool = setting(
        False, SWITCH, "Rows", "Write each row's timing; repeated runs then differ.", answers=True
    )
    max_row_bytes: int = setting(
        64 * 2**20, at_least(1, BYTES), "Rows", "A longer input line becomes an error row."
    )
    max_errors: int | float | None = setting(
        None, optional(ERROR_LIMIT), "Rows", "Give up after more error rows than this."
    )

    time_limit: float | None = setting(
        None, optional(at_least(0, SECONDS)), "Rows",
        "Take no new rows after this time; finish, save, exit 75.",
    )  # fmt: skip
    stall_limit: float | None = setting(
        1_800.0, optional(at_least(0, SECONDS)), "Rows",
        "Watchdog: when the engine gets nowhere for this time, print all stacks, save, exit 6. "
        "0 is off.",
    )  # fmt: skip
    shard: str | None = setting(
        None, optional(SHARD), "Rows", "Answer only every N-th row, from the I-th on; deepinfer "
        "merge puts the N outputs together.", answers=True,
    )  # fmt: skip

    max_num_seqs: int | None = setting(
        None, optional(COUNT), "Engine",
        f"Most answers computed at a time; by default {_ENGINE.max_num_seqs}.",
    )  # fmt: skip
    max_num_batched_tokens: int | None = setting(
        None, optional(COUNT), "Engine", f"Most tokens in a step; by default "
        f"{_ENGINE.max_num_batched_tokens:,}, or as many as all answers with drafts may need.",
    )  # fmt: skip
    cache_memory_gib: float | None = setting(
        None, optional(NUMBER), "Engine", "Memory for the caches of running answers, in GiB; "
        "without it what gpu_memory leaves on a GPU, and 1 on a CPU.",
    )  # fmt: skip
    num_blocks: int | None = setting(
        None, optional(COUNT), "Engine", "The same, as a number of cache blocks."
    )
    gpu_memory: float = setting(
        0.9, dataclasses.replace(NUMBER, expects="a share such as 90%"), "Engine",
        "Share of a GPU's memory that may be in use: weights, caches and steps.",
    )  # fmt: skip
    expert_weights: str = setting(
        "auto", choice(*EXPERT_WEIGHTS), "Engine", "fp8: FP4 experts in twice the memory, faster "
        "for large steps on an H100 or H200; auto: where caches still fit. Answers stay the same.",
    )  # fmt: skip
    output_projection: str = setting(
        "bf16", choice(*OUTPUT_PROJECTION), "Engine", "fp8: the product after attention takes FP8 "
        "inputs, like all others; faster on GPUs, and answers differ slightly from the official "
        "model's.", answers=True,
    )  # fmt: skip
    block_size: int | None = setting(
        None, optional(COUNT), "Engine",
        f"Tokens in a cache block; by default {_ENGINE.block_size}.", answers=True,
    )  # fmt: skip
    enable_prefix_caching: bool = setting(
        True, SWITCH, "Engine", "Compute the beginning that prompts share only once."
    )
    num_threads: int | None = setting(
        None, optional(COUNT), "Engine", "CPU threads; by default one for a small model."
    )
    kernels: str | None = setting(
        None, optional(dataclasses.replace(TEXT, expects="a folder", metavar="DIR")), "Engine",
        "Compiled kernels from deepinfer build; without it, those in the user's cache.",
    )  # fmt: skip
    tensor_parallel_size: int = setting(
        1, COUNT, "Engine", "Ranks that share attention.", alias="--tp"
    )
    pipeline_parallel_size: int = setting(
        1, COUNT, "Engine", "2: one rank has the first half of the layers, another the rest."
    )
    expert_parallel_size: int = setting(
        1, COUNT, "Engine", "Ranks that share experts.", alias="--ep"
    )
    prefill_ranks: int = setting(0, COUNT, "Engine", "Ranks that only read prompts.")
    decode_ranks: int = setting(0, COUNT, "Engine", "Ranks that only answer; they take the rows.")
    num_redundant_experts: int | None = setting(
        None, optional(COUNT), "Engine",
        "Copies of loaded experts per layer, over all ranks; by default as memory allows.",
    )  # fmt: skip
    expert_rebalance_interval: int = setting(
        0, COUNT, "Engine", "Place experts anew by load after so many passes; 0 is never."
    )
    exact_exchange: bool = setting(
        True, SWITCH, "Engine", "Ranks that share experts give one rank's answers; off is faster.",
        answers=True,
    )  # fmt: skip
    cluster: str | None = setting(
        None, optional(TEXT), "Engine", "Ray cluster on whose nodes whole engines answer: auto, or "
        "its address.",
    )  # fmt: skip
    num_replicas: int | None = setting(
        None, optional(at_least(1, COUNT)), "Engine",
        "Engines on the cluster; by default one per GPU, or per node without GPUs.",
    )  # fmt: skip

    prometheus: str | None = setting(
        None, optional(PROM_FILE), "Report",
        "Write the numbers of the run there for Prometheus (.prom).",
    )  # fmt: skip
    cost_per_hour: float | None = setting(
        None, optional(at_least(0, NUMBER)), "Report", "Price of this machine, for the report."
    )

    def sampling(self) -> SamplingParams:
        """The sampling of rows that say nothing else.  Raises: ConfigError."""
        names = {f.name for f in dataclasses.fields(SamplingParams)} - {"seed"}
        return SamplingParams(**{name: getattr(self, name) for name in names})


FIELDS: Mapping[str, dataclasses.Field[Any]] = {f.name: f for f in dataclasses.fields(Settings)}


def flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def plain(value: object) -> object:
    """``value`` in JSON's types."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value
