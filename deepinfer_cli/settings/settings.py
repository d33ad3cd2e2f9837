"""Every setting once: its name, type, default, help, and the four layers that may give it.

Default < YAML file < environment (``DEEPINFER_<NAME>``) < flag.  The origin of each value is kept.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deepinfer.engine.types import SamplingParams
from deepinfer.errors import ConfigError

from .users_words import in_users_words
from .values import (
    BYTES,
    COUNT,
    DRAFTS,
    ERROR_LIMIT,
    NUMBER,
    SECONDS,
    SHARD,
    SWITCH,
    TEXT,
    Kind,
    at_least,
    choice,
    many,
    optional,
    pairs,
)

DEFAULT_FILE = "deepinfer.yaml"
_PREFIX = "DEEPINFER_"
# Read by build.sh, not by a run.
_OTHER_VARIABLES = {"DEEPINFER_ACCELERATOR"}
# Upstream's names for parts of ``speculative``.
_SCHEDULED_DRAFTS = "DEEPINFER_ENABLE_MTP_VARLEN"
_MOST_DRAFTS = "DEEPINFER_USE_NEXTN_DECODE"
_UPSTREAM_DRAFTS = "5"


def _setting(
    default: Any,
    kind: Kind,
    group: str,
    help: str,
    *,
    answers: bool = False,
    alias: str | None = None,
) -> Any:
    """A field of ``Settings``.  ``answers``: another value may give other answers, so a run that
    was stopped is only continued with the same one.  ``alias``: a shorter flag for the same."""
    metadata = {"kind": kind, "group": group, "help": help, "answers": answers, "alias": alias}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def _sampling(name: str, kind: Kind, help: str) -> Any:
    """A field with the name, default and meaning of the ``SamplingParams`` field ``name``."""
    definition = SamplingParams.__dataclass_fields__[name]
    default = {} if definition.default is dataclasses.MISSING else definition.default
    return _setting(default, kind, "Sampling", help, answers=True)


_FILE = optional(dataclasses.replace(TEXT, expects="a file", metavar="FILE"))
_MAP = pairs(TEXT, TEXT, "FIELD=COLUMN such as prompt=question", "FIELD=COLUMN")
_BIAS = pairs(COUNT, NUMBER, "TOKEN_ID=BIAS such as 1234=-5", "ID=BIAS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a run.  Field names are the YAML keys; flags have dashes instead of ``_``."""

    model: str | None = _setting(
        None, optional(TEXT), "Model", "Checkpoint folder, or Hub id in the local cache. "
        "Without it, the small model inside the package answers.", answers=True,
    )  # fmt: skip
    device: str = _setting(
        "auto", TEXT, "Model", "auto (an H100 or H200, else the CPU), cpu or cuda.", answers=True
    )
    max_model_len: int | None = _setting(
        None, optional(COUNT), "Model", "Longest prompt plus answer, in tokens.", answers=True
    )
    exact: bool = _setting(
        False, SWITCH, "Model", "Run all layers on all prompt tokens, without bounded replay.",
        answers=True,
    )  # fmt: skip
    batch_invariant: bool = _setting(
        False, SWITCH, "Model", "Bitwise equal answers whatever runs beside them.", answers=True
    )
    speculative: str = _setting(
        "auto", DRAFTS, "Model", "Drafts verified per answer and step: auto (as many as pay here), "
        "0 to the model's 5, or auto:3 (at most 3). Answers stay the same.", answers=True,
    )  # fmt: skip
    speculation_profile: str | None = _setting(
        None, optional(TEXT), "Model", "File that keeps the step times that auto measures."
    )
    rejection_sampling: bool = _setting(
        False, SWITCH, "Model", "Accept more drafts; random answers then cannot be repeated.",
        answers=True,
    )  # fmt: skip

    map: Mapping[str, str] = _setting(
        {}, _MAP, "Prompts", "Take a field from another column: prompt=question. Repeatable.",
        answers=True,
    )  # fmt: skip
    thinking: str | None = _setting(
        None, optional(choice("off", "low", "default", "max")), "Prompts",
        "How long to think before answering, where a row does not say.", answers=True,
    )  # fmt: skip
    raw: bool = _setting(
        False, SWITCH, "Prompts", "Prompts are plain text to continue, not a user's turn.",
        answers=True,
    )  # fmt: skip

    regex: str | None = _setting(
        None, optional(TEXT), "Form of the answers", "The whole answer matches it.", answers=True
    )
    grammar: str | None = _setting(
        None, _FILE, "Form of the answers", "The answer follows this GBNF or Lark grammar.",
        answers=True,
    )  # fmt: skip
    json_schema: str | None = _setting(
        None, _FILE, "Form of the answers",
        "The answer is JSON that this schema allows. Like the two above, for rows that say nothing "
        "else and have no tools.", answers=True,
    )  # fmt: skip

    temperature: float = _sampling("temperature", NUMBER, "0 always takes the likeliest token.")
    top_p: float = _sampling("top_p", NUMBER, "Keep the likeliest tokens with this total share.")
    top_k: int = _sampling("top_k", COUNT, "Keep this many likeliest tokens; 0 keeps all.")
    min_p: float = _sampling("min_p", NUMBER, "Keep tokens above this share of the likeliest.")
    presence_penalty: float = _sampling("presence_penalty", NUMBER, "Against tokens already used.")
    frequency_penalty: float = _sampling("frequency_penalty", NUMBER, "The same, by times used.")
    repetition_penalty: float = _sampling(
        "repetition_penalty", NUMBER, "Divide logits of tokens seen before; 1 is off."
    )
    logit_bias: Mapping[int, float] = _sampling(
        "logit_bias", _BIAS, "Add to the logit of a token: 1234=-5. Repeatable."
    )
    max_tokens: int | None = _sampling("max_tokens", optional(COUNT), "Longest answer, in tokens.")
    min_tokens: int = _sampling("min_tokens", COUNT, "Shortest answer, in tokens.")
    stop: tuple[str, ...] = _sampling(
        "stop", many(TEXT), "End the answer at this text. Repeatable."
    )
    stop_token_ids: tuple[int, ...] = _sampling(
        "stop_token_ids", many(COUNT), "End the answer at this token. Repeatable."
    )
    ignore_eos: bool = _sampling("ignore_eos", SWITCH, "Go on after the end-of-text token.")
    logprobs: bool = _sampling("logprobs", SWITCH, "Keep each token's log-probability.")
    top_logprobs: int = _sampling("top_logprobs", COUNT, "And those of so many alternatives.")
    n: int = _sampling("n", COUNT, "Answers per row.")
    seed: int = _setting(
        0, COUNT, "Sampling", "From it and the row number come the seeds of rows without one.",
        answers=True,
    )  # fmt: skip

    limit: int | None = _setting(
        None, optional(at_least(0, COUNT)), "Rows", "Stop after so many input rows."
    )
    order: str = _setting(
        "input", choice("input", "completion"), "Rows", "Order of the result rows."
    )
    carry: tuple[str, ...] = _setting(
        (), many(TEXT), "Rows", "Copy this input column to the result, '*' all. Repeatable.",
        answers=True,
    )  # fmt: skip
    keep_token_ids: bool = _setting(
        False, SWITCH, "Rows", "Write the token ids of prompt and answer.", answers=True
    )
    timing: bool = _setting(
        False, SWITCH, "Rows", "Write each row's timing; repeated runs then differ.", answers=True
    )
    max_row_bytes: int = _setting(
        64 * 2**20, at_least(1, BYTES), "Rows", "A longer input line becomes an error row."
    )
    max_errors: int | float | None = _setting(
        None, optional(ERROR_LIMIT), "Rows", "Give up after more error rows than this."
    )

    time_limit: float | None = _setting(
        None, optional(at_least(0, SECONDS)), "Rows",
        "Take no new rows after this time; finish, save, exit 75.",
    )  # fmt: skip
    stall_limit: float | None = _setting(
        1_800.0, optional(at_least(0, SECONDS)), "Rows",
        "Watchdog: when the engine gets nowhere for this time, print all stacks, save, exit 6. "
        "0 is off.",
    )  # fmt: skip
    shard: str | None = _setting(
        None, optional(SHARD), "Rows", "Answer only every N-th row, from the I-th on; deepinfer "
        "merge puts the N outputs together.", answers=True,
    )  # fmt: skip

    max_num_seqs: int | None = _setting(
        None, optional(COUNT), "Engine", "Most answers computed at a time."
    )
    max_num_batched_tokens: int | None = _setting(
        None, optional(COUNT), "Engine", "Most tokens in a step."
    )
    cache_memory_gib: float | None = _setting(
        None, optional(NUMBER), "Engine", "Memory for the caches of running answers, in GiB; "
        "without it what gpu_memory leaves on a GPU, and 1 on a CPU.",
    )  # fmt: skip
    gpu_memory: float = _setting(
        0.9, dataclasses.replace(NUMBER, expects="a share such as 90%"), "Engine",
        "Share of a GPU's memory that may be in use: weights, caches and steps.",
    )  # fmt: skip
    num_blocks: int | None = _setting(
        None, optional(COUNT), "Engine", "The same, as a number of cache blocks."
    )
    block_size: int | None = _setting(
        None, optional(COUNT), "Engine", "Tokens in a cache block.", answers=True
    )
    enable_prefix_caching: bool = _setting(
        True, SWITCH, "Engine", "Compute the beginning that prompts share only once."
    )
    num_threads: int | None = _setting(
        None, optional(COUNT), "Engine", "CPU threads; by default one for a small model."
    )
    kernels: str | None = _setting(
        None, optional(dataclasses.replace(TEXT, expects="a folder", metavar="DIR")), "Engine",
        "Compiled kernels from deepinfer build; without it, those in the user's cache.",
    )  # fmt: skip
    tensor_parallel_size: int = _setting(
        1, COUNT, "Engine", "Ranks that share attention.", alias="--tp"
    )
    pipeline_parallel_size: int = _setting(1, COUNT, "Engine", "Ranks that share layers.")
    expert_parallel_size: int = _setting(
        1, COUNT, "Engine", "Ranks that share experts.", alias="--ep"
    )
    prefill_ranks: int = _setting(0, COUNT, "Engine", "Ranks that only read prompts.")
    decode_ranks: int = _setting(0, COUNT, "Engine", "Ranks that only answer; they take the rows.")
    num_redundant_experts: int = _setting(
        0, COUNT, "Engine", "Copies of loaded experts per layer, over all ranks that share them."
    )
    expert_rebalance_interval: int = _setting(
        0, COUNT, "Engine", "Place experts anew by load after so many passes; 0 is never."
    )
    exact_exchange: bool = _setting(
        True, SWITCH, "Engine", "Ranks that share experts give one rank's answers; off is faster.",
        answers=True,
    )  # fmt: skip
    cluster: str | None = _setting(
        None, optional(TEXT), "Engine", "Ray cluster on whose nodes whole engines answer: auto, or "
        "its address.",
    )  # fmt: skip
    num_replicas: int | None = _setting(
        None, optional(at_least(1, COUNT)), "Engine",
        "Engines on the cluster; by default one per GPU, or per node without GPUs.",
    )  # fmt: skip

    prometheus: str | None = _setting(
        None, _FILE, "Report", "Write the numbers of the run there for Prometheus (.prom)."
    )
    cost_per_hour: float | None = _setting(
        None, optional(at_least(0, NUMBER)), "Report", "Price of this machine, for the report."
    )

    def sampling(self) -> SamplingParams:
        """The sampling of rows that say nothing else.  Raises: ConfigError."""
        names = {f.name for f in dataclasses.fields(SamplingParams)} - {"seed"}
        return SamplingParams(**{name: getattr(self, name) for name in names})


