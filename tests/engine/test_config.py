"""ModelConfig: both file forms, contradictions refused, schedules and counts as published."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.parameters import count_parameters
from deepinfer.engine.model.tensors import VISION_PREFIXES, expected_tensors
from deepinfer.errors import ConfigError

DATA = Path(__file__).parent / "data"
TINY = json.loads((DATA / "tiny_config.json").read_text())
# The flat official inference file of the released model.
FLASH_FLAT = json.loads((DATA / "flash_flat.json").read_text())


def tiny(**changes: Any) -> ModelConfig:
    return replace(ModelConfig.from_dict(TINY), **changes)


def test_flat_and_nested_forms_of_the_released_model_agree() -> None:
    flat = ModelConfig.from_dict(FLASH_FLAT)
    assert replace(flat, image_token_id=129264) == ModelConfig.flash()


@pytest.mark.parametrize("config", [ModelConfig.flash(), tiny(), tiny(q_head_norm=True)])
def test_to_dict_round_trips_through_json(config: ModelConfig) -> None:
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_a_setting_of_ours_is_written_only_where_it_counts() -> None:
    assert "q_head_norm" not in tiny().to_dict()["text_config"]


def test_released_schedule_is_the_published_table() -> None:
    config = ModelConfig.flash()
    assert (config.split_layer, config.num_encoder_layers, config.num_decoder_layers) == (
        20,
        20,
        20,
    )
    kv = [None] * 2 + [2] * 6 + [8] * 6 + [14] * 6 + [20] * 20
    index = [None] * 2 + [2] * 6 + [8] * 6 + [14] * 6 + [20] * 4 + [24] * 4 + [28] * 4
    index += [32] * 4 + [36] * 4
    modes = ["none"] * 2 + (["full"] + ["reuse"] * 5) * 3
    modes += ["full"] + ["reuse"] * 3 + (["reindex"] + ["reuse"] * 3) * 4
    plans = config.layers
    assert [plan.layer_id for plan in plans] == list(range(40))
    assert [plan.kv_source for plan in plans] == kv
    assert [plan.index_source for plan in plans] == index
    assert [plan.mode for plan in plans] == modes
    assert [plan.ratio for plan in plans] == [0] * 2 + [2] * 18 + [1] * 20
    assert [plan.rope_theta for plan in plans] == [10000.0] * 2 + [160000.0] * 38
    assert [plan.use_yarn for plan in plans] == [False] * 2 + [True] * 38
    assert [plan.layer_id for plan in plans if plan.is_candidate_source] == [20]
    assert [plan.layer_id for plan in plans if plan.uses_candidates] == [24, 28, 32, 36]
    assert {
        plan.layer_id: plan.engram_index for plan in plans if plan.engram_index is not None
    } == {
        1: 0,
        14: 1,
    }
    assert {plan.layer_id: plan.tap for plan in plans if plan.tap is not None} == {
        37: 0,
        38: 1,
        39: 2,
    }
    assert [plan.is_decoder for plan in plans] == [False] * 20 + [True] * 20


def test_draft_stages_are_plain_window_layers_after_the_backbone() -> None:
    stages = ModelConfig.flash().draft_stages
    assert [stage.layer_id for stage in stages] == [40, 41, 42]
    for stage in stages:
        assert (stage.ratio, stage.mode, stage.use_yarn) == (0, "none", False)
        assert (stage.n_routed_experts, stage.num_experts_per_tok) == (128, 3)


def test_encoder_may_reindex_between_producers() -> None:
    config = tiny(index_source_layer_ids=(1, 2, 3, 4))
    plan = config.layers[2]
    assert (plan.mode, plan.kv_source, plan.index_source) == ("reindex", 1, 2)
    assert not plan.uses_candidates


def test_cache_bytes_of_the_released_model() -> None:
    config = ModelConfig.flash()
    assert config.global_kv_bytes_per_token == 890
    assert (config.main_entry_bytes, config.index_entry_bytes) == (288, 68)
    assert config.window_slot_bytes == 528


def test_engram_primes_of_the_released_model() -> None:
    config = ModelConfig.flash()
    first, second = config.engram_primes
    assert first[0][:3] == (16000057, 16000079, 16000081) and first[2][7] == 16000463
    assert second[0][0] == 16000477 and second[2][7] == 16000889
    assert tuple(sum(map(sum, layer)) for layer in config.engram_primes) == (384006168, 384016682)
    assert config.engram_columns == 24


def test_parameter_counts_of_the_released_model() -> None:
    counts = count_parameters(ModelConfig.flash())
    assert counts.backbone == 551_880_835_184
    assert counts.active_decode == 16_130_588_784
    assert round(counts.active_prefill / 1e9, 2) == 7.90
    assert round(counts.engram_tables / 1e9, 1) == 196.6
    assert round(counts.draft / 1e9, 1) == 14.2


def test_tensor_list_of_the_released_model_closes_to_the_byte() -> None:
    specs = expected_tensors(ModelConfig.flash())
    vision_bytes = 970_536_960  # 266 tensors under VISION_PREFIXES
    assert len(specs) == 95_819
    assert len(specs) + 266 == 96_085
    assert sum(spec.num_bytes for spec in specs.values()) + vision_bytes == 510_286_023_000
    assert not any(name.startswith(VISION_PREFIXES) for name in specs)
    optional = [name for name, spec in specs.items() if spec.is_optional]
    assert len(optional) == 43 and all(name.endswith("gate.bias_vl") for name in optional)


def test_released_model_builds_on_the_meta_device() -> None:
    tensors = {
        name: torch.empty(spec.shape, dtype=spec.dtype, device="meta")
        for name, spec in expected_tensors(ModelConfig.flash()).items()
    }
    backbone = sum(
        tensor.numel() * (2 if tensor.dtype == torch.int8 else 1)
        for name, tensor in tensors.items()
        if tensor.dtype != torch.float8_e8m0fnu
        and not name.startswith("mtp.")
        and ".engram.embed." not in name
    )
    assert backbone == 551_880_835_184


def test_draft_stages_are_counted_from_tensor_names_when_the_config_is_silent() -> None:
    raw = deepcopy(TINY)
    del raw["text_config"]["num_nextn_predict_layers"]
    names = [
        "embed.weight",
        "mtp.0.attn_norm.weight",
        "mtp.1.attn_norm.weight",
        "mtp.1.norm.weight",
    ]
    assert ModelConfig.from_dict(raw, tensor_names=names) == ModelConfig.from_dict(TINY)


CONTRADICTIONS: list[tuple[str, Any]] = [
    ("vocab_size", 0),
    ("hidden_size", 100),
    ("head_dim", 72),
    ("q_lora_rank", 40),
    ("o_lora_rank", 24),
    ("o_groups", 3),
    ("moe_intermediate_size", 65),
    ("index_head_dim", 48),
    ("qk_rope_head_dim", 15),
    ("qk_rope_head_dim", 64),
    ("rms_norm_eps", float("nan")),
    ("rope_factor", float("inf")),
    ("eos_token_id", 384),
    ("bos_token_id", -1),
    ("image_token_id", 9999),
    ("num_experts_per_tok", 9),
    ("n_shared_experts", 2),
    ("compress_ratios", (0, 2, 2, 1, 1)),
    ("compress_ratios", (0, 2, 2, 1, 1, 1, 0, 1)),
    ("compress_ratios", (0, 4, 2, 1, 1, 1)),
    ("compress_ratios", (0, 2, 1, 1, 1, 1)),
    ("compress_ratios", (2, 2, 2, 1, 1, 1)),
    ("kv_source_layer_ids", ()),
    ("kv_source_layer_ids", (3, 1)),
    ("kv_source_layer_ids", (1, 3, 6)),
    ("kv_source_layer_ids", (0, 1, 3)),
    ("kv_source_layer_ids", (1, 2, 3)),
    ("index_source_layer_ids", (1, 4)),
    ("index_source_layer_ids", (0, 1, 3)),
    ("candidate_source_layer_id", 5),
    ("candidate_source_layer_id", 1),
    ("candidate_topk_blocks", 8),
    ("engram_layer_ids", (1, 6)),
    ("engram_layer_ids", ()),
    ("engram_layer_ids", (1, 1)),
    ("engram_num_embeddings", (630, 835)),
    ("engram_n_heads", 10**9),
    ("engram_vocab_size", 10**18),
    ("engram_max_ngram_size", 1),
    ("engram_head_dim", 33),
    ("engram_compressed_vocab_size", 385),
    ("num_nextn_predict_layers", -1),
    ("num_nextn_predict_layers", 1),
    ("dspark_target_layer_ids", ()),
    ("dspark_target_layer_ids", (3, 6)),
    ("dspark_noise_token_id", 384),
    ("dspark_block_size", 0),
    ("dspark_num_experts_per_tok", 5),
]


@pytest.mark.parametrize(("name", "value"), CONTRADICTIONS, ids=lambda x: str(x)[:40])
def test_a_contradiction_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigError):
        tiny(**{name: value})


def test_candidate_pool_rule_is_exact() -> None:
    # The newest of the blocks may hold one entry: 9 blocks of 2 leave 17 sure entries.
    assert tiny(candidate_topk_blocks=9, index_topk=17).index_topk == 17
    with pytest.raises(ConfigError, match="candidate_topk_blocks=9: expected at least 10"):
        tiny(candidate_topk_blocks=9, index_topk=18)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_every_accepted_schedule_is_consistent(data: st.DataObject) -> None:
    """Sources precede their readers with the same ratio, and a reader's list is of its source."""
    layers = data.draw(st.integers(2, 10))
    ids = st.integers(0, layers - 1)
    kv = tuple(sorted(data.draw(st.sets(ids, min_size=1, max_size=4))))
    index = tuple(sorted({*kv, *data.draw(st.sets(ids, max_size=4))}))
    ratios = data.draw(st.lists(st.sampled_from([0, 1, 2]), min_size=layers, max_size=layers))
    try:
        config = tiny(
            num_hidden_layers=layers,
            compress_ratios=tuple(ratios),
            kv_source_layer_ids=kv,
            index_source_layer_ids=index,
            candidate_source_layer_id=kv[-1],
            engram_layer_ids=(),
            engram_num_embeddings=(),
            dspark_target_layer_ids=(0,),
        )
    except ConfigError:
        return
    for plan in config.layers:
        if plan.mode == "none":
            assert plan.kv_source is None and plan.index_source is None
            continue
        assert plan.kv_source is not None and plan.index_source is not None
        source, indexer = config.layers[plan.kv_source], config.layers[plan.index_source]
        assert source.is_kv_source and source.ratio == plan.ratio
        assert plan.kv_source <= plan.index_source <= plan.layer_id
        assert indexer.is_index_source and indexer.kv_source == plan.kv_source
        assert plan.is_kv_source == (plan.kv_source == plan.layer_id)
        if plan.uses_candidates:
            assert plan.kv_source == config.split_layer
