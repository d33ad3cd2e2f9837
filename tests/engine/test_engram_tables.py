"""Where Engram tables go: on the device, or where it reads them on the host, or the CPU does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from deepinfer.engine.checkpoint import engram_tables
from deepinfer.engine.checkpoint.engram_tables import place_tables
from deepinfer.engine.checkpoint.weights import Checkpoint, open_checkpoint
from deepinfer.engine.memory import registered_pages
from deepinfer.engine.memory.host_memory import taking_host_memory
from deepinfer.engine.model.model import Model
from deepinfer.engine.model.tensors import is_engram_table

FOLDER = Path(__file__).parents[1] / "goldens" / "tiny-a" / "checkpoint"
CUDA = "cuda"


class Host:
    """A machine whose driver takes files, other memory, or neither."""

    def __init__(self, patch: pytest.MonkeyPatch, *, takes: str, available: int) -> None:
        self.asked: list[str] = []
        self._takes = takes
        patch.setattr(engram_tables, "MOST_DEVICE_BYTES", 1000)
        patch.setattr(engram_tables, "available_host_bytes", lambda: available)
        patch.setattr(engram_tables, "map_for_gpu", self._map)
        patch.setattr(engram_tables, "empty_for_gpu", self._empty)

    def _map(self, path: Path, begin: int, num_bytes: int, device: str) -> Tensor | None:
        self.asked.append("file")
        if "file" not in self._takes:
            return None
        data = bytearray(path.read_bytes()[begin : begin + num_bytes])
        return torch.frombuffer(data, dtype=torch.uint8)

    def _empty(self, num_bytes: int, device: str) -> Tensor | None:
        self.asked.append("copy")
        return torch.zeros(num_bytes, dtype=torch.uint8) if "copy" in self._takes else None


@pytest.fixture
def checkpoint() -> Checkpoint:
    return open_checkpoint(FOLDER)


def stored_tables(checkpoint: Checkpoint) -> dict[str, Tensor]:
    return checkpoint.load(is_engram_table)


def is_same(found: Tensor, stored: Tensor) -> bool:
    same_form = found.dtype == stored.dtype and found.shape == stored.shape
    return same_form and torch.equal(found.view(torch.uint8), stored.view(torch.uint8))


def test_small_tables_go_to_the_device(checkpoint: Checkpoint) -> None:
    placed = place_tables(checkpoint, "meta")
    assert placed.note is None and placed.tensors.keys() == stored_tables(checkpoint).keys()
    assert all(tensor.is_meta for tensor in placed.tensors.values())


@pytest.mark.parametrize(
    "takes, may_copy, note",
    [
        ("file", True, "GB in host memory, read by the GPU from the mapped files"),
        ("copy", True, "GB in host memory, read by the GPU from a pinned copy"),
        ("copy", False, "looked up by the CPU, so steps are no CUDA graphs and slower: the driver"),
        ("", True, "looked up by the CPU, so steps are no CUDA graphs and slower: the driver"),
    ],
)
def test_large_tables_lie_where_the_gpu_reads_them(
    takes: str, may_copy: bool, note: str, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    Host(monkeypatch, takes=takes, available=10**12)
    placed = place_tables(checkpoint, CUDA, may_copy=may_copy)
    assert placed.note is not None and note in placed.note
    for name, stored in stored_tables(checkpoint).items():
        assert is_same(placed.tensors[name], stored), name
        is_mapped = placed.tensors[name].data_ptr() == stored.data_ptr()
        assert is_mapped == ("looked up" in note), name


def test_a_host_without_room_is_not_filled(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(monkeypatch, takes="file copy", available=5 * 10**9)
    placed = place_tables(checkpoint, CUDA)
    assert not host.asked and placed.note is not None
    assert placed.note.endswith("looked up by the CPU, so steps are no CUDA graphs and slower: "
                                "the host has 5.0 GB free")  # fmt: skip


def test_engines_of_one_host_make_as_many_copies_as_it_has_room_for(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas start at the same time: one has taken the last room after another has seen it."""
    host = Host(monkeypatch, takes="copy", available=10**12)

    @contextmanager
    def after_another() -> Iterator[None]:
        monkeypatch.setattr(engram_tables, "available_host_bytes", lambda: 5 * 10**9)
        with taking_host_memory():
            yield

    monkeypatch.setattr(engram_tables, "taking_host_memory", after_another)
    placed = place_tables(checkpoint, CUDA)
    assert set(host.asked) == {"file"} and placed.note is not None
    assert placed.note.endswith("the host has 5.0 GB free")


