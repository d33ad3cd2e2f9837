"""Confidence and verification of drafts: Triton against the references, and against itself in other
batches."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from deepinfer.kernels.dspark.reference import draft_confidence_reference
from deepinfer.kernels.dspark.triton_kernel import draft_confidence_triton
from deepinfer.kernels.dspark.triton_verify import kept_kernel, verify_drafts_triton
from deepinfer.kernels.dspark.verify_reference import drawn_probs, verify_drafts_reference
from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.sampling.triton_kept import DEPTH
from deepinfer.kernels.testing import assert_bitwise_equal, assert_close

Case = tuple[Tensor, Tensor, Tensor, Tensor, Weight]


def _case(
    requests: int, depth: int, width: int, rank: int, dtype: torch.dtype, device: torch.device
) -> Case:
    """Tokens of 9, of which some are -1: what a row without usable logits draws."""
    proj = torch.randn(1, width + rank) / (width + rank) ** 0.5
    return (
        torch.randn(requests, depth, width).bfloat16().to(device),
        torch.randint(-1, 9, (requests,)).to(device),
        torch.randint(-1, 9, (requests, depth)).to(device),
        torch.randn(9, rank).bfloat16().to(device),
        Weight(proj.to(dtype).to(device)),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "requests, depth, width, rank",
    [(2, 5, 5120, 256), (3, 1, 96, 6), (1, 4, 2, 2), (7, 3, 2050, 32), (0, 5, 64, 8)],
)
def test_matches_reference(
    requests: int, depth: int, width: int, rank: int, dtype: torch.dtype, device: torch.device
) -> None:
    case = _case(requests, depth, width, rank, dtype, device)
    out = draft_confidence_triton(*case)
    assert_close(out, draft_confidence_reference(*case), atol=1e-6, rtol=1e-5)


def test_requests_do_not_see_each_other(device: torch.device) -> None:
    hidden, anchors, drafts, embed, proj = _case(5, 3, 96, 6, torch.bfloat16, device)
    hidden[1] = math.nan
    together = draft_confidence_triton(hidden, anchors, drafts, embed, proj)
    for request in range(5):
        one = slice(request, request + 1)
        alone = draft_confidence_triton(hidden[one], anchors[one], drafts[one], embed, proj)
        assert_bitwise_equal(alone[0], together[request], f"{request=}")
    assert bool(together.isnan().all(1).eq(torch.arange(5, device=device) == 1).all())


def test_certain_and_impossible_drafts(device: torch.device) -> None:
    hidden, anchors, drafts, embed, proj = _case(2, 2, 64, 8, torch.float32, device)
    proj.values.fill_(100)
    hidden[0], hidden[1] = 100, -100
    out = draft_confidence_triton(hidden, anchors, drafts, embed, proj)
    assert out.tolist() == [[1, 1], [0, 0]]


# Temperature, top_p, top_k, min_p.
_FILTERS = [
    (1.0, 0.9, 0, 0.0), (0.6, 0.5, 0, 0.0), (1.0, 1.0, 40, 0.0), (1.0, 0.95, 40, 0.0),
    (2.0, 0.99, 7, 0.0), (1.0, 1.0, 0, 0.05), (0.7, 0.97, 90, 0.01), (1.0, 1.0, 0, 0.0),
    (1e-32, 0.9, 0, 0.0), (1.0, 1e-9, 0, 0.0), (1.0, 1.0, 1, 0.0), (1.0, 0.8, 10**6, 1.0),
]  # fmt: skip


def _kept_probs(logits: Tensor, temperature: Tensor, *filters: Tensor) -> Tensor:
    """Of each row what is drawn from, by the two programs of which verification consists."""
    rows, vocab = logits.shape
    everyone = torch.arange(rows, device=logits.device)
    kept = logits.new_full((rows, 3), math.nan)
    programs, tile = 5, 64  # each has several rows
    room = logits.new_full((programs, DEPTH * tile), math.nan)
    kept_kernel[(programs,)](
        logits, logits, temperature, *filters, everyone, everyone, kept, room,
        logits.stride(0), vocab, 0, rows, rows, TILE=tile, num_warps=1,
    )  # fmt: skip
    best, least, mass = kept[:, :, None].unbind(1)
    factor = 1.4426950408889634 / temperature.clamp(min=1e-30)[:, None]
    largest = torch.finfo(torch.float32).max
    top = torch.where(best == torch.inf, largest, best)
    weights = torch.exp2((logits.clamp(max=largest) - top) * factor)
    return torch.where(weights >= least * (1 - 1e-6), weights, 0.0) / mass


def _block(requests: int, depth: int, vocab: int, device: torch.device) -> dict[str, Tensor]:
    """Drafts of other logits than the target's, drawn from them; half of all filters are off."""
    generator = torch.Generator().manual_seed(requests)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator)

    lens = torch.randint(0, depth + 1, (requests,), generator=generator)
    first = (lens + 1).cumsum(0) - lens - 1
    target = torch.randn(int((lens + 1).sum()), vocab, generator=generator) * 3
    draft = torch.randn(requests, depth, vocab, generator=generator)
    for request, (start, count) in enumerate(zip(first.tolist(), lens.tolist(), strict=True)):
        draft[request, :count] = target[start : start + count] + 0.3 * draft[request, :count]
    is_on = uniform(3, requests) < 0.5
    filters = (
        0.3 + uniform(requests),
        torch.where(is_on[0], 0.3 + 0.7 * uniform(requests), 1.0),
        torch.where(is_on[1], torch.randint(1, 9, (requests,), generator=generator), 0),
        torch.where(is_on[2], 0.1 * uniform(requests), 0.0),
    )
    probs = torch.stack([drawn_probs(draft[:, place], *filters) for place in range(depth)], 1)
    names = ("temperature", "top_p", "top_k", "min_p")
    block = {
        "target": target,
        "draft": draft,
        "token_ids": probs.flatten(0, 1).multinomial(1, generator=generator).view(-1, depth),
        "first": first,
        "lens": lens,
        **dict(zip(names, filters, strict=True)),
        "seeds": torch.randint(-(2**62), 2**62, (requests,), generator=generator),
        "positions": torch.randint(0, 1000, (len(target),), generator=generator),
    }
    return {name: x.to(device) for name, x in block.items()}


