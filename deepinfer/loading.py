"""Loads a model and creates its engine; everything that can be is checked before weights load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepinfer.engine.config import EngineConfig
from deepinfer.engine.engine import LLMEngine
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.model import Model
from deepinfer.engine.model.share import WHOLE_MODEL
from deepinfer.engine.parallel.rank import Rank
from deepinfer.errors import CheckpointError, ConfigError
from deepinfer.recipes.embedded import embedded_model_path
from deepinfer.recipes.token_compression import token_compression
from deepinfer.recipes.tokenizer import Tokenizer

from .compiled_kernels import load_kernels
from .engine.cache.kv_transfer import RemotePrefill
from .engine.checkpoint.engram_tables import place_tables
from .engine.checkpoint.weights import Checkpoint, open_checkpoint
from .engine.execution.current_device import current_device
from .engine.execution.decode_stages import DecodeResult
from .engine.execution.prefill import PrefillWorker
from .engine.execution.runner import Runner
from .engine.memory.device_memory import DeviceMemory
from .engine.memory.expert_form import with_expert_form
from .engine.speculation.calibration import Calibration
from .engine.speculation.measure_steps import device_name
from .engine.speculation.step_profile import StepProfile
from .machine import is_hopper, set_cpu_threads

# Step times of this process's CPU engines, by what they depend on, so that the next equal engine
# need not measure again for a second.  (On a GPU they are measured while capturing graphs.)
_measured: dict[tuple[ModelConfig, EngineConfig, int], StepProfile] = {}


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model whose files have been checked, without weights.  ``notes`` as below."""

    checkpoint: Checkpoint
    tokenizer: Tokenizer
    engine_config: EngineConfig
    notes: dict[str, str]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its engine.  ``notes``: settings that could not be applied."""

    folder: Path
    config: ModelConfig
    tokenizer: Tokenizer
    engine: LLMEngine
    notes: Mapping[str, str]
    threads_before: int


def open_model(
    model_path: str | Path | None,
    settings: Mapping[str, Any],
    *,
    device: str,
    rank: Rank | None = None,
) -> OpenedModel:
    """Open and check a checkpoint; ``None`` is the embedded model.

    ``settings``: fields of ``EngineConfig``; others get defaults that fit the model, or the part of
    it that ``rank`` has.
    Raises: CheckpointError about the folder, ConfigError about a setting.
    """
    checkpoint = open_checkpoint(embedded_model_path() if model_path is None else model_path)
    tokenizer = Tokenizer.from_file(checkpoint.folder / "tokenizer.json")
    vocab_size = checkpoint.config.vocab_size
    if tokenizer.size > vocab_size:
        raise CheckpointError(
            f"{checkpoint.folder}: tokenizer.json has ids up to {tokenizer.size - 1}, the model "
            f"knows {vocab_size} (vocab_size); use the tokenizer.json of this model"
        )
    engine_config, notes = resolve_engine_config(settings, checkpoint.config, device)
    engine_config = _with_expert_form(engine_config.with_environment(), checkpoint.config, rank)
    if settings.get("expert_weights") == "fp8" and engine_config.expert_weights == "fp4":
        notes["expert_weights"] = f"as stored: {device} is no NVIDIA SM90, which alone has fp8"
    return OpenedModel(checkpoint, tokenizer, engine_config, notes)


def _with_expert_form(config: EngineConfig, sizes: ModelConfig, rank: Rank | None) -> EngineConfig:
    """``config`` with this rank's format of routed experts."""
    memory = DeviceMemory.of(config.device) if is_hopper(config.device) else None
    # If drafts are verified as they pay off, it is about one per request in full batches.
    drafts = config.num_speculative_tokens
    tokens = config.max_num_seqs * (1 + (min(1, drafts) if config.schedule_drafts else drafts))
    if rank is None:
        return with_expert_form(config, sizes, memory, tokens=tokens)
    if rank.only_prefills:
        tokens = config.max_num_batched_tokens
    share = rank.share
    held = (1 + share.num_redundant / sizes.n_routed_experts) / share.experts.size
    tokens *= max(1, share.experts.size // share.heads.size)
    return with_expert_form(config, sizes, memory, held=held, tokens=tokens)


def load_model(
    model_path: str | Path | None,
    settings: Mapping[str, Any],
    *,
    device: str,
    num_threads: int | None = None,
    profile_path: Path | None = None,
    kernels: Path | None = None,
    calibration: Calibration | None = None,
    observer: Callable[[DecodeResult], None] | None = None,
    rank: Rank | None = None,
    remote_prefill: Callable[[PrefillWorker], RemotePrefill] | None = None,
) -> LoadedModel:
    """Open a model as ``open_model`` does, load it and make its engine.

    ``profile_path`` keeps the measured step times between runs.  ``kernels``: a folder of bundles
    from ``deepinfer build``, by default the one in the cache.
    ``calibration`` replaces the one beside the weights; ``observer`` is called with every decode
    step's result.  ``rank``: the part of the model that this process computes, and its peers;
    ``remote_prefill`` replaces the engine's own prefill.
    The number of CPU threads is set here, since step times depend on it; the result has the earlier
    number.
    Raises: CheckpointError about the folder, ConfigError about a setting.
    """
    opened = open_model(model_path, settings, device=device, rank=rank)
    checkpoint, tokenizer, notes = opened.checkpoint, opened.tokenizer, opened.notes
    engine_config, model_config = opened.engine_config, checkpoint.config
    threads_before = set_cpu_threads(num_threads, model_config.hidden_size)
    name = model_name(model_path, checkpoint.folder)
    if note := load_kernels(kernels, model_config, name, device):
        notes["kernels"] = note
    with current_device(device):
        model = load_weights(opened, device, rank)
        saved = _saved_profile(profile_path, engine_config, notes)
        same = (model_config, engine_config, torch.get_num_threads())
        if calibration is None:
            calibration = Calibration.from_folder(checkpoint.folder, model_config.dspark_block_size)
        runner: Runner = model
        cache = None
        if rank is not None:
            engine_config, own = rank.plan_cache(model, engine_config)
            runner, cache = rank.runner(model), rank.cache(own)
        engine = LLMEngine(
            runner,
            engine_config,
            cache,
            calibration=calibration,
            profile=saved or _measured.get(same),
            observer=observer,
            is_alone=rank is None,
            captures=model.can_capture if rank is None else rank.can_capture(model),
            remote_prefill=remote_prefill,
        )
    if engine.profile is not None:
        if device == "cpu" and rank is None:
            _measured[same] = engine.profile
        if profile_path is not None and saved is None:
            engine.profile.save(profile_path)
    return LoadedModel(checkpoint.folder, model_config, tokenizer, engine, notes, threads_before)


def model_name(model_path: str | Path | None, folder: Path) -> str:
    """What ``deepinfer build --config`` takes for the model in ``folder``."""
    return "tiny" if model_path is None else str(folder)


def load_weights(opened: OpenedModel, device: str, rank: Rank | None = None) -> Model:
    """The model of an opened checkpoint, or a rank's share of it.

    The model itself moves tensors to the device, so that there are never two copies of all of them;
    ``opened.notes`` gets a line if Engram tables stay on the host.
    """
    checkpoint = opened.checkpoint
    tables = place_tables(checkpoint, device, may_copy=rank is None)
    if tables.note is not None:
        opened.notes["engram_tables"] = tables.note
    return Model(
        checkpoint.config,
        checkpoint.load() | tables.tensors,
        token_map=engram_token_map(opened.tokenizer, checkpoint.config),
        device=device,
        share=WHOLE_MODEL if rank is None else rank.share,
        experts_as_fp8=opened.engine_config.expert_weights == "fp8",
        output_as_fp8=opened.engine_config.output_projection == "fp8",
    )


def _saved_profile(
    path: Path | None, config: EngineConfig, notes: dict[str, str]
) -> StepProfile | None:
    """The saved step times if device, drafts and threads are the same; otherwise None and a note.
    Raises: ConfigError if the file is not a profile."""
    if path is None or not path.exists() or not config.schedule_drafts:
        return None
    profile = StepProfile.load(path)
    expected = (device_name(config.device), config.num_speculative_tokens)
    if (profile.device, profile.block_size) == expected:
        return profile
    notes["speculation_profile"] = (
        f"{path} is of {profile.device} with {profile.block_size} drafts, this is {expected[0]} "
        f"with {expected[1]}: measured again and overwritten"
    )
    return None


def engram_token_map(tokenizer: Tokenizer, config: ModelConfig) -> Tensor | None:
    """[vocab_size] i32: the compressed id of every token, for models with Engram; else None.

    Ids that the tokenizer does not use map to padding.
    Raises: CheckpointError if the number of compressed ids differs from the config.
    """
    if not config.engram_layer_ids:
        return None
    compressed = torch.from_numpy(token_compression(tokenizer))
    count = int(compressed.max()) + 1
    if count != config.engram_compressed_vocab_size:
        raise CheckpointError(
            f"tokenizer.json has {count} distinct texts, but the config says "
            f"engram_compressed_vocab_size={config.engram_compressed_vocab_size}; "
            "use the tokenizer.json of this model"
        )
    padding = compressed[config.pad_token_id].expand(config.vocab_size - len(compressed))
    return torch.cat([compressed, padding])


def resolve_engine_config(
    settings: Mapping[str, Any], model: ModelConfig, device: str
) -> tuple[EngineConfig, dict[str, str]]:
    """``settings`` completed for ``model``, and notes on what could not be applied."""
    notes: dict[str, str] = {}
    resolved = dict(settings)
    context = model.max_position_embeddings
    if resolved.get("max_model_len", 0) > context:
        raise ConfigError(
            f"max_model_len={resolved['max_model_len']}: the model's context is {context}"
        )
    block = model.dspark_block_size if model.num_nextn_predict_layers else 0
    wanted = resolved.setdefault("num_speculative_tokens", model.dspark_block_size)
    if wanted > model.dspark_block_size:
        raise ConfigError(
            f"num_speculative_tokens={wanted}: the model drafts at most {model.dspark_block_size}"
        )
    if wanted and not block:
        notes["speculation"] = "off: the checkpoint has no DSpark stages"
        resolved["num_speculative_tokens"] = 0
    resolved.setdefault("schedule_drafts", "num_speculative_tokens" not in settings)
    if "max_num_batched_tokens" not in resolved:
        defaults = EngineConfig()
        num_seqs = resolved.get("max_num_seqs", defaults.max_num_seqs)
        needed = num_seqs * (1 + resolved["num_speculative_tokens"])
        resolved["max_num_batched_tokens"] = max(defaults.max_num_batched_tokens, needed)
    return EngineConfig(**resolved, device=device), notes
