"""A run takes its kernels from a bundle that fits, or says why there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from deepinfer import compiled_kernels
from deepinfer.compiled_kernels import load_kernels
from deepinfer.errors import ConfigError
from deepinfer.kernel_build import model_config
from deepinfer.kernels.bundle import Bundle, nvidia_identity
from deepinfer.kernels.bundle_builder import build_bundle

_CONFIG = model_config("tiny")


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Bundle]:
    """On a machine with an H200; gathers the bundles that a run would use."""
    bundles: list[Bundle] = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(compiled_kernels, "_use", bundles.append)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return bundles


def _build(store: Path) -> Path:
    identity = nvidia_identity(_CONFIG.to_dict(), "tiny", "sm90a")
    return build_bundle(store, identity, lambda: ([], [])).folder


def test_a_bundle_that_fits_is_used(used: list[Bundle], tmp_path: Path) -> None:
    folder = _build(tmp_path)
    assert load_kernels(tmp_path, _CONFIG, "tiny", "cuda") is None
    assert [bundle.folder for bundle in used] == [folder]


def test_the_default_folder_may_be_empty(used: list[Bundle], tmp_path: Path) -> None:
    note = load_kernels(None, _CONFIG, "tiny", "cuda:0")
    assert note is not None and "`deepinfer build --arch sm90a --config tiny`" in note
    folder = _build(tmp_path / "cache" / "deepinfer" / "kernels")
    assert load_kernels(None, _CONFIG, "tiny", "cuda:0") is None
    assert [bundle.folder for bundle in used] == [folder]
    (folder / "manifest.json").write_text("{}")
    note = load_kernels(None, _CONFIG, "tiny", "cuda:0")
    assert note is not None and "not a bundle" in note


def test_a_bundle_of_another_model_is_refused(used: list[Bundle], tmp_path: Path) -> None:
    _build(tmp_path)
    with pytest.raises(ConfigError, match="it is for the config tiny, this is full"):
        load_kernels(tmp_path, model_config("full"), "full", "cuda")
    assert used == []


def test_devices_without_kernels(
    used: list[Bundle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_kernels(None, _CONFIG, "tiny", "cpu") is None
    with pytest.raises(ConfigError, match="this run is on cpu"):
        load_kernels(tmp_path, _CONFIG, "tiny", "cpu")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(ConfigError, match="no bundle is made for a GPU"):
        load_kernels(tmp_path, _CONFIG, "tiny", "cuda")
    note = load_kernels(None, _CONFIG, "tiny", "cuda")
    assert note is not None and "no bundle is made for a GPU" in note
