"""Engram tables on the host give a GPU's answers, as graphs where the GPU reads them itself."""

from __future__ import annotations

import gc
from functools import cache
from pathlib import Path

import pytest
import torch
from gpu_models import FOLDERS, ask, greedy_requests, token_data

from deepinfer.engine.checkpoint import engram_tables
from deepinfer.engine.checkpoint.engram_tables import PlacedTables, place_tables
from deepinfer.engine.checkpoint.weights import open_checkpoint
from deepinfer.engine.config import EngineConfig
from deepinfer.engine.engine import LLMEngine
from deepinfer.engine.memory.registered_pages import empty_for_gpu, map_for_gpu
from deepinfer.engine.model.model import Model
from deepinfer.kernels.engram import engram_lookup
from deepinfer.kernels.engram.reference import engram_lookup_reference
from deepinfer.kernels.testing import assert_bitwise_equal

pytestmark = pytest.mark.gpu

DEVICE = "cuda"


def placed(place: str, patch: pytest.MonkeyPatch) -> PlacedTables:
    """The embedded model's tables in one of their places; skips if this machine has no such."""
    if place != "device":
        patch.setattr(engram_tables, "MOST_DEVICE_BYTES", 0)
    if place == "copy":
        patch.setattr(engram_tables, "map_for_gpu", lambda *_: None)
    if place == "unreached":
        patch.setattr(engram_tables, "available_host_bytes", lambda: 0)
    else:
        patch.setattr(engram_tables, "_HOST_SPARE_BYTES", 0)
    found = place_tables(open_checkpoint(FOLDERS["embedded"]), DEVICE)
    words = {"device": "", "file": "mapped files", "copy": "pinned copy", "unreached": "the CPU"}
    if place == "file" and "mapped files" not in (found.note or ""):
        pytest.skip("the driver registers no pages of files")
    assert words[place] in (found.note or "")
    return found


def answers(tables: PlacedTables, **fields: object) -> tuple[list[tuple[int, ...]], int]:
    """Greedy tokens of the first prompts, with drafts, and how many graphs there are."""
    checkpoint = open_checkpoint(FOLDERS["embedded"])
    tensors = checkpoint.load() | tables.tensors
    model = Model(checkpoint.config, tensors, device=DEVICE, token_map=token_data()["map_embedded"])
    values: dict[str, object] = {
        "num_blocks": 400, "max_model_len": 1024, "max_num_seqs": 8, "num_speculative_tokens": 2,
        "device": DEVICE,
    }  # fmt: skip
    config = EngineConfig(**(values | fields))  # type: ignore[arg-type]
    engine = LLMEngine(model, config, captures=model.can_capture)
    done = ask(engine, greedy_requests(12, 24))
    return [done[name].output_token_ids for name in sorted(done)], engine.stats().num_graphs


@cache
def answers_of_the_device() -> tuple[list[tuple[int, ...]], int]:
    with pytest.MonkeyPatch.context() as patch:
        return answers(placed("device", patch))


@pytest.mark.parametrize("place", ["copy", "unreached", "file"])
def test_answers_are_those_of_tables_on_the_device(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, num_graphs = answers_of_the_device()
    tables = placed(place, monkeypatch)
    assert not any(table.is_cuda for table in tables.tensors.values())
    found, num_found = answers(tables)
    assert found == expected
    assert num_graphs > 0 and num_found == (0 if place == "unreached" else num_graphs)


def test_drafts_are_chosen_without_graphs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a run with default settings, whose steps are timed at its start."""
    tables = placed("unreached", monkeypatch)
    found, num_graphs = answers(tables, schedule_drafts=True, num_speculative_tokens=5)
    assert num_graphs == 0 and [len(tokens) for tokens in found] == [24] * 12


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_captured_lookup_reads_what_is_on_the_host_then(kind: str, tmp_path: Path) -> None:
    """Rows of both ends, at a place in a file that no page begins with; again after the table was
    let go and mapped anew."""
    num_rows, width, begin = 100_000, 64, 4_098
    codes = torch.randint(0, 0x7F, (num_rows, width), dtype=torch.uint8)
    scales = torch.randint(110, 140, (num_rows, 2), dtype=torch.uint8).view(torch.float8_e8m0fnu)
    (tmp_path / "table").write_bytes(bytes(begin) + codes.numpy().tobytes())
    near = scales.to(DEVICE)
    rows = torch.randint(0, num_rows, (7, 24), device=DEVICE)
    rows[0, 0], rows[-1, -1] = 0, num_rows - 1
    for _ in range(2):
        if kind == "memory":
            flat = empty_for_gpu(codes.numel(), DEVICE)
            assert flat is not None
            flat.copy_(codes.flatten())
        else:
            flat = map_for_gpu(tmp_path / "table", begin, codes.numel(), DEVICE)
            if flat is None:
                pytest.skip("the driver registers no pages of files")
        table = flat.view(torch.float8_e4m3fn).view(num_rows, width)
        expected = engram_lookup_reference(table, scales, rows.cpu())
        assert_bitwise_equal(engram_lookup(table, near, rows).cpu(), expected)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = engram_lookup(table, near, rows)
        out.zero_()
        graph.replay()
        assert_bitwise_equal(out.cpu(), expected)
        if kind == "memory":
            flat.fill_(0x38)
            graph.replay()
            expected = engram_lookup_reference(table, scales, rows.cpu())
            assert_bitwise_equal(out.cpu(), expected)
        torch.cuda.synchronize()
        del graph, flat, table
        gc.collect()
