"""The two forms of a config.json: nested (Hugging Face) and flat (official inference code).

Converts either into values for the fields of ``ModelConfig``.  A setting that changes the model's
function but is not implemented is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from deepinfer.errors import CheckpointError, ConfigError, nearest

FLAT_NAMES = {
    "dim": "hidden_size",
    "moe_inter_dim": "moe_intermediate_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "rope_head_dim": "qk_rope_head_dim",
    "norm_eps": "rms_norm_eps",
    "beta_fast": "rope_beta_fast",
    "beta_slow": "rope_beta_slow",
    "original_seq_len": "rope_original_max_position",
    "max_seq_len": "max_position_embeddings",
    "n_activated_experts": "num_experts_per_tok",
    "score_func": "scoring_func",
    "route_scale": "routed_scaling_factor",
    "window_size": "sliding_window",
    "kv_source_layers": "kv_source_layer_ids",
    "index_source_layers": "index_source_layer_ids",
    "candidate_source_layer": "candidate_source_layer_id",
    "engram_layers": "engram_layer_ids",
    "engram_pad_id": "engram_pad_token_id",
    "n_mtp_layers": "num_nextn_predict_layers",
    "dspark_target_layers": "dspark_target_layer_ids",
    "dspark_n_activated_experts": "dspark_num_experts_per_tok",
}

ROPE_SCALING_NAMES = {
    "factor": "rope_factor",
    "beta_fast": "rope_beta_fast",
    "beta_slow": "rope_beta_slow",
    "original_max_position_embeddings": "rope_original_max_position",
}

# Settings with a single supported value.
FIXED: dict[str, tuple[Any, ...]] = {
    "model_type": ("deepseek_v41", "deepseek_v41_text"),
    "num_key_value_heads": (1,),
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "tie_word_embeddings": (False,),
    "scoring_func": ("sqrtsoftplus",),
    "topk_method": ("noaux_tc",),
    "gate_temp": (1.0,),
    "quant_method": ("fp8",),
    "activation_scheme": ("dynamic",),
    "weight_block_size": ([32, 32],),
    "scale_fmt": ("ue8m0",),
    "expert_dtype": ("fp4",),
    "rope_type": ("yarn",),
}

# Settings that the flat form leaves out, with the values built into the official code.
OPTIONAL = {
    *("bos_token_id", "eos_token_id", "pad_token_id", "image_token_id", "norm_topk_prob"),
    *("n_shared_experts", "num_nextn_predict_layers", "q_head_norm"),
}

ROOT_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "image_token_id")
QUANTIZATION_CONSTANTS = (
    *("quant_method", "activation_scheme", "weight_block_size", "scale_fmt", "expert_dtype"),
)
TEXT_CONSTANTS = (
    *("num_key_value_heads", "hidden_act", "attention_bias", "tie_word_embeddings"),
    *("scoring_func", "topk_method"),
)

# Settings of training, of other software or of the vision tower; text inference never reads them.
IGNORED = {
    *("attention_dropout", "initializer_range", "use_cache", "transformers_version"),
    *("architectures", "dtype", "torch_dtype", "auto_map", "max_batch_size", "scale_dtype"),
    *("text_config", "vision_config", "quantization_config", "rope_scaling"),
}
IGNORED_PREFIXES = ("_", "vision_", "vit_", "image_", "aligner_")


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file.  Raises: CheckpointError naming the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist; a checkpoint folder has this file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not readable JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a JSON {type(value).__name__}, expected an object")
    return value


def typed_fields(raw: Mapping[str, Any], types: Mapping[str, str]) -> dict[str, Any]:
    """Values by official name, each of its annotated type; ``types`` maps field to annotation.

    Raises: ConfigError on an unknown, missing, mistyped or unsupported setting.
    """
    settings = _nested(raw) if "text_config" in raw else _flat(raw)
    values: dict[str, Any] = {}
    for name, value in settings.items():
        if name in FIXED:
            if value not in FIXED[name]:
                expected = " or ".join(repr(allowed) for allowed in FIXED[name])
                raise ConfigError(f"{name}={value!r} is not supported; expected {expected}")
        elif name in types:
            values[name] = _typed(name, value, types[name])
        elif name not in IGNORED and not name.startswith(IGNORED_PREFIXES):
            hint = nearest(name, [*types, *FLAT_NAMES])
            raise ConfigError(f"unknown setting {name}={value!r}: it might change results{hint}")
    return values


def require_fields(values: Mapping[str, Any], names: Iterable[str]) -> None:
    """Check that a file states every setting of the parts that its model has: no default is safe.

    Raises: ConfigError naming what is missing.
    """
    unused = tuple(
        prefix
        for prefix, feature in (
            ("engram_", "engram_layer_ids"),
            ("dspark_", "num_nextn_predict_layers"),
        )
        if not values.get(feature)
    )
    missing = [
        name
        for name in names
        if name not in values and name not in OPTIONAL and not name.startswith(unused)
    ]
    if missing:
        raise ConfigError(f"missing settings: {', '.join(map(_spelling, missing))}")


def _spelling(name: str) -> str:
    """A field's name in the files, in both forms if they differ."""
    nested = {field: f"rope_scaling.{key}" for key, field in ROPE_SCALING_NAMES.items()}
    flat = {field: key for key, field in FLAT_NAMES.items()}
    other = f" (flat form: {flat[name]})" if name in flat else ""
    return nested.get(name, name) + other


