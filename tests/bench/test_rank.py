"""One rank's share: its sizes, what it receives, and steps of a small model."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from deepinfer.bench import rank_decode, rank_model, rank_prefill, rank_steps, rank_tensors
from deepinfer.bench.plan import BenchPlan
from deepinfer.bench.rank_decode import begin, measure_decode
from deepinfer.bench.rank_drafts import AssumedChances, auto_steps
from deepinfer.bench.rank_model import RankModel
from deepinfer.bench.rank_prefill import batches, measure_prefill
from deepinfer.bench.rank_steps import measure_rank
from deepinfer.bench.rank_tensors import RandomTensors, rank_config
from deepinfer.engine.memory.weight_bytes import weight_bytes
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.scheduling.schedule import PrefillBatch, Save
from deepinfer.errors import ConfigError

FLASH = ModelConfig.flash()
TINY = ModelConfig.from_file(Path(__file__).parents[1] / "goldens" / "tiny-a" / "checkpoint")


def test_engram_rows_are_shared_out() -> None:
    whole, part = sum(FLASH.engram_num_embeddings), sum(rank_config(FLASH, 8).engram_num_embeddings)
    assert part == pytest.approx(whole / 8, rel=1e-3)


def test_random_tensors_have_the_checkpoints_forms() -> None:
    tensors = RandomTensors(TINY, 0, "cpu")
    for name in list(tensors)[:200]:
        tensor = tensors[name]
        if tensor.dtype == torch.int8:
            continue
        assert bool(tensor.float().isfinite().all()), name


@pytest.mark.parametrize("ranks", [1, 4])
def test_steps_of_a_small_model(ranks: int) -> None:
    plan = BenchPlan(
        requests=(1, 3), context=100, tokens=(50, 150), drafts=(2,), decode_ranks=(ranks,),
        prefill_ranks=(ranks,), num_steps=2, modes=(),
    )  # fmt: skip
    rank = RankModel.make(TINY, ranks=ranks, context=100, num_slots=3, seed=0, device="cpu")
    rows = [*measure_decode(plan, TINY, rank), *measure_prefill(plan, TINY, rank)]
    assert [(row.phase, row.size, row.ranks) for row in rows] == [
        ("decode", 1, ranks), ("decode", 3, ranks), ("prefill", 50, ranks),
        ("prefill", 150, ranks),
    ]  # fmt: skip
    for row in rows:
        assert min(row.step_s) > 0 and (row.link_s > 0) == (ranks > 1)


def test_every_kind_of_row_has_a_name_of_its_own() -> None:
    """Drafts, modes and routings: what is measured beside plain rows."""
    plan = BenchPlan(
        requests=(2,), context=100, tokens=(100,), drafts=(3, None), num_steps=1,
        decode_ranks=(4,), prefill_ranks=(4,),
    )  # fmt: skip
    rank = RankModel.make(
        TINY, ranks=4, context=100, num_slots=2, seed=0, device="cpu", num_redundant=1
    )
    heard: list[str] = []
    rows = []
    for part in (plan, dataclasses.replace(plan, drafts=(3,), routing=("balanced",))):
        for measure in (measure_decode, measure_prefill):
            for row in measure(part, TINY, rank, heard.append):
                assert heard[-1] == row.name, "each is named before it is measured"
                rows.append(row)
    assert len(heard) == len(rows)
    assert [row.name for row in rows] == [
        "2 requests, 3 drafts", "2 requests, auto", "100 tokens", "100 tokens, exact",
        "100 tokens, batch-invariant", "2 requests, 3 drafts, balanced", "100 tokens, balanced",
    ]  # fmt: skip
    fixed, auto, window, exact, *_ = rows
    assert fixed.limit is not None and fixed.num_tokens == fixed.limit.num_tokens
    assert auto.accepted_length is not None
    assert auto.num_tokens == pytest.approx(2 * auto.accepted_length) and auto.num_drafts <= 3
    assert window.limit is not None and exact.limit is not None
    assert exact.limit.local_s > window.limit.local_s


def test_rows_stand_beside_the_limit_of_their_form_of_experts() -> None:
    plan = BenchPlan(requests=(2,), context=100, tokens=(100,), drafts=(2,), num_steps=1, modes=())
    stored = RankModel.make(TINY, ranks=2, context=100, num_slots=2, seed=0, device="cpu")
    recast = dataclasses.replace(stored, experts_as_fp8=True)
    for measure in (measure_decode, measure_prefill):
        [fp4], [fp8] = (list(measure(plan, TINY, rank)) for rank in (stored, recast))
        assert (fp4.experts_as_fp8, fp8.experts_as_fp8) == (False, True)
        assert fp4.limit is not None and fp8.limit is not None
        assert fp4.limit.work.weight_bytes < fp8.limit.work.weight_bytes


def test_chunks_end_where_rings_are_saved_without_spare_slots() -> None:
    """As in the scheduler: every token once."""
    rank = RankModel.make(TINY, ranks=1, context=300, num_slots=2, seed=0, device="cpu")
    states = rank.prompts([300, 300], None)
    for state in states:
        state.boundaries = (128,)
    found = list(batches(states))
    first, second = [Save(128, 0)], [Save(128, 1)]
    assert _spans(found) == [
        [(0, 128, first)], [(128, 300, []), (0, 128, second)], [(128, 300, [])],
    ]  # fmt: skip
    assert all(chunk.is_last for chunk in found[-1].chunks)
    [both] = _spans(list(batches(states, [7, 8])))
    assert both == [(0, 300, [Save(128, 8)]), (0, 300, [Save(128, 7)])]
    assert _spans(list(batches(states, [7]))) == [
        [(0, 300, [Save(128, 7)]), (0, 128, second)], [(128, 300, [])],
    ]  # fmt: skip


def _spans(batches: list[PrefillBatch]) -> list[list[tuple[int, int, list[Save]]]]:
    return [[(c.start, c.end, list(c.saves)) for c in batch.chunks] for batch in batches]


@pytest.mark.parametrize(
    "fit, wanted",
    [
        (300, [(False, 256, [("decode", 1), ("prefill", 64)]),
               (True, 256, [("decode", 5), ("prefill", 8192)])]),
        (100, [(False, 256, [("decode", 1), ("decode", 5), ("prefill", 64)]),
               (True, 1, [("prefill", 8192)])]),
    ],
)  # fmt: skip
def test_every_row_is_measured_with_the_form_of_experts_that_suits_it(
    fit: int, wanted: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 requests with 1 or 5 drafts bring each expert 64 or 192 rows; ``fit`` find room beside
    weights in FP8."""
    made: list[tuple[bool, int, list[tuple[str, int]]]] = []

    def make(*_: object, experts_as_fp8: bool, num_slots: int, **rest: object) -> object:
        made.append((experts_as_fp8, num_slots, []))
        return SimpleNamespace(
            experts_as_fp8=experts_as_fp8, num_slots=num_slots, ranks=8, present=1,
            share=SimpleNamespace(),
            worker=lambda *_, **__: SimpleNamespace(piece_keys=None),
        )  # fmt: skip

    def found(name: str, *_: object) -> object:
        made[-1][2].append(("decode" if "drafts" in name else "prefill", int(name.split()[-2])))
        return name

    monkeypatch.setattr(
        rank_steps, "num_that_fit", lambda *_, experts_as_fp8: fit if experts_as_fp8 else 300
    )
    monkeypatch.setattr(rank_steps, "is_hopper", lambda device: True)
    monkeypatch.setattr(rank_steps.RankModel, "make", make)
    monkeypatch.setattr(rank_decode, "_fixed", lambda *given: found(given[-1]))
    monkeypatch.setattr(rank_prefill, "_row", lambda *given: found(given[-1].replace(",", "")))
    plan = BenchPlan(requests=(256,), drafts=(1, 5), tokens=(64, 8192), modes=())
    assert len(list(measure_rank(plan, FLASH, ["cuda"]))) == 4
    assert made == wanted


