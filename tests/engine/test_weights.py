"""The loader: what was written comes back bit for bit, and every fault is one CheckpointError."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepinfer.engine.checkpoint.checkpoint_writer import write_checkpoint, write_safetensors
from deepinfer.engine.checkpoint.random_weights import random_tensors
from deepinfer.engine.checkpoint.safetensors_file import open_safetensors
from deepinfer.engine.checkpoint.weights import INDEX_NAME, open_checkpoint
from deepinfer.engine.model.config import ModelConfig
from deepinfer.errors import CheckpointError

TINY = json.loads((Path(__file__).parent / "data" / "tiny_config.json").read_text())
CONFIG = ModelConfig.from_dict(TINY)
TENSORS = random_tensors(CONFIG, seed=3)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    write_checkpoint(folder, CONFIG, TENSORS, max_shard_bytes=500_000)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A private copy of a sharded checkpoint to damage."""
    return Path(shutil.copytree(written, tmp_path / "model"))


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def read_header(path: Path) -> tuple[dict[str, Any], bytes]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write_header(path: Path, header: object, data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def edit_index(folder: Path, edit: Callable[[dict[str, str]], object]) -> None:
    index = json.loads((folder / INDEX_NAME).read_text())
    edit(index["weight_map"])
    (folder / INDEX_NAME).write_text(json.dumps(index))


# --- what is right ---


def test_sharded_checkpoint_comes_back_bit_for_bit(written: Path) -> None:
    assert len(shards(written)) > 3
    checkpoint = open_checkpoint(written)
    loaded = checkpoint.load()
    assert checkpoint.config == CONFIG
    assert loaded.keys() == TENSORS.keys()
    assert all(same_bits(loaded[name], TENSORS[name]) for name in TENSORS)
    index = json.loads((written / INDEX_NAME).read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in TENSORS.values())


def test_single_file_checkpoint_comes_back_and_replaces_a_sharded_one(folder: Path) -> None:
    write_checkpoint(folder, CONFIG, TENSORS)
    assert (folder / "model.safetensors").exists() and not (folder / INDEX_NAME).exists()
    loaded = open_checkpoint(str(folder)).load()
    assert all(same_bits(loaded[name], TENSORS[name]) for name in TENSORS)


def test_writing_twice_gives_the_same_bytes(written: Path, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, CONFIG, random_tensors(CONFIG, seed=3), max_shard_bytes=500_000)
    assert all(
        (tmp_path / file.name).read_bytes() == file.read_bytes() for file in written.iterdir()
    )


def test_only_wanted_tensors_are_loaded(written: Path) -> None:
    loaded = open_checkpoint(written).load(lambda name: ".experts.3." in name)
    assert loaded.keys() == {name for name in TENSORS if ".experts.3." in name}


def test_cpu_tensors_are_mapped_not_copied(written: Path) -> None:
    checkpoint = open_checkpoint(written)
    pointers = [checkpoint.tensor("embed.weight").data_ptr() for _ in range(2)]
    assert pointers[0] == pointers[1]


def test_writing_into_a_loaded_tensor_leaves_the_file_alone(folder: Path) -> None:
    before = [path.read_bytes() for path in shards(folder)]
    open_checkpoint(folder).tensor("embed.weight").zero_()
    assert [path.read_bytes() for path in shards(folder)] == before
    assert same_bits(open_checkpoint(folder).tensor("embed.weight"), TENSORS["embed.weight"])


def test_misaligned_tensors_are_read(tmp_path: Path) -> None:
    path = tmp_path / "odd.safetensors"
    values = torch.arange(6, dtype=torch.float32)
    header = {
        "a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
        "b": {"dtype": "F32", "shape": [2, 3], "data_offsets": [3, 27]},
        "empty": {"dtype": "BF16", "shape": [0, 4], "data_offsets": [27, 27]},
    }
    write_header(path, header, b"abc" + values.numpy().tobytes())
    file = open_safetensors(path)
    assert torch.equal(file.tensor("b"), values.view(2, 3))
    assert file.tensor("empty").shape == (0, 4)


def test_a_file_larger_than_memory_is_mapped(tmp_path: Path) -> None:
    """An Engram table has 98 GB; a mapping that reserves memory fails on most machines."""
    path, rows = tmp_path / "sparse.safetensors", 2**28
    header = {
        "table": {"dtype": "F8_E4M3", "shape": [rows, 1024], "data_offsets": [0, rows * 1024]}
    }
    write_header(path, header, b"")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + rows * 1024)  # a hole: takes no disk
    table = open_safetensors(path).tensor("table")
    assert table.shape == (rows, 1024) and not table[-1].float().any()


def test_vision_tensors_are_passed_over_and_the_image_bias_may_be_absent(tmp_path: Path) -> None:
    tensors = {name: t for name, t in TENSORS.items() if not name.endswith("bias_vl")}
    write_checkpoint(tmp_path, CONFIG, tensors | {"vision.patch.weight": torch.zeros(3)})
    assert open_checkpoint(tmp_path).load().keys() == tensors.keys()


def test_draft_stages_are_inferred_from_the_tensors(folder: Path) -> None:
    raw = json.loads((folder / "config.json").read_text())
    del raw["text_config"]["num_nextn_predict_layers"]
    (folder / "config.json").write_text(json.dumps(raw))
    assert open_checkpoint(folder).config == CONFIG


# --- wrong tensors ---

