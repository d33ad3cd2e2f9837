"""``Settings``: name, type, default and help of every setting."""

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
_ENGINE = EngineConfig()  # the engine's defaults
_BIAS = pairs(COUNT, NUMBER, "TOKEN_ID=BIAS such as 1234=-5", "ID=BIAS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a run.  Field names are the YAML keys; flags have dashes instead of ``_``."""

    model: str | None = setting(
        None, optional(TEXT), "Model", "Checkpoint folder, or a Hub id in the local cache. "
        "Default: the small model that ships in the package.", answers=True,
    )  # fmt: skip
    device: str = setting(
        "auto", TEXT, "Model", "auto (an H100 or H200 if there is one, else the CPU), cpu, cuda or "
        "npu.",
        answers=True,
    )  # fmt: skip
    max_model_len: int | None = setting(
        None, optional(COUNT), "Model", "Maximum tokens of prompt plus answer. Default: the "
        "model's context, or what fits in the KV cache.", answers=True,
    )  # fmt: skip
    exact: bool = setting(
        False, SWITCH, "Model", "Run all layers on all prompt tokens; no bounded replay.",
        answers=True,
    )  # fmt: skip
    batch_invariant: bool = setting(
        False, SWITCH, "Model", "Make answers bitwise independent of what else is in the batch.",
        answers=True,
    )  # fmt: skip
    speculative: str = setting(
        "auto", DRAFTS, "Model", "Draft tokens to verify per request and step: auto (as many as "
        "pay off on this machine), 0 to the model's 5, or auto:3 (at most 3). Does not change "
        "answers.", answers=True,
    )  # fmt: skip
    speculation_profile: str | None = setting(
        None, optional(TEXT), "Model", "File that keeps auto's measured step times between runs."
    )
    rejection_sampling: bool = setting(
        False, SWITCH, "Model", "Accept more drafts; sampled answers are then not reproducible.",
        answers=True,
    )  # fmt: skip

    map: Mapping[str, str] = setting(
        {}, _MAP, "Prompts", "Read a field from a column of another name: prompt=question. "
        "Repeatable.",
        answers=True,
    )  # fmt: skip
    thinking: str | None = setting(
        None, optional(choice("off", "low", "default", "max")), "Prompts",
        "How much to think before answering, in rows that do not say.", answers=True,
    )  # fmt: skip
    raw: bool = setting(
        False, SWITCH, "Prompts", "Treat prompts as plain text to continue, not as a user's turn.",
        answers=True,
    )  # fmt: skip

    regex: str | None = setting(
        None, optional(TEXT), "Structured output",
        "Regular expression that the whole answer must match.", answers=True,
    )  # fmt: skip
    grammar: str | None = setting(
        None, _FILE, "Structured output", "GBNF or Lark grammar that the answer must follow.",
        answers=True,
    )  # fmt: skip
    json_schema: str | None = setting(
        None, _FILE, "Structured output",
        "JSON Schema that the answer must satisfy. Like the two above, it applies to rows without "
        "tools or a constraint of their own.", answers=True,
    )  # fmt: skip

    temperature: float = param("temperature", NUMBER, "Sampling temperature; 0 is greedy.")
    top_p: float = param(
        "top_p", NUMBER, "Keep the most likely tokens that add up to this probability."
    )
    top_k: int = param("top_k", COUNT, "Keep this many of the most likely tokens; 0 keeps all.")
    min_p: float = param(
        "min_p", NUMBER, "Drop tokens below this fraction of the top token's probability."
    )
    presence_penalty: float = param(
        "presence_penalty", NUMBER, "Subtract from the logits of tokens already in the answer."
    )
    frequency_penalty: float = param(
        "frequency_penalty", NUMBER, "Likewise, multiplied by how often the token was used."
    )
    repetition_penalty: float = param(
        "repetition_penalty", NUMBER, "Above 1, tokens already in prompt or answer get less likely."
    )
    logit_bias: Mapping[int, float] = param(
        "logit_bias", _BIAS, "Add a bias to the logit of a token id: 1234=-5. Repeatable."
    )
    max_tokens: int | None = param(
        "max_tokens", optional(COUNT), "Maximum tokens of an answer. Default: the context."
    )
    min_tokens: int = param("min_tokens", COUNT, "Minimum tokens of an answer.")
    stop: tuple[str, ...] = param("stop", many(TEXT), "Stop at this text. Repeatable.")
    stop_token_ids: tuple[int, ...] = param(
        "stop_token_ids", many(COUNT), "Stop at this token id. Repeatable."
    )
    ignore_eos: bool = param("ignore_eos", SWITCH, "Keep generating after the end-of-text token.")
    logprobs: bool = param("logprobs", SWITCH, "Return each token's log-probability.")
    top_logprobs: int = param(
        "top_logprobs", COUNT, "Also return this many alternatives per token."
    )
    n: int = param("n", COUNT, "Answers per row.")
    seed: int = setting(
        0, COUNT, "Sampling", "Rows without a seed derive theirs from this and the row number.",
        answers=True,
    )  # fmt: skip

    limit: int | None = setting(
        None, optional(at_least(0, COUNT)), "Rows", "Stop after this many input rows."
    )
    order: str = setting(
        "input", choice("input", "completion"), "Rows", "Order of the result rows."
    )
    carry: tuple[str, ...] = setting(
        (), many(TEXT), "Rows", "Copy this input column to the result; '*' copies all. Repeatable.",
        answers=True,
    )  # fmt: skip
    keep_token_ids: bool = setting(
        False, SWITCH, "Rows", "Add the token ids of prompt and answer to the result.", answers=True
    )
    timing: bool = setting(
        False, SWITCH, "Rows", "Add timings to results; repeated runs then differ.", answers=True
    )
    max_row_bytes: int = setting(
        64 * 2**20, at_least(1, BYTES), "Rows", "Longer input lines become error rows."
    )
    max_errors: int | float | None = setting(
        None, optional(ERROR_LIMIT), "Rows", "Give up when more rows than this have failed."
    )

    time_limit: float | None = setting(
        None, optional(at_least(0, SECONDS)), "Rows",
        "Start no rows after this time; finish those running, save, exit 75.",
    )  # fmt: skip
    stall_limit: float | None = setting(
        1_800.0, optional(at_least(0, SECONDS)), "Rows",
        "Watchdog: after this long without progress, print all stacks, save, exit 6. 0 is off.",
    )  # fmt: skip
    shard: str | None = setting(
        None, optional(SHARD), "Rows", "Answer only every N-th row, starting with the I-th; "
        "deepinfer merge combines the N outputs.", answers=True,
    )  # fmt: skip

    max_num_seqs: int | None = setting(
        None, optional(COUNT), "Engine",
        f"Maximum answers generated at a time. Default: {_ENGINE.max_num_seqs}.",
    )  # fmt: skip
    max_num_batched_tokens: int | None = setting(
        None, optional(COUNT), "Engine", f"Maximum tokens per step. Default: "
        f"{_ENGINE.max_num_batched_tokens:,}, or more if a full batch with drafts needs it.",
    )  # fmt: skip
    cache_memory_gib: float | None = setting(
        None, optional(NUMBER), "Engine", "KV cache size in GiB. Default: what gpu_memory "
        "leaves on a GPU, 1 on a CPU.",
    )  # fmt: skip
    num_blocks: int | None = setting(
        None, optional(COUNT), "Engine", "KV cache size in blocks, instead of GiB."
    )
    gpu_memory: float = setting(
        0.9, dataclasses.replace(NUMBER, expects="a share such as 90%"), "Engine",
        "Fraction of GPU memory to use, for weights, KV cache and activations.",
    )  # fmt: skip
    expert_weights: str = setting(
        "auto", choice(*EXPERT_WEIGHTS), "Engine", "fp8: FP4 experts stored as FP8; twice the "
        "memory, faster for large batches on H100 and H200. auto: if the KV cache still fits. Does "
        "not change answers.",
    )  # fmt: skip
    output_projection: str = setting(
        "bf16", choice(*OUTPUT_PROJECTION), "Engine", "fp8: quantize the inputs of attention's "
        "output projection, like those of all other linear layers; faster on GPUs, but answers "
        "differ slightly from the official model's.", answers=True,
    )  # fmt: skip
    block_size: int | None = setting(
        None, optional(COUNT), "Engine",
        f"Tokens per KV cache block. Default: {_ENGINE.block_size}.", answers=True,
    )  # fmt: skip
    enable_prefix_caching: bool = setting(
        True, SWITCH, "Engine", "Compute shared prompt prefixes only once."
    )
    num_threads: int | None = setting(
        None, optional(COUNT), "Engine",
        "CPU threads. Default: one for a small model, else torch's choice.",
    )  # fmt: skip
    kernels: str | None = setting(
        None, optional(dataclasses.replace(TEXT, expects="a folder", metavar="DIR")), "Engine",
        "Kernels that deepinfer build compiled. Default: those in the user's cache.",
    )  # fmt: skip
    tensor_parallel_size: int = setting(
        1, COUNT, "Engine", "Ranks that split attention.", alias="--tp"
    )
    pipeline_parallel_size: int = setting(
        1, COUNT, "Engine", "2: one rank runs the first half of the layers, another the rest."
    )
    expert_parallel_size: int = setting(
        1, COUNT, "Engine", "Ranks that split the experts.", alias="--ep"
    )
    prefill_ranks: int = setting(0, COUNT, "Engine", "Ranks that only do prefill.")
    decode_ranks: int = setting(0, COUNT, "Engine", "Ranks that only decode; rows go to them.")
    num_redundant_experts: int | None = setting(
        None, optional(COUNT), "Engine",
        "Replicas of busy experts per layer, over all ranks. Default: as many as fit in memory.",
    )  # fmt: skip
    expert_rebalance_interval: int = setting(
        0, COUNT, "Engine", "Rebalance experts by load after this many passes; 0 is never."
    )
    exact_exchange: bool = setting(
        True, SWITCH, "Engine", "With --ep, give exactly the answers of one rank; off is faster.",
        answers=True,
    )  # fmt: skip
    cluster: str | None = setting(
        None, optional(TEXT), "Engine", "Run engine replicas on this Ray cluster: auto, or its "
        "address.",
    )  # fmt: skip
    num_replicas: int | None = setting(
        None, optional(at_least(1, COUNT)), "Engine",
        "Replicas on the cluster. Default: one per GPU, or per node without GPUs.",
    )  # fmt: skip

    prometheus: str | None = setting(
        None, optional(PROM_FILE), "Report",
        "Write the metrics of the run to this .prom file, for Prometheus.",
    )  # fmt: skip
    cost_per_hour: float | None = setting(
        None, optional(at_least(0, NUMBER)), "Report",
        "Price of this machine per hour, for the report.",
    )  # fmt: skip

    def sampling(self) -> SamplingParams:
        """The default sampling of rows.  Raises: ConfigError."""
        names = {f.name for f in dataclasses.fields(SamplingParams)} - {"seed"}
        return SamplingParams(**{name: getattr(self, name) for name in names})


FIELDS: Mapping[str, dataclasses.Field[Any]] = {f.name: f for f in dataclasses.fields(Settings)}


def flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def plain(value: object) -> object:
    """``value`` as JSON types."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value
