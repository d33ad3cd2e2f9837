"""A rehearsal stops by the clock, times batches of every size, and tells what it cut."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from deepinfer.arguments import EngineArguments
from deepinfer.engine.speculation.calibration import Calibration
from deepinfer.engine.speculation.step_profile import StepProfile
from deepinfer.engine.types import SamplingParams
from deepinfer.recipes.embedded import embedded_model_path
from deepinfer.rehearsal import Rehearsal, rehearse

ARGUMENTS = EngineArguments(max_num_seqs=6, num_blocks=200)


def _rehearse(num_rows: int, seconds: float, **fields: Any) -> Rehearsal:
    rows = (
        (i, {"prompt": f"Tell me a story about a kite {i}.", **fields}) for i in range(num_rows)
    )
    found = rehearse(None, ARGUMENTS, rows, SamplingParams(temperature=0.0), seconds=seconds)
    assert found is not None
    return found


def test_batches_of_every_size_are_timed() -> None:
    found = _rehearse(1000, 2.0, ignore_eos=True, max_tokens=4000)
    assert found.num_finished == 0 and found.num_rows == 6
    assert found.times.num_requests == (1.0, 4.0, 6.0)
    assert all(seconds > 0 for seconds in found.times.decode_step_s)
    assert all(tokens >= 1 for tokens in found.times.decode_tokens)
    assert found.times.prefill_s(100) > 0 and found.load_s > 0
    assert found.lengths == ()  # how long these get is known: as long as they may


def test_many_long_prompts_do_not_use_up_the_time() -> None:
    arguments = EngineArguments(max_num_seqs=40, max_num_batched_tokens=240)
    rows = ((i, {"prompt": f"{i} " + "word " * 200, "max_tokens": 50}) for i in range(100))
    found = rehearse(None, arguments, rows, SamplingParams(), seconds=0.01)
    assert found is not None and found.num_rows == 1
    # One prompt was computed, and the decode steps are of its answer.
    assert found.times.num_requests == (1.0,) and found.times.decode_step_s[0] > 0


def test_a_full_batch_chooses_drafts_as_a_run_that_begins_with_it(tmp_path: Path) -> None:
    """One answer wants drafts.  Six would go on with them, but not begin: 6 % are saved."""
    calibration = Calibration.from_folder(embedded_model_path(), 5)
    worth = 1 + np.cumsum(calibration.typical_survival)
    shares = np.arange(1, 6) / 5
    blocks = np.linspace(1, 20, 2_000)
    block = next(b for b in blocks if (worth / (1 + (b - 1) * shares)).max() < 1.06)
    tiny, equal = (1e-9, 1e-9), (1.0, 1.0)
    StepProfile(
        device=f"{platform.machine()} CPU, 1 threads", block_size=5, num_requests=(1, 6),
        draft_s=tiny, first_s=tiny, seed_s=tiny, single_s=equal, block_s=(1.01, float(block)),
    ).save(tmp_path / "profile.json")  # fmt: skip
    arguments = replace(ARGUMENTS, profile_path=tmp_path / "profile.json", num_threads=1)
    rows = ((i, {"prompt": f"Tell me about kite {i}.", "ignore_eos": True}) for i in range(100))
    found = rehearse(None, arguments, rows, SamplingParams(max_tokens=4_000), seconds=3.0)
    assert found is not None
    assert found.times.num_requests == (1.0, 4.0, 6.0)
    assert found.times.decode_tokens[0] > 1.5 and found.times.decode_tokens[-1] == 1.0


def test_a_few_rows_are_answered_to_their_end() -> None:
    found = _rehearse(3, 60.0, max_tokens=12)
    assert found.num_rows == found.num_finished == 3
    assert len(found.lengths) == 3
    assert all(length == 12 or has_ended for length, has_ended in found.lengths)


def test_rows_that_cannot_be_answered_measure_nothing() -> None:
    rows = [(0, {"prompt": 5}), (1, {"nothing": 1})]
    assert rehearse(None, ARGUMENTS, rows, SamplingParams(), seconds=5.0) is None
