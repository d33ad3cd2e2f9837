"""Draft blocks along the greedy path: logits, choices, confidences."""

from __future__ import annotations

import torch


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


def check_drafts(golden, session, case, first_ids, prompt):
    drafts = forced_drafts(golden, session, case, first_ids, prompt)
    length = len(prompt) + len(drafts)
    logits = torch.cat([draft.logits for draft in drafts])
    golden.check_logits(logits, golden.data[f"{case}.draft_logits"], length)
    confidence = torch.cat([draft.confidence for draft in drafts])
    difference = (confidence - torch.sigmoid(golden.data[f"{case}.confidence_logit"])).abs()
    limit = golden.tolerance("logits", length)["confidence"]
    assert float(difference.median()) <= limit
    assert float(difference.quantile(0.9)) <= 3 * limit


def test_drafts(golden, new_session, draft_length):
    case = f"draft{draft_length}"
    prompt = golden.data[f"p{draft_length}.input_ids"]
    check_drafts(golden, new_session(golden), case, golden.data[f"{case}.x0"], prompt)


def test_drafts_after_bounded_replay(golden, new_session, replay_length):
    case = f"ced{replay_length}"
    prompt = golden.data[f"p{replay_length}.input_ids"]
    session = new_session(golden, decoder_start=replay_length - golden.config.sliding_window)
    check_drafts(golden, session, case, golden.data[f"{case}.greedy_ids"], prompt)


def test_own_drafts_follow_the_golden_ones(golden, new_session, draft_length):
    """Greedy drafting picks the golden tokens, up to the first unclear choice of each block."""
    length, case = draft_length, f"draft{draft_length}"
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
