"""Draft blocks along the greedy path: logits, choices, confidences."""

from __future__ import annotations

import pytest
import torch

CASES = [("draft", n) for n in (2, 7, 31, 64, 129)] + [("ced", n) for n in (9, 31, 129, 200, 300)]


def forced_drafts(golden, session, case, first_ids, prompt):
    """The model's drafts at each step, with every drawn token replaced by the golden one."""
    session.seed(session.run(prompt))
    expected_ids = golden.data[f"{case}.draft_ids"]
    drafts = []
    for step, anchor in enumerate(first_ids[: len(expected_ids)].tolist()):
        given = iter(expected_ids[step])
        drafts.append(
            session.draft(anchor, lambda logits, positions, given=given: next(given)[None])
        )
        session.seed(session.run(torch.tensor([anchor])))
    return drafts


@pytest.mark.parametrize("kind, length", CASES)
def test_drafts(golden, new_session, kind, length):
    case = f"{kind}{length}"
    if case not in golden.facts["cases"]:
        pytest.skip("this folder has no such case")
    data = golden.data
    window = golden.config.sliding_window
    session = new_session(golden, decoder_start=length - window if kind == "ced" else 0)
    first_ids = data[f"{case}.x0" if kind == "draft" else f"{case}.greedy_ids"]
    drafts = forced_drafts(golden, session, case, first_ids, data[f"p{length}.input_ids"])
    logits = torch.cat([draft.logits for draft in drafts])
    golden.check_logits(logits, data[f"{case}.draft_logits"], length + len(drafts))
    confidence = torch.cat([draft.confidence for draft in drafts])
    expected = torch.sigmoid(data[f"{case}.confidence_logit"])
    limit = golden.tolerance("logits", length + len(drafts))["confidence"]
    assert float((confidence - expected).abs().median()) <= limit
    assert float((confidence - expected).abs().quantile(0.9)) <= 3 * limit


@pytest.mark.parametrize("length", [2, 7, 31, 64, 129])
def test_own_drafts_follow_the_golden_ones(golden, new_session, length):
    """Greedy drafting picks the golden tokens, up to the first unclear choice of each block."""
    case = f"draft{length}"
    if case not in golden.facts["cases"]:
        pytest.skip("this folder has no such case")
    data = golden.data
    limit = golden.tolerance("logits", length + 10)["clear_margin"]
    top = data[f"{case}.draft_logits"].topk(2, dim=-1).values
    clear = (top[..., 0] - top[..., 1] > limit).cumprod(-1).bool()
    session = new_session(golden)
    session.seed(session.run(data[f"p{length}.input_ids"]))
    same = []
    for anchor in data[f"{case}.x0"].tolist():
        same.append(session.draft(anchor).token_ids[0])
        session.seed(session.run(torch.tensor([anchor])))
    matches = (torch.stack(same) == data[f"{case}.draft_ids"])[clear]
    assert not len(matches) or float(matches.double().mean()) >= 0.98
