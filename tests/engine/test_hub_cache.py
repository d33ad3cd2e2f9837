"""Names of models that point into the local Hugging Face cache."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from deepinfer.engine.checkpoint.weights import open_checkpoint
from deepinfer.errors import CheckpointError

_CHECKPOINT = Path(__file__).parents[1] / "goldens" / "tiny-a" / "checkpoint"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub" / "models--some-org--A.Model"


def test_a_hub_id_is_found_through_its_main_ref(hub: Path) -> None:
    (hub / "refs").mkdir(parents=True)
    (hub / "refs" / "main").write_text("abc123\n")
    (hub / "snapshots" / "old").mkdir(parents=True)
    shutil.copytree(_CHECKPOINT, hub / "snapshots" / "abc123")
    assert open_checkpoint("some-org/A.Model").folder == hub / "snapshots" / "abc123"


def test_a_single_snapshot_without_a_ref_is_enough(hub: Path) -> None:
    shutil.copytree(_CHECKPOINT, hub / "snapshots" / "rev")
    assert open_checkpoint("some-org/A.Model").config == open_checkpoint(_CHECKPOINT).config
    (hub / "snapshots" / "other").mkdir()
    with pytest.raises(CheckpointError, match="found 2 snapshots"):
        open_checkpoint("some-org/A.Model")


def test_an_absent_hub_id_gives_the_download_command(hub: Path) -> None:
    with pytest.raises(CheckpointError, match="hf download some-org/A.Model"):
        open_checkpoint("some-org/A.Model")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({}, str(Path.home() / ".cache/huggingface/hub")),
    ],
)
def test_cache_folder_follows_the_hugging_face_variables(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CheckpointError, match=f"looked in {expected}/models--x--y"):
        open_checkpoint("x/y")
