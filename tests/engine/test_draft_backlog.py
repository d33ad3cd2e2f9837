"""What the draft stages have missed reaches them before they draft, and nothing of others does."""

from __future__ import annotations

import torch
from fake_model import FakeConfig, FakeModel, make_engine, oracle, request, run
from hypothesis import given, settings
from hypothesis import strategies as st
from test_draft_choices import AnyLengths

from deepinfer.engine.speculation import draft_backlog
from deepinfer.engine.speculation.draft_backlog import DraftBacklog


def kept(backlog: DraftBacklog) -> list[tuple[int, int, int]]:
    missed = backlog.take()
    if missed is None:
        return []
    hidden, positions, slots = missed
    return list(zip(hidden[:, 0].tolist(), positions.tolist(), slots.tolist(), strict=True))


def keep(backlog: DraftBacklog, *rows: tuple[int, int, int]) -> None:
    hidden, positions, slots = torch.tensor(rows).T
    backlog.keep(hidden[:, None], positions, slots)


def test_passes_come_back_in_order_and_once() -> None:
    backlog = DraftBacklog(4, 8, "cpu")
    keep(backlog, (10, 0, 1), (20, 5, 2))
    keep(backlog, (11, 1, 1), (21, 6, 2))
    assert kept(backlog) == [(10, 0, 1), (20, 5, 2), (11, 1, 1), (21, 6, 2)]
    assert kept(backlog) == []


def test_a_slot_that_was_taken_over_starts_anew() -> None:
    backlog = DraftBacklog(4, 8, "cpu")
    keep(backlog, (10, 0, 1), (20, 5, 2))
    backlog.forget(torch.tensor([1]))
    keep(backlog, (30, 7, 1), (21, 6, 2))
    assert kept(backlog) == [(20, 5, 2), (30, 7, 1), (21, 6, 2)]
    keep(backlog, (31, 8, 1))
    assert kept(backlog) == [(31, 8, 1)]


def test_what_lies_a_window_back_is_let_go() -> None:
    backlog = DraftBacklog(1, 3, "cpu")
    for position in range(5):
        keep(backlog, (position, position, 0))
    assert [position for _, position, _ in kept(backlog)] == [2, 3, 4]


def test_a_backlog_is_full_by_its_bytes() -> None:
    backlog = DraftBacklog(1, 100, "cpu")
    half = torch.zeros(1, draft_backlog.MAX_BYTES // 2, dtype=torch.uint8)
    for expected in (False, True):
        backlog.keep(half, torch.tensor([0]), torch.tensor([0]))
        assert backlog.is_full == expected


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.sampled_from([0, 0, 0, 5]), min_size=1, max_size=30),
    st.integers(0, 99),
    st.integers(14, 32),
)
def test_drafts_always_find_the_whole_window(
    choices: list[int], seed: int, num_blocks: int
) -> None:
    """Slots change hands, requests are preempted, and drafting comes and goes; ``FakeModel.draft``
    looks at its ring.  Few blocks make preemptions."""
    config = FakeConfig()
    engine = make_engine(
        FakeModel(config),
        num_speculative_tokens=5,
        max_num_batched_tokens=24,
        num_blocks=num_blocks,
        max_model_len=40,
    )
    assert engine._workers is not None
    engine._workers[1].drafter.planner = AnyLengths(choices)
    prompts = {str(i): [2 + seed % 40, 3 + i] * (1 + i % 3) for i in range(7)}
    done = run(engine, [request(name, ids, max_tokens=15) for name, ids in prompts.items()])
    for name, ids in prompts.items():
        assert done[name].output_token_ids == oracle(config, ids, 15)


def test_a_small_limit_of_bytes_changes_nothing(monkeypatch: object) -> None:
    monkeypatch.setattr(draft_backlog, "MAX_BYTES", 1)  # type: ignore[attr-defined]
    config = FakeConfig()
    engine = make_engine(FakeModel(config), num_speculative_tokens=5, max_num_batched_tokens=24)
    assert engine._workers is not None
    engine._workers[1].drafter.planner = AnyLengths([0, 0, 3])
    done = run(engine, [request("a", [5, 6, 7], max_tokens=20)])
    assert done["a"].output_token_ids == oracle(config, [5, 6, 7], 20)
