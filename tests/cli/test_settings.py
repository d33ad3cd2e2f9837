"""Four layers of settings, each value with its origin."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from deepinfer.engine.types import SamplingParams
from deepinfer.errors import ConfigError
from deepinfer_cli.settings.as_given import message_as_given
from deepinfer_cli.settings.config import example
from deepinfer_cli.settings.layers import resolve
from deepinfer_cli.settings.settings import FIELDS, Settings, flag_name

_ROOT = Path(__file__).parents[2]


def test_a_flag_beats_the_environment_beats_yaml_beats_the_default(in_tmp: Path) -> None:
    (in_tmp / "deepinfer.yaml").write_text("temperature: 0.1\ntop_p: 0.2\ntop_k: 3\n")
    environment = {"DEEPINFER_TEMPERATURE": "0.5", "DEEPINFER_TOP_P": "60%"}
    resolved = resolve({"temperature": "0.9"}, environment)
    settings = resolved.settings
    assert (settings.temperature, settings.top_p, settings.top_k) == (0.9, 0.6, 3)
    assert settings.min_p == 0.0
    assert [resolved.origins[name] for name in ("temperature", "top_p", "top_k", "min_p")] == [
        "--temperature", "DEEPINFER_TOP_P", "deepinfer.yaml:3", "default",
    ]  # fmt: skip


def test_sampling_settings_are_the_fields_of_sampling_params(in_tmp: Path) -> None:
    for definition in dataclasses.fields(SamplingParams):
        assert definition.name in FIELDS
        if definition.name != "seed":  # the run's seed is a number; a row's may be derived
            assert getattr(Settings(), definition.name) == getattr(
                SamplingParams(), definition.name
            )
    chosen = resolve({"stop": ["a", "b"], "logit_bias": ["5=-1"], "n": "2"}, {}).settings.sampling()
    assert (chosen.stop, dict(chosen.logit_bias), chosen.n) == (("a", "b"), {5: -1.0}, 2)


def test_the_example_file_states_every_default(in_tmp: Path) -> None:
    (in_tmp / "deepinfer.yaml").write_text(example())
    resolved = resolve({}, {})
    assert resolved.settings == Settings()
    assert all(origin.startswith("deepinfer.yaml:") for origin in resolved.origins.values())
    assert set(yaml.safe_load(example())) == set(FIELDS)


def test_the_committed_example_is_the_generated_one() -> None:
    assert (_ROOT / "deepinfer.yaml.example").read_text(encoding="utf-8") == example()


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "temprature: 1",
            "deepinfer.yaml:1: temprature is not a setting; did you mean temperature?",
        ),
        ("top_k: 1\n\ntop_k: 2", "deepinfer.yaml:3: top_k is given twice"),
        ("temperature: hot", "deepinfer.yaml:1: temperature: hot: expected a number"),
        ("temperature: 400", "temperature=400.0: expected 0 to 100"),
        ("- a\n- b", "expected lines of the form"),
        ("a: [", "is not valid YAML"),
        ("? [a]\n: 1", "deepinfer.yaml:1: a list or mapping is not a setting"),
        ("stop: " + "[" * 5_000, "deepinfer.yaml is nested too deeply"),
        ("seed: " + "1" * 5_000, "deepinfer.yaml:1: seed: 11111"),
        ("stop: &a [*a]", "deepinfer.yaml:1: stop: nested lists and mappings"),
        ("stop: [&a [x, x], [*a, *a]]", "deepinfer.yaml:1: stop: nested lists and mappings"),
        ("map: {a: {b: c}}", "deepinfer.yaml:1: map: nested lists and mappings"),
        ("stop: !!set {a, b}", "deepinfer.yaml:1: stop: {"),
        ("limit: -1", "deepinfer.yaml:1: limit: -1: expected a whole number"),
        ("max_row_bytes: 0", "deepinfer.yaml:1: max_row_bytes: 0: expected a size"),
        ("time_limit: -5", "deepinfer.yaml:1: time_limit: -5: expected a duration"),
        ("time_limit: .inf", "deepinfer.yaml:1: time_limit: .inf: expected a duration"),
        ("map: {a: b, c: d, a: e}", "deepinfer.yaml:1: map: a is given twice"),
        ("logit_bias: {1: 2, '1': 2}", "deepinfer.yaml:1: logit_bias: 1 is given twice"),
        ("logit_bias: {1: 2, 01: 2}", "deepinfer.yaml:1: logit_bias: "),
        ("time_limit: 1:30", "deepinfer.yaml:1: time_limit: 1:30: expected a duration"),
        ("seed: 0x10", "deepinfer.yaml:1: seed: 0x10: expected a whole number"),
        ("raw: !!bool maybe", "deepinfer.yaml:1: raw: 'maybe' is not a !!bool"),
        ("limit: !!timestamp x", "deepinfer.yaml:1: limit: 'x' is not a !!timestamp"),
        ("n: 1000000", "n=1000000: expected a whole number, 1 to 128"),
    ],
)
def test_a_bad_file_is_named_with_its_line(in_tmp: Path, text: str, message: str) -> None:
    (in_tmp / "deepinfer.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        resolve({}, {})
    assert message in str(caught.value)


def test_an_empty_name_of_a_settings_file_is_refused(in_tmp: Path) -> None:
    with pytest.raises(ConfigError, match="DEEPINFER_CONFIG is empty: unset it"):
        resolve({}, {"DEEPINFER_CONFIG": ""})


@pytest.mark.parametrize(
    "variable, hint", [("LIMT", "; did you mean DEEPINFER_LIMIT?"), ("FOO", ""),
                       ("CONFIGG", "; did you mean DEEPINFER_CONFIG?")],
)  # fmt: skip
def test_a_variable_that_is_no_setting(in_tmp: Path, variable: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({}, {f"DEEPINFER_{variable}": "1"})
    assert str(caught.value).endswith(f"DEEPINFER_{variable} is not a setting{hint}")


def test_words_are_what_they_are_as_flags(in_tmp: Path) -> None:
    """YAML 1.1 reads 0100 as 64, 1:30 as 90 and 1.10 as 1.1."""
    (in_tmp / "deepinfer.yaml").write_text(
        "limit: 0100\nstop: [1:30, 007, 1.50, 2026-01-01]\nmodel: 1.10\ntop_p: 5e-1\n"
        "max_tokens: 4_096\nregex: 1_0\nraw: yes\nlogit_bias: {12: -5, 13: .5}\nseed: !!int 0x10\n"
    )
    settings = resolve({}, {}).settings
    assert (settings.limit, settings.top_p, settings.max_tokens, settings.raw, settings.seed) == (
        100, 0.5, 4_096, True, 16,
    )  # fmt: skip
    assert settings.stop == ("1:30", "007", "1.50", "2026-01-01")
    assert (settings.model, settings.regex) == ("1.10", "1_0")
    assert settings.logit_bias == {12: -5.0, 13: 0.5}


def test_aliases_that_stand_for_gigabytes_cost_nothing(in_tmp: Path) -> None:
    levels = [f"&a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    (in_tmp / "deepinfer.yaml").write_text(f"stop: [&a0 [x, x], {', '.join(levels)}]")
    with pytest.raises(ConfigError, match="nested lists and mappings"):
        resolve({}, {})


@pytest.mark.parametrize("data", [b"\xff\xfe", b"top_k: \x00"])
def test_a_file_that_is_no_text(in_tmp: Path, data: bytes) -> None:
    (in_tmp / "deepinfer.yaml").write_bytes(data)
    with pytest.raises(ConfigError):
        resolve({}, {})


def test_unknown_variables_are_named_with_the_nearest_known_one(in_tmp: Path) -> None:
    with pytest.raises(ConfigError, match="DEEPINFER_TOPP.*did you mean DEEPINFER_TOP_P"):
        resolve({}, {"DEEPINFER_TOPP": "1"})
    resolve({}, {"DEEPINFER_ACCELERATOR": "nvidia", "HOME": "/"})


def test_a_named_file_must_exist_and_a_default_one_need_not(in_tmp: Path) -> None:
    assert resolve({}, {}).settings == Settings()
    with pytest.raises(ConfigError, match="cannot read settings from mine.yaml"):
        resolve({}, {}, "mine.yaml")
    (in_tmp / "mine.yaml").write_text("thinking: off\nmap: {prompt: question}\n")
    settings = resolve({}, {"DEEPINFER_CONFIG": "mine.yaml"}).settings
    assert (settings.thinking, settings.map) == ("off", {"prompt": "question"})


def test_an_empty_file_changes_nothing(in_tmp: Path) -> None:
    (in_tmp / "deepinfer.yaml").write_text("# nothing\n")
    assert resolve({}, {}).settings == Settings()


def test_every_setting_has_a_flag_a_help_text_and_a_group() -> None:
    for name, definition in FIELDS.items():
        assert flag_name(name).startswith("--") and "_" not in flag_name(name)
        assert definition.metadata["help"].endswith(".")
        assert definition.metadata["group"]


@pytest.mark.parametrize(
    "origin, message, shown",
    [
        ("--max-num-seqs", "max_num_seqs=0: expected 1", "--max-num-seqs=0: expected 1"),
        ("DEEPINFER_SEED", "seed=-1: expected", "DEEPINFER_SEED=-1: expected"),
        ("my.yaml:3", "max_model_len=9: too long", "my.yaml:3: max_model_len=9: too long"),
        ("default", "block_size=3: odd", "block_size=3: odd"),
        ("--speculative", "num_speculative_tokens=9: most", "--speculative=9: most"),
        ("--n", "cannot open n of my/n.json", "cannot open n of my/n.json"),
        (
            "--max-model-len",
            "8 tokens, fewer than max_model_len=9: raise num_blocks or lower max_model_len",
            "8 tokens, fewer than --max-model-len=9: raise num_blocks or lower --max-model-len",
        ),
    ],
)
def test_errors_use_the_words_of_the_user(origin: str, message: str, shown: str) -> None:
    origins = dict.fromkeys(FIELDS, "default")
    names = {"DEEPINFER_SEED": "seed", "my.yaml:3": "max_model_len", "default": "block_size"}
    origins[names.get(origin, origin[2:].replace("-", "_"))] = origin
    assert message_as_given(message, origins) == shown


def test_a_number_of_ranks_is_named_by_its_flag(cli: Callable[..., Any], in_tmp: Path) -> None:
    Path("in.jsonl").write_text('{"prompt": "a"}\n')
    done = cli("run", "in.jsonl", "--tp", "0")
    assert done.exit_code == 2 and "--tensor-parallel-size=0: expected a whole number" in done.err
