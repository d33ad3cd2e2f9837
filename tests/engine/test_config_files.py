"""Config files that are bad, incomplete or unreadable are refused by name."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.tensors import expected_tensors
from deepinfer.errors import CheckpointError

DATA = Path(__file__).parent / "data"
TINY = json.loads((DATA / "tiny_config.json").read_text())
FLASH_FLAT = json.loads((DATA / "flash_flat.json").read_text())


def edited(edit: dict[str, Any], *, section: str | None = "text_config") -> dict[str, Any]:
    raw: dict[str, Any] = deepcopy(TINY)
    target: dict[str, Any] = raw if section is None else raw[section]
    target.update(edit)
    return raw


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (edited({"hidden_act": "gelu"}), "hidden_act='gelu'.*'silu'"),
        (edited({"hidden_size": "128"}), "hidden_size='128': expected a whole number"),
        (edited({"hidden_size": True}), "hidden_size=True"),
        (edited({"hidden_size": 128.0}), "hidden_size=128.0"),
        (edited({"compress_ratios": 3}), "compress_ratios=3: expected a list"),
        (edited({"kv_source_layer_ids": [1, "3"]}), r"kv_source_layer_ids\[1\]='3'"),
        (edited({"norm_topk_prob": 1}), "norm_topk_prob=1: expected bool"),
        (edited({"hc_multi": 4}), "unknown setting hc_multi=4.*did you mean hc_mult"),
        (edited({"num_hash_layers": 3}), "unknown setting num_hash_layers=3"),
        (edited({"rope_scaling": {"rope_type": "linear"}}), "rope_type='linear'.*'yarn'"),
        (
            edited({"rope_scaling": {}}),
            r"missing settings: rope_scaling\.factor, rope_scaling\.beta_fast \(flat",
        ),
        (edited({"rope_scaling": [1]}), "rope_scaling must be an object"),
        (edited({"weight_block_size": [128, 128]}, section="quantization_config"), "32, 32"),
        (edited({"expert_dtype": "fp8"}, section="quantization_config"), "expert_dtype"),
        (edited({"text_config": "x"}, section=None), "text_config must be an object"),
        (FLASH_FLAT | {"hidden_size": 5120}, "hidden_size is given twice"),
        ({}, "vocab_size"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_bad_file_is_refused_by_name(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        ModelConfig.from_dict(raw, where="some/config.json")
    assert str(caught.value).startswith("some/config.json: ")


IGNORED_OR_OPTIONAL = {
    *("model_type", "num_key_value_heads", "hidden_act", "attention_bias", "attention_dropout"),
    *("initializer_range", "use_cache", "tie_word_embeddings", "n_shared_experts"),
    *("scoring_func", "topk_method", "norm_topk_prob", "num_nextn_predict_layers"),
    *("engram_layer_ids", "rope_scaling"),
}


@pytest.mark.parametrize("name", sorted(set(TINY["text_config"]) - IGNORED_OR_OPTIONAL))
def test_a_missing_setting_is_named(name: str) -> None:
    raw = deepcopy(TINY)
    del raw["text_config"][name]
    with pytest.raises(CheckpointError, match=rf"missing.*{name}"):
        ModelConfig.from_dict(raw)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"3", b"\xff\xfe", b'{"vocab_size": ' + b"9" * 5000 + b"}", b"[" * 100_000],
    ids=["empty", "open", "list", "number", "encoding", "huge number", "deep"],
)
def test_an_unreadable_config_file_is_a_checkpoint_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        ModelConfig.from_file(tmp_path)


def test_a_missing_config_file_is_a_checkpoint_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json does not exist"):
        ModelConfig.from_file(tmp_path)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(TINY["text_config"])), value=JSON_VALUES)
def test_any_value_of_any_setting_gives_a_config_or_a_checkpoint_error(
    name: str, value: Any
) -> None:
    try:
        config = ModelConfig.from_dict(edited({name: value}))
    except CheckpointError:
        return
    assert len(config.layers) == config.num_hidden_layers
    assert expected_tensors(config)