def test_too_many_requests_are_refused_with_the_number_that_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rank_steps, "num_that_fit", lambda *sizes, **form: 3)
    plan = BenchPlan(phases=("decode",), requests=(2, 5), context=100, decode_ranks=(2,))
    with pytest.raises(ConfigError, match=r"5 requests of 100 tokens .* 3 requests fit; ask for"):
        list(measure_rank(plan, TINY, ["cpu"]))


def test_tables_go_to_the_host_where_only_that_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows say so, and how large the tables are that stand for the rank's."""

    def fit(*_: object, experts_as_fp8: bool, tables_on_host: bool = False) -> int:
        return 5 if tables_on_host else 3

    pinned: list[int] = []

    def pin(table: torch.Tensor) -> torch.Tensor:
        pinned.append(table.nbytes)
        return table

    monkeypatch.setattr(rank_steps, "num_that_fit", fit)
    monkeypatch.setattr(rank_tensors, "_pinned", pin)
    monkeypatch.setattr(rank_model, "HOST_TABLE_BYTES", 20_000)
    plan = BenchPlan(
        phases=("decode",), requests=(1, 5), context=100, drafts=(2,), decode_ranks=(2,),
        num_steps=1,
    )  # fmt: skip
    rows = list(measure_rank(plan, TINY, ["cpu"]))
    assert [row.host_table_bytes for row in rows] == [sum(pinned)] * 2
    assert 0 < sum(pinned) < weight_bytes(rank_config(TINY, 2)).tables
    rows = list(measure_rank(dataclasses.replace(plan, requests=(1, 3)), TINY, ["cpu"]))
    assert [row.host_table_bytes for row in rows] == [0, 0]