def _nested(raw: Mapping[str, Any]) -> dict[str, Any]:
    text = _section(raw, "text_config")
    settings = {name: value for name, value in text.items() if name not in ("rope_scaling",)}
    for name, value in _section(text, "rope_scaling").items():
        settings[ROPE_SCALING_NAMES.get(name, name)] = value
    if "type" in settings:  # older name of rope_type
        settings.setdefault("rope_type", settings.pop("type"))
    settings.update(_section(raw, "quantization_config"))
    # The text part defines the model; from the root only the special token ids matter.
    return {name: raw[name] for name in ROOT_IDS if name in raw} | settings


def _flat(raw: Mapping[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for flat_name, value in raw.items():
        name = FLAT_NAMES.get(flat_name, flat_name)
        if name in settings:
            raise ConfigError(f"{name} is given twice, also as {flat_name}; keep one")
        settings[name] = value
    factor, original = settings.get("rope_factor"), settings.get("rope_original_max_position")
    if isinstance(factor, int | float) and isinstance(original, int):
        # The flat form leaves the context length to the caller: use what YaRN was trained for.
        settings.setdefault("max_position_embeddings", int(factor * original))
    return settings


def _section(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = raw.get(name) or {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be an object, found {type(value).__name__}")
    return value


def _typed(name: str, value: Any, annotation: str) -> Any:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    match annotation:
        case "int" if is_int:
            return value
        case "int | None" if is_int or value is None:
            return value
        case "float" if is_int or isinstance(value, float):
            return float(value)
        case "bool" if isinstance(value, bool):
            return value
        case "tuple[int, ...]" if isinstance(value, list | tuple):
            return tuple(_typed(f"{name}[{i}]", item, "int") for i, item in enumerate(value))
    wanted = {"tuple[int, ...]": "a list of whole numbers", "int": "a whole number"}
    raise ConfigError(f"{name}={value!r}: expected {wanted.get(annotation, annotation)}")


def official_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """The nested form, as in the official config.json, of a config given by field names."""
    text = {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}
    if not text["q_head_norm"]:  # official files do not have it
        del text["q_head_norm"]
    root = {name: text.pop(name) for name in ROOT_IDS}
    scaling = {key: text.pop(name) for key, name in ROPE_SCALING_NAMES.items()}
    constants = {name: FIXED[name][0] for name in TEXT_CONSTANTS}
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        **{name: token_id for name, token_id in root.items() if token_id is not None},
        "quantization_config": {name: FIXED[name][0] for name in QUANTIZATION_CONSTANTS},
        "text_config": {
            "model_type": "deepseek_v41_text",
            **text,
            "rope_scaling": {"rope_type": "yarn", **scaling},
            **constants,
        },
    }
