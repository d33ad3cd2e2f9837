"""Damaged safetensors files: each is refused with the reason, or its tensors lie inside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from deepinfer.engine.checkpoint.checkpoint_writer import write_safetensors
from deepinfer.engine.checkpoint.safetensors_file import open_safetensors
from deepinfer.errors import CheckpointError


def write_header(path: Path, header: object, data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("small") / "x.safetensors"
    tensors = {
        "a": torch.arange(4.0),
        "b": torch.ones(2, 3, dtype=torch.bfloat16),
        "c": torch.ones(2, 2).to(torch.float8_e4m3fn),
        "d": torch.full((3,), 127, dtype=torch.uint8).view(torch.float8_e8m0fnu),
    }
    write_safetensors(path, tensors)
    return path.read_bytes()


def test_truncation_at_every_byte_is_refused(small_file: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for length in range(len(small_file)):
        path.write_bytes(small_file[:length])
        with pytest.raises(CheckpointError, match=r"x\.safetensors"):
            open_safetensors(path)
    path.write_bytes(small_file + b"\0")
    with pytest.raises(CheckpointError, match="1 bytes after the last tensor"):
        open_safetensors(path)


def use_or_refuse(path: Path) -> None:
    """A damaged file either gives CheckpointError or tensors that lie inside the file."""
    try:
        file = open_safetensors(path)
    except CheckpointError as error:
        assert path.name in str(error)
        return
    for name, entry in file.entries.items():
        assert entry.begin + entry.num_bytes <= path.stat().st_size
        assert file.tensor(name).nbytes == entry.num_bytes


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=4)
)
def test_flipped_bytes_never_escape(
    small_file: bytes, tmp_path: Path, flips: list[tuple[int, int]]
) -> None:
    data = bytearray(small_file)
    for position, mask in flips:
        data[position % len(data)] ^= mask
    path = tmp_path / "flipped.safetensors"
    path.write_bytes(data)
    use_or_refuse(path)


SIZES = st.integers(-2, 40) | st.integers() | st.floats() | st.none() | st.booleans()
ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(
            ["BF16", "F32", "F8_E4M3", "F8_E8M0", "I8", "F16", "F4", "", None, 3, ["BF16"]]
        ),
        "shape": st.lists(SIZES, max_size=3) | SIZES | st.just([2**40, 2**40, 2**40]),
        "data_offsets": st.lists(SIZES, max_size=3) | SIZES,
    },
)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    header=st.dictionaries(st.text(max_size=3), ENTRIES | SIZES | st.text(max_size=2), max_size=3)
    | st.lists(SIZES, max_size=2)
    | SIZES,
    data=st.binary(max_size=24),
)
@example(header={"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}, data=b"ab")
def test_any_header_is_used_or_refused(tmp_path: Path, header: object, data: bytes) -> None:
    path = tmp_path / "made.safetensors"
    write_header(path, header, data)
    use_or_refuse(path)


def entry(begin: int, end: int) -> dict[str, object]:
    return {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": entry(0, 6), "b": entry(4, 8)}, "'b' overlaps"),
        ({"a": entry(0, 3), "b": entry(5, 8)}, "'b' follows a gap"),
        ({"a": entry(0, 3), "b": entry(3, 9)}, "truncated: tensor 'b' ends at byte"),
        ({"a": entry(0, 8) | {"shape": [9]}}, "needs 9 bytes, data_offsets hold 8"),
        ({"a": entry(0, 8) | {"data_offsets": [8, 0]}}, "data_offsets"),
        ({"a": entry(0, 8) | {"dtype": "F4"}}, "dtype 'F4'; expected one of"),
        ([], "expected a JSON object"),
    ],
    ids=["overlap", "hole", "past the end", "size", "backwards", "dtype", "list"],
)
def test_header_faults_are_told_apart(tmp_path: Path, header: object, message: str) -> None:
    write_header(tmp_path / "x.safetensors", header, b"12345678")
    with pytest.raises(CheckpointError, match=message):
        open_safetensors(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    "text",
    [b'{"a":1,"a":2}', b"[" * 50_000, b'{"a":' + b"9" * 5000 + b"}", b"\xff\xfe", b"{"],
    ids=["duplicate", "deep", "huge number", "encoding", "open"],
)
def test_header_text_faults_are_checkpoint_errors(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(CheckpointError, match="corrupt header"):
        open_safetensors(path)


def test_a_huge_announced_header_is_not_allocated(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes((2**63).to_bytes(8, "little") + b"{}")
    with pytest.raises(CheckpointError, match=f"announce a header of {2**63}"):
        open_safetensors(path)
