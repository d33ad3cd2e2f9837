"""Fits the calibration of draft acceptance on held-out prompts, and stores it beside the weights.

python -m training.calibrate recipes/tiny

Per draft position, a logistic regression of "accepted, given that all before were" on the logit of the evidence: the
confidence head's output for sampled answers, the draft's own maximum probability for greedy ones.  Then each
position's two parameters are adjusted to minimize the calibration error of survival.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from training.answers import fact
from training.conversations import asked_story
from training.grammar import Writer
from training.sums import arithmetic
from training.tasks import task

from deepinfer.engine.checkpoint.weights import open_checkpoint
from deepinfer.engine.execution.decode_stages import DecodeResult
from deepinfer.engine.speculation.calibration import CALIBRATION_FILE, SCHEMA, Calibration, Scales
from deepinfer.engine.speculation.draft_counters import NUM_BINS
from deepinfer.engine.types import SamplingParams
from deepinfer.loading import LoadedModel, load_model
from deepinfer.rows.row_stream import RowStream

SEED = "calibration"
NUM_PROMPTS = 160
MAX_TOKENS = 128
NEWTON_STEPS = 30
RIDGE = 1.0
FACTORS = np.linspace(0.5, 2.0, 16)
OFFSETS = np.linspace(-1.0, 1.0, 21)

Rows = NDArray[np.floating[Any]]


def prompts(seed: str, count: int) -> list[dict[str, Any]]:
    """60 % stories, the rest facts, sums and tasks; other seeds than the corpus's."""
    writer = Writer(seed)
    kinds = [asked_story] * 6 + [fact, arithmetic, arithmetic, task]
    return [{"prompt": kinds[i % len(kinds)](writer)[0]} for i in range(count)]


def collect(model: str, rows: list[dict[str, Any]], temperature: float) -> tuple[Rows, Rows]:
    """The raw evidence of every draft, [N, B], and whether it was accepted together with all before it,
    [N, B]; NaN for drafts that were not verified."""
    evidence: list[list[float]] = []
    survived: list[list[float]] = []

    def observe(result: DecodeResult) -> None:
        for chances, new in zip(result.survival, result.tokens, strict=True):
            padding = [np.nan] * (block - len(chances))
            before = [1.0, *chances[:-1]]
            evidence.append(
                [c / b if b else 0.0 for c, b in zip(chances, before, strict=False)] + padding
            )
            survived.append([float(k < len(new) - 1) for k in range(len(chances))] + padding)

    block = open_checkpoint(model).config.dspark_block_size
    unscaled: Scales = ((1.0, 0.0),) * block
    loaded = load_model(
        model, {"max_num_seqs": 32, "schedule_drafts": False}, device="cpu",
        calibration=Calibration(unscaled, unscaled), observer=observe,
    )  # fmt: skip
    answer(loaded, rows, SamplingParams(temperature=temperature, max_tokens=MAX_TOKENS))
    return np.asarray(evidence), np.asarray(survived)


def answer(loaded: LoadedModel, rows: list[dict[str, Any]], sampling: SamplingParams) -> None:
    """Answer all rows and discard the answers."""
    stream = RowStream(
        loaded.engine, loaded.tokenizer, max_model_len=loaded.engine.max_model_len,
        vocab_size=loaded.config.vocab_size, max_in_flight=64, seed=0,
    )  # fmt: skip
    for _ in stream.run((number, row, sampling) for number, row in enumerate(rows)):
        pass


def fit(evidence: Rows, survived: Rows) -> Scales:
    """Factor and offset for each position, by Newton's method."""
    scales = []
    for place in range(evidence.shape[1]):
        is_known = ~np.isnan(survived[:, place])
        if place:
            is_known &= survived[:, place - 1] > 0
        x = np.stack([logit(evidence[is_known, place]), np.ones(is_known.sum())], axis=1)
        y, w = survived[is_known, place], np.zeros(2)
        for _ in range(NEWTON_STEPS):
            p = 1 / (1 + np.exp(-x @ w))
            curvature = (x * (p * (1 - p))[:, None]).T @ x + RIDGE * np.eye(2)
            w += np.linalg.solve(curvature, x.T @ (y - p) - RIDGE * w)
        scales.append((float(w[0]), float(w[1])))
    return refine(evidence, survived, scales)


def refine(evidence: Rows, survived: Rows, scales: list[tuple[float, float]]) -> Scales:
    """From left to right, replace each position's scales by nearby ones with the smallest calibration error."""
    before = np.ones(len(evidence))
    refined = []
    for place, (factor, offset) in enumerate(scales):
        x, y = logit(evidence[:, place]), survived[:, place]
        nearby = [(factor * f, offset + o) for f in FACTORS for o in OFFSETS]
        errors = [calibration_error(before / (1 + np.exp(-(x * f + o))), y) for f, o in nearby]
        factor, offset = nearby[int(np.argmin(errors))]
        before = before / (1 + np.exp(-(x * factor + offset)))
        refined.append((round(float(factor), 4), round(float(offset), 4)))
    return tuple(refined)


def logit(chances: Rows) -> Rows:
    inside = np.clip(chances, 1e-6, 1 - 1e-6)
    return np.asarray(np.log(inside / (1 - inside)))


def survival(evidence: Rows, scales: Scales) -> Rows:
    factor, offset = np.asarray(scales).T
    return np.cumprod(1 / (1 + np.exp(-(logit(evidence) * factor + offset))), axis=1)


def calibration_error(expected: Rows, survived: Rows) -> float:
    """Mean distance of expected from actual survival, over bins of expected survival."""
    is_known = ~np.isnan(survived)
    expected, survived = expected[is_known], survived[is_known]
    bins = np.minimum((expected * NUM_BINS).astype(int), NUM_BINS - 1)
    gaps = np.bincount(bins, weights=expected - survived, minlength=NUM_BINS)
    return float(np.abs(gaps).sum() / expected.size)


def main() -> None:
    folder = Path(sys.argv[1])
    stored: dict[str, Any] = {"schema": SCHEMA}
    survival_by_kind = []
    for name, temperature in (("sampled", 1.0), ("greedy", 0.0)):
        evidence, survived = collect(str(folder), prompts(SEED, NUM_PROMPTS), temperature)
        stored[name] = fit(evidence, survived)
        survival_by_kind.append(np.nan_to_num(survived).mean(0))
        before = calibration_error(np.cumprod(evidence, axis=1), survived)
        after = calibration_error(survival(evidence, stored[name]), survived)
        stored[f"{name}_fit"] = {
            "num_blocks": len(evidence),
            "calibration_error_before": round(before, 4),
            "calibration_error": round(after, 4),
        }
    # The mean over greedy and sampled answers, as a run's mix is not known before its first draft.
    stored["typical_survival"] = np.mean(survival_by_kind, axis=0).round(3).tolist()
    (folder / CALIBRATION_FILE).write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(stored))


if __name__ == "__main__":
    main()