@pytest.mark.parametrize(
    "requests, depth, vocab",
    [(3, 3, 133), (4, 1, 7), pytest.param(2, 2, 1030, marks=pytest.mark.slow)],
)
def test_verification_matches_reference(
    requests: int, depth: int, vocab: int, device: torch.device
) -> None:
    block = _block(requests, depth, vocab, device)
    verified = verify_drafts_triton(**block)
    assert_bitwise_equal(verified, verify_drafts_reference(**block))
    gaps = block["target"].new_zeros(len(block["target"]), vocab + 9)[:, 2 : vocab + 2]
    gaps.copy_(block["target"])
    assert_bitwise_equal(verify_drafts_triton(**block | {"target": gaps}), verified, "gaps")
    block["lens"][1:] = 0  # the other rows of these requests are nobody's
    expected = verify_drafts_reference(**block)
    assert_bitwise_equal(verify_drafts_triton(**block), expected, "fewer")


@pytest.mark.parametrize("vocab", [300, pytest.param(2100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["normal", "flat", "ties", "peaked", "unusable"])
def test_kept_tokens_are_those_of_the_reference(
    kind: str, vocab: int, device: torch.device
) -> None:
    """What is kept shows in the probabilities of a draft that each row could have drawn."""
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(len(_FILTERS), vocab, generator=generator)
    if kind == "flat":
        logits /= 1000
    elif kind == "ties":
        logits = logits.round()
    elif kind == "peaked":
        logits -= 3 * torch.arange(1, vocab + 1).log()
    elif kind == "unusable":
        logits[0, 5], logits[1, [7, 9]], logits[2] = math.nan, math.inf, -math.inf
        logits[3, 9], logits[4] = -math.inf, 0
    temperature, top_p, top_k, min_p = (torch.tensor(x) for x in zip(*_FILTERS, strict=True))
    filters = temperature.float(), top_p.float(), top_k, min_p.float()
    probs = drawn_probs(logits, *filters)
    actual = _kept_probs(logits.to(device), *(x.to(device) for x in filters)).cpu()
    assert_bitwise_equal(actual > 0, probs > 0, "which are kept")
    assert_close(actual, probs, atol=0, rtol=1e-4)


def test_verified_requests_do_not_see_each_other(device: torch.device) -> None:
    block = _block(3, 2, 50, device)
    together = verify_drafts_triton(**block)
    for request, (start, count) in enumerate(
        zip(block["first"].tolist(), block["lens"].tolist(), strict=True)
    ):
        own = {name: x[request : request + 1] for name, x in block.items()}
        for name in ("target", "positions"):
            own[name] = block[name][start : start + count + 1]
        own["first"] = torch.zeros_like(own["lens"])
        assert_bitwise_equal(verify_drafts_triton(**own)[0], together[request])


def test_no_request_is_verified(device: torch.device) -> None:
    block = {name: x[:0] for name, x in _block(2, 3, 9, device).items()}
    assert verify_drafts_triton(**block).shape == (0, 2)
