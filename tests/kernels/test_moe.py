"""Router and experts against loops over single tokens."""

from __future__ import annotations

import pytest
import torch

from deepinfer.kernels.gemm import Weight, fp32_linear, quantized_linear
from deepinfer.kernels.moe import experts, route, swiglu
from deepinfer.kernels.testing import assert_bitwise_equal, assert_close

E, D, INNER, LIMIT = 6, 64, 32, 2.0


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_experts():
    gate_up = Weight((normal(E, 2 * INNER, D, seed=1) / 4).bfloat16())
    down = Weight((normal(E, D, INNER, seed=2) / 4).bfloat16())
    return gate_up, down


def choose(x, gate, bias, k=2, normalize=True):
    return route(x, gate, bias, num_experts_per_tok=k, normalize=normalize, scaling_factor=1.5)


def test_router_chooses_by_biased_score_and_weighs_by_plain_score():
    x, gate = normal(20, D, seed=3).bfloat16(), Weight(normal(E, D, seed=4).bfloat16())
    bias = normal(E, seed=5)
    ids, weights = choose(x, gate, bias)
    scores = torch.nn.functional.softplus(fp32_linear(x, gate).double()).sqrt()
    for t in range(20):
        best = sorted(range(E), key=lambda e: (-float(scores[t, e] + bias[e]), e))[:2]
        assert ids[t].tolist() == sorted(best)
        own = scores[t, ids[t]]
        assert_close(weights[t].double(), own / own.sum() * 1.5, atol=1e-6, rtol=1e-5)


def test_router_ties_go_to_the_lower_expert():
    ids, weights = choose(torch.ones(1, D).bfloat16(), Weight(torch.zeros(E, D)), torch.zeros(E))
    assert ids.tolist() == [[0, 1]]
    assert weights.tolist() == [[0.75, 0.75]]


def test_router_bias_may_differ_per_token():
    x, gate = torch.zeros(2, D).bfloat16(), Weight(torch.zeros(E, D))
    bias = torch.zeros(2, E)
    bias[1, 4:] = 1.0
    assert choose(x, gate, bias)[0].tolist() == [[0, 1], [4, 5]]


def test_a_single_choice_is_not_normalised():
    x, gate = normal(4, D, seed=3).bfloat16(), Weight(normal(E, D, seed=4).bfloat16())
    _, weights = choose(x, gate, torch.zeros(E), k=1)
    assert bool((weights != 1.5).all())


def test_swiglu_clamps_the_gate_only_from_above():
    gate_up = torch.tensor([[-50.0, 50.0, 1.0, 50.0, -50.0, -50.0]]).bfloat16()
    out = swiglu(gate_up, 2.0)
    silu = torch.nn.functional.silu(torch.tensor([-50.0, 2.0, 1.0]))
    assert_close(out[0], (silu * torch.tensor([2.0, -2.0, -2.0])).bfloat16(), atol=1e-6, rtol=2**-7)


def naive(x, ids, weights, gate_up, down):
    """Token by token, expert by expert, in ascending order."""
    total = torch.zeros(len(x), D)
    for t in range(len(x)):
        for expert, weight in zip(ids[t].tolist(), weights[t], strict=True):
            hidden = quantized_linear(x[t : t + 1], gate_up[expert])
            inner = swiglu(hidden, LIMIT, weight[None])
            total[t] += quantized_linear(inner, down[expert])[0].float()
    return total


@pytest.mark.parametrize("num_tokens", [0, 1, 5, 40])
def test_experts_equal_a_loop_over_tokens(num_tokens):
    x, gate = normal(num_tokens, D, seed=3).bfloat16(), Weight(normal(E, D, seed=4).bfloat16())
    gate_up, down = make_experts()
    ids, weights = choose(x, gate, torch.zeros(E), k=3)
    out = experts(x, ids, weights, gate_up, down, LIMIT)
    assert_bitwise_equal(out, naive(x, ids, weights, gate_up, down))


def test_all_tokens_to_one_expert():
    x = normal(17, D, seed=6).bfloat16()
    gate_up, down = make_experts()
    ids, weights = torch.full((17, 1), 3), torch.ones(17, 1)
    out = experts(x, ids, weights, gate_up, down, LIMIT)
    assert_bitwise_equal(out, naive(x, ids, weights, gate_up, down))


def test_a_token_does_not_depend_on_the_batch():
    x, gate = normal(60, D, seed=3).bfloat16(), Weight(normal(E, D, seed=4).bfloat16())
    gate_up, down = make_experts()

    def run(part):
        ids, weights = choose(x[part], gate, torch.zeros(E))
        return experts(x[part], ids, weights, gate_up, down, LIMIT)

    whole = run(slice(None))
    for first, count in ((0, 1), (5, 2), (20, 33)):
        part = slice(first, first + count)
        assert_bitwise_equal(run(part), whole[part])
