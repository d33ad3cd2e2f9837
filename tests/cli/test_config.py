"""``deepinfer config``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from deepinfer_cli.settings.config import example
from deepinfer_cli.settings.settings import FIELDS


def test_show_prints_yaml_that_is_itself_a_settings_file(cli: Callable[..., Any]) -> None:
    shown = cli("config", "show")
    assert shown.exit_code == 0
    assert list(yaml.safe_load(shown.out)) == list(FIELDS)
    Path("again.yaml").write_bytes(shown.out)
    assert cli("config", "show", "--config", "again.yaml").out == shown.out


def test_show_names_origins(cli: Callable[..., Any], monkeypatch: Any) -> None:
    monkeypatch.setenv("DEEPINFER_TOP_K", "7")
    assert any(
        line.startswith(b"top_k: 7") and line.endswith(b"# DEEPINFER_TOP_K")
        for line in cli("config", "show", "--origin").out.splitlines()
    )
    shown = json.loads(cli("config", "show", "--origin", "--json").out)
    assert shown["top_k"] == {"value": 7, "origin": "DEEPINFER_TOP_K"}


def test_init_writes_the_example_and_overwrites_nothing(cli: Callable[..., Any]) -> None:
    assert cli("config", "init").exit_code == 0
    assert Path("deepinfer.yaml").read_text() == example()
    again = cli("config", "init")
    assert again.exit_code == 2 and "already exists" in again.err
    assert cli("config", "init", "--force").exit_code == 0
    assert cli("config", "init", "nowhere/x.yaml").exit_code == 2
    assert cli("config", "init", "-").out.decode() == example()