@pytest.mark.parametrize("device, note", [("cpu", None), ("meta", "looked up by the CPU")])
def test_others_leave_them_mapped(
    device: str, note: str | None, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(monkeypatch, takes="file copy", available=10**12)
    placed = place_tables(checkpoint, device)
    assert not host.asked
    assert placed.note is note is None or note in placed.note
    for name, stored in stored_tables(checkpoint).items():
        assert placed.tensors[name].data_ptr() == stored.data_ptr()


@pytest.mark.parametrize("most", [1000, 4 * 2**30])
def test_what_kernels_do_not_reach_forbids_graphs(
    most: int, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engram_tables, "MOST_DEVICE_BYTES", most)
    tensors = checkpoint.load() | place_tables(checkpoint, "meta").tensors
    token_map = torch.zeros(checkpoint.config.vocab_size, dtype=torch.int64)
    model = Model(checkpoint.config, tensors, device="meta", token_map=token_map)
    assert model.can_capture == (most > 1000)
    for engram in model.engrams.values():
        assert engram.table.is_meta == engram.scales.is_meta == model.can_capture
        assert engram.wkv.values.is_meta


class Driver:
    """One that takes pages or refuses them, and remembers what it has."""

    def __init__(self, patch: pytest.MonkeyPatch, *, refuses: bool = False) -> None:
        self.held: dict[int, tuple[int, int]] = {}
        self.cuMemHostRegister_v2: Callable[..., int] = self._register
        self.cuMemHostUnregister: Callable[..., int] = self._unregister
        self._refuses = refuses
        patch.setattr(registered_pages, "driver", lambda: self)
        patch.setattr(torch.cuda, "device", lambda device: torch.device("cpu"))
        patch.setattr(torch.cuda, "synchronize", lambda: None)

    def _register(self, address: SimpleNamespace, size: SimpleNamespace, flags: int) -> int:
        if not self._refuses:
            self.held[address.value] = (size.value, flags)
        return 801 if self._refuses else 0

    def _unregister(self, address: SimpleNamespace) -> int:
        del self.held[address.value]
        return 0


@pytest.mark.parametrize("begin", [0, 10, 4096, 5000])
def test_a_part_of_a_file_is_registered_as_long_as_it_is_used(
    begin: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = torch.randint(0, 256, (9000,), dtype=torch.uint8)
    (tmp_path / "file").write_bytes(data.numpy().tobytes())
    driver = Driver(monkeypatch)
    mapped = registered_pages.map_for_gpu(tmp_path / "file", begin, 3000, CUDA)
    assert mapped is not None and torch.equal(mapped, data[begin : begin + 3000])
    [(address, (size, flags))] = driver.held.items()
    assert address == mapped.data_ptr() - begin % 4096 and size == 3000 + begin % 4096
    assert flags == 0xB
    part = mapped[100:].view(torch.int16)
    del mapped
    assert driver.held
    del part
    assert not driver.held


def test_memory_without_a_file_may_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    empty = registered_pages.empty_for_gpu(5000, CUDA)
    assert empty is not None and driver.held == {empty.data_ptr(): (5000, 0x3)}
    assert not empty.any()
    empty.fill_(7)
    del empty
    assert not driver.held


def test_refused_pages_are_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(bytes(100))
    Driver(monkeypatch, refuses=True)
    assert registered_pages.map_for_gpu(tmp_path / "file", 4, 10, CUDA) is None
    assert registered_pages.map_for_gpu(tmp_path / "file", 0, 101, CUDA) is None
    assert registered_pages.map_for_gpu(tmp_path / "none", 0, 1, CUDA) is None
    assert registered_pages.empty_for_gpu(100, CUDA) is None
    assert registered_pages.empty_for_gpu(2**60, CUDA) is None
