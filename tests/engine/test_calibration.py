"""Calibration: what is stored is applied, and damage is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from deepinfer.engine.speculation.calibration import CALIBRATION_FILE, SCHEMA, Calibration
from deepinfer.engine.speculation.draft_counters import DraftCounters, Stretches
from deepinfer.errors import CheckpointError

NEUTRAL = ((1.0, 0.0),) * 2


def test_without_a_file_confidence_is_taken_as_it_is(tmp_path: Path) -> None:
    calibration = Calibration.from_folder(tmp_path, 2)
    survival = calibration.survival(torch.tensor([[0.5, 0.5]]), torch.zeros(1, 2, 4), [True])
    assert survival.tolist() == [[0.5, 0.25]]


def test_greedy_rows_go_by_the_peak_of_the_draft_and_others_by_confidence() -> None:
    logits = torch.tensor([[3.0, 1.0, 0.0], [9.0, 0.0, 0.0]]).expand(2, 2, 3)
    confidence = torch.tensor([[0.5, 0.25]] * 2)
    survival = Calibration(NEUTRAL, NEUTRAL).survival(confidence, logits, [True, False])
    peak = logits[0].softmax(-1).amax(-1)
    torch.testing.assert_close(survival[0], peak.cumprod(0))
    torch.testing.assert_close(survival[1], torch.tensor([0.5, 0.125]))


@pytest.mark.parametrize("evidence", [0.0, 1.0, float("nan")])
def test_extreme_evidence_gives_chances_that_fall(evidence: float) -> None:
    calibration = Calibration(((0.3, 2.0), (2.0, -1.0)))
    confidence = torch.tensor([[evidence, 0.5]])
    first, second = calibration.survival(confidence, torch.zeros(1, 2, 4), [False])[0].tolist()
    assert 0.0 <= second <= first <= 1.0
    assert (first == 0.0) == (evidence != evidence)


@pytest.mark.parametrize(
    "stored",
    [
        {"schema": "other", "sampled": NEUTRAL, "greedy": NEUTRAL},
        {"schema": SCHEMA, "sampled": NEUTRAL},
        {"schema": SCHEMA, "sampled": NEUTRAL[:1], "greedy": NEUTRAL},
        {"schema": SCHEMA, "sampled": [[1, 2, 3], [1, 2, 3]], "greedy": NEUTRAL},
        {"schema": SCHEMA, "sampled": [[1.0, float("nan")]] * 2, "greedy": NEUTRAL},
        [],
    ],
)
def test_a_file_that_does_not_fit_is_named(tmp_path: Path, stored: object) -> None:
    (tmp_path / CALIBRATION_FILE).write_text(json.dumps(stored))
    with pytest.raises(CheckpointError, match=CALIBRATION_FILE):
        Calibration.from_folder(tmp_path, 2)


def test_the_calibration_error_compares_chances_with_what_happened() -> None:
    counters = DraftCounters()
    assert counters.calibration_error() is None
    for row in range(10):
        tokens = [[7, 8]] if row < 6 else [[7]]
        counters.add(5, [1], tokens, [[0.9]])
    assert counters.calibration_error() == pytest.approx(0.3)
    assert counters.verified_per_position == [10] and counters.accepted_per_position == [6]


def test_a_mean_over_time_stays_short_and_keeps_its_total() -> None:
    stretches = Stretches()
    for step in range(1000):
        stretches.add(step % 3, 1)
    means = stretches.means()
    assert 32 <= len(means) <= 64
    assert all(0.8 <= mean <= 1.2 for mean in means)