FIELDS: Mapping[str, dataclasses.Field[Any]] = {f.name: f for f in dataclasses.fields(Settings)}


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings, and for each name where its value came from."""

    settings: Settings
    origins: Mapping[str, str]

    def answers(self) -> dict[str, Any]:
        """The settings that answers depend on, ready for JSON."""
        return {
            n: plain(getattr(self.settings, n)) for n in FIELDS if FIELDS[n].metadata["answers"]
        }

    def report(self) -> dict[str, dict[str, Any]]:
        """Every setting with value and origin, ready for JSON."""
        return {
            name: {"value": plain(getattr(self.settings, name)), "origin": self.origins[name]}
            for name in FIELDS
        }


def resolve(
    flags: Mapping[str, object],
    environment: Mapping[str, str] | None = None,
    config: str | None = None,
) -> Resolved:
    """Lay the four layers over each other.

    flags: by setting name, None where not given.  config: a YAML file; without it
    ``DEEPINFER_CONFIG``, then ``deepinfer.yaml`` in the current folder if there is one.
    Raises: ConfigError that names the layer, the value and what was expected.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    origins = dict.fromkeys(FIELDS, "default")
    for name, value, origin in [
        *_yaml_layer(config or environment.get(_PREFIX + "CONFIG")),
        *_environment_layer(environment),
        *((name, value, flag_name(name)) for name, value in flags.items() if value is not None),
    ]:
        values[name] = _parse(name, value, origin)
        origins[name] = origin
    settings = Settings(**values)
    with in_users_words(origins):
        settings.sampling()
    return Resolved(settings, origins)


def flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean ...?`` with the most similar known name, or nothing."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {matches[0]}?" if matches else ""


def plain(value: object) -> object:
    """``value`` in JSON's types."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def _parse(name: str, value: object, origin: str) -> object:
    kind: Kind = FIELDS[name].metadata["kind"]
    try:
        return kind.parse(value)
    except (ValueError, TypeError, OverflowError):
        shown = value[0] if isinstance(value, list) and len(value) == 1 else value
        shown = str(shown) if isinstance(shown, str) else repr(shown)
        subject = f"{origin}={shown}" if origin.isupper() or origin.startswith("--") else (
            f"{origin}: {name}: {shown}"
        )  # fmt: skip
        raise ConfigError(f"{subject}: expected {kind.expects}") from None


def _environment_layer(environment: Mapping[str, str]) -> list[tuple[str, object, str]]:
    known = {_PREFIX + name.upper(): name for name in FIELDS}
    others = _OTHER_VARIABLES | {"DEEPINFER_CONFIG", _SCHEDULED_DRAFTS, _MOST_DRAFTS}
    layer = _upstream_drafts(environment)
    for variable, value in sorted(environment.items()):
        if variable in known:
            layer.append((known[variable], value, variable))
        elif variable.startswith(_PREFIX) and variable not in others:
            raise ConfigError(
                f"environment variable {variable} is not a setting{nearest(variable, known)}"
            )
    return layer


def _upstream_drafts(environment: Mapping[str, str]) -> list[tuple[str, object, str]]:
    """``speculative`` as upstream's two variables say it, if one of them is set."""
    switch, most = environment.get(_SCHEDULED_DRAFTS), environment.get(_MOST_DRAFTS)
    if switch is None and most is None:
        return []
    try:
        is_scheduled = SWITCH.parse(switch or "0")
        count = COUNT.parse(most or _UPSTREAM_DRAFTS)
    except ValueError:
        raise ConfigError(
            f"{_SCHEDULED_DRAFTS}={switch}, {_MOST_DRAFTS}={most}: expected 1 or 0, and a number"
        ) from None
    prefix = "auto:" if is_scheduled and count else ""
    return [("speculative", f"{prefix}{count}", _MOST_DRAFTS if most else _SCHEDULED_DRAFTS)]