def test_a_smaller_table_on_the_host_keeps_its_form() -> None:
    small = rank_config(FLASH, 4, 2**30)
    assert weight_bytes(small).tables == pytest.approx(2**30, rel=0.02)
    assert rank_config(FLASH, 384, 2**32) == rank_config(FLASH, 384)


def test_sizes_beyond_the_room_are_left_out() -> None:
    rank = RankModel.make(TINY, ranks=2, context=100, num_slots=2, seed=0, device="cpu")
    plan = BenchPlan(phases=("decode",), requests=(2, 5), context=100, drafts=(3,), num_steps=1)
    plan = dataclasses.replace(plan, decode_ranks=(2,))
    assert [row.size for row in measure_decode(plan, TINY, rank)] == [2]


def test_families_of_kernels_are_their_folders() -> None:
    """In a process of its own: the kernels of this one may be interpreted."""
    families = ("attention", "hyper_connection", "rows")
    imports = "\n".join(f"import deepinfer.kernels.{name}.triton_kernel" for name in families)
    code = f"{imports}\nfrom deepinfer.bench.kernel_parts import kernel_families\n"
    code += "import json\nprint(json.dumps(kernel_families()))"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["attention_kernel"] == "attention"
    assert found["stream_kernel"] == "hyper_connection"
    assert found["row_kernel"] == "rows"


def test_auto_verifies_what_the_planner_chooses() -> None:
    """Tokens per step stay within what so many drafts could give."""
    small = dataclasses.replace(TINY, dspark_block_size=2)  # times of fewer depths
    rank = RankModel.make(small, ranks=2, context=100, num_slots=2, seed=0, device="cpu")
    step = rank.worker(2)
    found = auto_steps(step, begin(step, rank.decoding([100] * 2), 2), 0.75, 5)
    assert len(found.timed.step_s) == 5 and min(found.timed.step_s) > 0
    assert 0 <= found.mean_drafts <= 2 and 1 <= found.mean_tokens <= 1 + found.mean_drafts


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.75, 1.0])
def test_assumed_chances_have_the_mean_that_was_asked_for(acceptance: float) -> None:
    torch.manual_seed(0)
    chances = AssumedChances(acceptance=acceptance).survival(
        torch.zeros(20_000, 2), torch.ones(0), ()
    )
    first, both = chances.mean(0).tolist()
    assert first == pytest.approx(acceptance, abs=0.01)
    assert both == pytest.approx(acceptance**2, abs=0.01)
