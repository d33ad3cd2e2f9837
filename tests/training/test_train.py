"""The whole chain at toy size: legs, resuming, draft stages, export, loading the result."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from deepinfer.engine.checkpoint.weights import open_checkpoint
from deepinfer.engine.model.config import ModelConfig
from deepinfer.recipes.token_compression import token_compression
from deepinfer.recipes.tokenizer import Tokenizer
from training.batches import answer_weights, make_batch, pack_rows, padded_length
from training.corpus_files import TOKEN_MAP, save_tokens
from training.evaluate import replay_form
from training.export import checkpoint_tensors, load_checkpoint
from training.optimizer import orthogonalize
from training.parameters import effective_weights, new_masters
from training.train import learning_rate_scale, main

GOLDEN = Path(__file__).parents[1] / "goldens" / "tiny-a" / "checkpoint"


def write_data(folder: Path) -> None:
    """Counting documents: every token is one more than the one before."""
    generator = np.random.default_rng(3)
    folder.mkdir()
    np.save(folder / TOKEN_MAP, token_compression(Tokenizer.from_file(GOLDEN / "tokenizer.json")))
    for name, length in (("part-0", 30), ("long", 100), ("valid", 30), ("valid-long", 100)):
        firsts = generator.integers(10, 60, 60)
        documents = [np.r_[0, np.arange(first, first + length), 1] for first in firsts]
        save_tokens(folder / f"{name}.npy.xz", np.concatenate(documents).astype(np.uint16))


def run_leg(folder: Path, stage: str, steps: int, *more: str) -> list[dict[str, float]]:
    """One leg; returns its log."""
    arguments = [
        *(stage, "--model", str(GOLDEN), "--data", str(folder / "data")),
        *("--run", str(folder / "run"), "--out", str(folder / "out"), "--device", "cpu"),
        *("--max-steps", str(steps), "--leg-s", "1e9", "--total-steps", "20", "--log-every", "1"),
        *("--tokens-per-batch", "128", "--length", "64", "--long-length", "128"),
        *("--valid-batches", "1", *more),
    ]
    main(arguments)
    newest = max((folder / "out").glob(f"log-{stage}-*.jsonl"), key=lambda p: p.stat().st_mtime_ns)
    return [json.loads(line) for line in newest.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[str, list[dict[str, float]]]]:
    folder = tmp_path_factory.mktemp("training")
    write_data(folder / "data")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    logs = {
        "first": run_leg(folder, "backbone", 3),
        "second": run_leg(folder, "backbone", 1, "--keep-masters"),
        "draft": run_leg(folder, "draft", 2, "--export"),
    }
    torch.set_num_threads(threads)
    return folder, logs


def test_loss_falls_and_legs_join(trained: tuple[Path, dict[str, list[dict[str, float]]]]) -> None:
    _, logs = trained
    losses = [
        entry["loss"] for name in ("first", "second") for entry in logs[name] if "loss" in entry
    ]
    assert losses[-1] < losses[0] - 0.2
    assert logs["second"][0]["step"] == 4  # goes on counting
    assert losses[3] < losses[0]  # and does not start again
    drafts = [entry["draft"] for entry in logs["draft"] if "draft" in entry]
    assert drafts[-1] < drafts[0]


def test_the_exported_checkpoint_is_complete(
    trained: tuple[Path, dict[str, list[dict[str, float]]]],
) -> None:
    folder, _ = trained
    checkpoint = open_checkpoint(folder / "out" / "checkpoint")
    assert checkpoint.config == ModelConfig.from_file(GOLDEN)
    tensors = checkpoint.load()
    assert all(bool(t.float().isfinite().all()) for t in tensors.values() if t.dtype.itemsize > 1)


def test_compact_masters_resume_on_another_machine(
    trained: tuple[Path, dict[str, list[dict[str, float]]]], tmp_path: Path
) -> None:
    folder, _ = trained
    (tmp_path / "data").symlink_to(folder / "data")
    log = run_leg(tmp_path, "backbone", 1, "--compact", str(folder / "out"))
    assert log[0]["step"] == 5
    assert log[0]["loss"] < 5.9  # a fresh model of 384 tokens starts at about 6.2


@pytest.mark.slow
def test_fine_tuning_begins_with_the_exported_model(
    trained: tuple[Path, dict[str, list[dict[str, float]]]], tmp_path: Path
) -> None:
    """The held-out loss before the first update is that of the run that was exported, the drafts
    are as they were, and both go on learning."""
    folder, logs = trained
    (tmp_path / "data").symlink_to(folder / "data")
    start = ("--start", str(folder / "out" / "checkpoint"), "--peak", "0.3")
    log = run_leg(tmp_path, "backbone", 2, *start)
    exported = [entry for entry in logs["second"] if "valid" in entry]
    assert [entry for entry in log if entry["step"] == 0] == [e | {"step": 0} for e in exported]
    assert [e["valid"] for e in log if "valid" in e][-1] < exported[-1]["valid"]
    drafts = run_leg(tmp_path, "draft", 1, "--peak", "0.3")
    assert drafts[0]["draft"] < logs["draft"][0]["draft"]


def test_an_exported_checkpoint_is_a_fixed_point_of_the_rounding(
    trained: tuple[Path, dict[str, list[dict[str, float]]]],
) -> None:
    folder, _ = trained
    config = ModelConfig.from_file(GOLDEN)
    masters = new_masters(config, 7, torch.device("cpu"))
    load_checkpoint(folder / "out" / "checkpoint", masters)
    stored = open_checkpoint(folder / "out" / "checkpoint").load()
    again = checkpoint_tensors(masters, config)
    assert again.keys() == stored.keys()
    weights = effective_weights(masters, config)
    for name, master in masters.items():
        assert bool((weights[name].float() == master).all()), name


def test_packing_keeps_every_document_and_aligns_it() -> None:
    generator = np.random.default_rng(0)
    documents = [np.full(n, 7, dtype=np.uint16) for n in generator.integers(2, 60, 200)]
    rows = pack_rows(documents, 64, generator)
    assert sorted(len(d) for row in rows for d in row) == sorted(map(len, documents))
    assert all(sum(map(padded_length, row)) <= 64 for row in rows)
    batch = make_batch(rows, 64, generator, replay_share=0.5)
    assert int((batch.starts[batch.tokens == 7] % 8).max()) == 0
    assert bool((batch.segments >= batch.starts).all())
    assert float(batch.weights[batch.tokens == 2].sum()) == 0.0  # padding


def test_prompts_weigh_less_than_answers() -> None:
    document = np.array([0, 4, 50, 51, 5, 7, 60, 1], dtype=np.uint16)
    expected = [1, 0.2, 0.2, 0.2, 1, 1, 1, 1]
    np.testing.assert_allclose(answer_weights(document), expected, rtol=1e-6)
    assert (answer_weights(np.array([0, 50, 51, 1], dtype=np.uint16)) == 1).all()


def test_replay_form_scores_what_follows_the_window() -> None:
    document = np.full(100, 7, dtype=np.uint16)
    batch = make_batch([[document]], 128, np.random.default_rng(0), replay_share=0.0)
    changed, scored = replay_form(batch, 16)
    start = int(changed.segments[0, 99])
    assert 0 < start < 100 - 16
    assert not bool(scored[0, : start + 15].any()) and bool(scored[0, start + 15 : 100].all())


def test_schedule_and_orthogonalisation() -> None:
    scales = [learning_rate_scale(p) for p in (0.0, 0.4, 0.8, 0.9, 1.0)]
    assert 1.0 == scales[0] == scales[1] > scales[2] > scales[3] > scales[4] > 0
    matrices = torch.randn(3, 24, 40, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalize(matrices))
    assert float(values.min()) > 0.5 and float(values.max()) < 1.5