def _yaml_layer(config: str | None) -> list[tuple[str, object, str]]:
    import yaml  # here, so that help stays fast

    path = Path(config or DEFAULT_FILE)
    if config is None and not path.is_file():
        return []
    try:
        loader = yaml.SafeLoader(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        if node is None:
            return []
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{path}: expected lines of the form 'name: value'")
        layer: list[tuple[str, object, str]] = []
        for key, value in node.value:
            origin = f"{path}:{key.start_mark.line + 1}"
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "a list or mapping"
            if name not in FIELDS:
                raise ConfigError(f"{origin}: {name} is not a setting{nearest(name, FIELDS)}")
            if any(name == earlier for earlier, _, _ in layer):
                raise ConfigError(f"{origin}: {name} is given twice")
            if not _is_flat(value):
                raise ConfigError(f"{origin}: {name}: lists and mappings inside others")
            layer.append((name, loader.construct_object(value, deep=True), origin))
        return layer
    except OSError as error:
        raise ConfigError(f"cannot read settings from {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text") from error
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: digits without end, a wrong date
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error


def _is_flat(node: Any) -> bool:
    """One value, or a list or mapping of such.  Aliases in deeper ones can stand for gigabytes."""
    parts = [] if isinstance(node.value, str) else node.value
    inner = [part for item in parts for part in (item if isinstance(item, tuple) else (item,))]
    return all(isinstance(part.value, str) for part in inner)