ONE_PER_KIND = [
    "embed.weight",  # BF16 table
    "layers.0.attn_norm.weight",  # BF16 vector
    "layers.1.attn.wq_b.weight",  # FP8
    "layers.1.attn.wq_b.scale",  # E8M0
    "layers.2.ffn.experts.5.w2.weight",  # packed FP4
    "layers.2.ffn.experts.5.w2.scale",
    "layers.3.hc_ffn_fn",  # F32
    "layers.2.engram.embed.scale",
    "layers.3.attn.compressor.wkv.weight",
    "layers.4.attn.indexer.weights_proj.weight",
    "mtp.1.markov_head.head.weight",
]
DTYPES = ["BF16", "F32", "F8_E4M3", "F8_E8M0", "I8", "F16"]


def shard_of(folder: Path, name: str) -> Path:
    return next(path for path in shards(folder) if name in read_header(path)[0])


@pytest.mark.parametrize("name", ONE_PER_KIND)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    tensors = {other: tensor for other, tensor in TENSORS.items() if other != name}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    with pytest.raises(CheckpointError, match=rf"{tmp_path}.*'{name}' is missing; .*\["):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ONE_PER_KIND)
def test_a_wrong_shape_is_named_with_file_and_expectation(folder: Path, name: str) -> None:
    path = shard_of(folder, name)
    header, data = read_header(path)
    right = header[name]["shape"]
    header[name]["shape"] = [1, *right]
    write_header(path, header, data)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    message = str(caught.value)
    assert str(path) in message and repr(name) in message
    assert str([1, *right]) in message and f"expected {str(TENSORS[name].dtype)[6:]}" in message


@pytest.mark.parametrize("name", ONE_PER_KIND)
def test_a_wrong_dtype_is_named_with_file_and_expectation(folder: Path, name: str) -> None:
    path = shard_of(folder, name)
    header, data = read_header(path)
    same_size = {"BF16": "F16", "F32": "I32", "F8_E4M3": "I8", "F8_E8M0": "U8", "I8": "F8_E4M3"}
    header[name]["dtype"] = same_size[header[name]["dtype"]]
    write_header(path, header, data)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    message = str(caught.value)
    assert str(path) in message and repr(name) in message
    assert f"expected {str(TENSORS[name].dtype)[6:]}" in message


def test_an_unexpected_tensor_is_named(tmp_path: Path) -> None:
    tensors = TENSORS | {"layers.0.attn.wq_c.weight": torch.zeros(2)}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    with pytest.raises(CheckpointError, match=r"model\.safetensors: unexpected .*wq_c.weight'"):
        open_checkpoint(tmp_path)


def test_a_misnamed_tensor_is_reported_with_its_likely_name(tmp_path: Path) -> None:
    tensors = dict(TENSORS)
    tensors["model.norm.weight"] = tensors.pop("norm.weight")
    write_safetensors(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    with pytest.raises(CheckpointError, match=r"'norm\.weight'.*'model\.norm\.weight'"):
        open_checkpoint(tmp_path)


def test_the_writer_refuses_what_the_loader_would(tmp_path: Path) -> None:
    wrong = TENSORS | {"norm.weight": TENSORS["norm.weight"].float()}
    with pytest.raises(CheckpointError, match=r"norm\.weight.*float32.*expected bfloat16"):
        write_checkpoint(tmp_path, CONFIG, wrong)
    assert list(tmp_path.iterdir()) == []


# --- wrong files and indices ---


def test_a_missing_shard_is_named(folder: Path) -> None:
    path = shards(folder)[2]
    path.unlink()
    with pytest.raises(CheckpointError, match=rf"{path} does not exist, but .*index\.json lists"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda m: m.update({"norm.weight": "../../etc/x.safetensors"}), "name of a"),
        (lambda m: m.update({"norm.weight": 3}), "weight_map.*=3; expected"),
        (lambda m: m.update({"norm.weight": "nul\0.safetensors"}), "does not exist"),
        (lambda m: m.clear(), "weight_map is missing or empty"),
        (lambda m: m.pop("norm.weight"), "'norm.weight' of .* is not listed"),
        (lambda m: m.update({"ghost": "model-00001-of-00006.safetensors"}), "'ghost' is not in"),
    ],
    ids=["outside", "number", "nul", "empty", "unlisted", "ghost"],
)
def test_a_bad_index_is_refused(
    folder: Path, edit: Callable[[dict[str, str]], object], message: str
) -> None:
    edit_index(folder, edit)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder)


def test_a_tensor_in_two_shards_is_refused(folder: Path) -> None:
    last = shards(folder)[-1]
    header, _ = read_header(last)
    tensors = {name: TENSORS[name] for name in header if name != "__metadata__"}
    write_safetensors(last, tensors | {"embed.weight": TENSORS["embed.weight"]})
    with pytest.raises(CheckpointError, match=r"'embed\.weight' of .*exists twice"):
        open_checkpoint(folder)


def test_a_folder_without_parts_says_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json does not exist"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    with pytest.raises(CheckpointError, match="holds no weights"):
        open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="is a file"):
        open_checkpoint(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match="does not exist"):
        open_checkpoint(tmp_path / "nowhere" / "deep")


def test_a_shard_that_is_a_folder_is_refused(folder: Path) -> None:
    path = shards(folder)[0]
    path.unlink()
    path.mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_checkpoint(folder)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(which=st.integers(0, 5), position=st.integers(0, 30_000), mask=st.integers(1, 255))
def test_a_flipped_header_byte_of_a_checkpoint_never_escapes(
    written: Path, tmp_path: Path, which: int, position: int, mask: int
) -> None:
    folder = tmp_path / "linked"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for path in written.iterdir():
        (folder / path.name).symlink_to(path)
    path = shards(folder)[which]
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[:8], "little")
    data[position % (8 + length)] ^= mask
    path.unlink()
    path.write_bytes(data)
    try:
        loaded = open_checkpoint(folder).load()
    except CheckpointError:
        return
    # Only the metadata or the padding can change without notice.
    assert all(same_bits(loaded[name], TENSORS[name]) for name in TENSORS)
