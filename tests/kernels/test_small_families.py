"""Engram, compressor and draft heads: oracles and published vectors."""

from __future__ import annotations

import torch

from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.engram import hash_multipliers
from deepinfer.kernels.compressor import pool_pairs
from deepinfer.kernels.dspark import draft_confidence, markov_logits
from deepinfer.kernels.engram import engram_gate, engram_hash, engram_lookup
from deepinfer.kernels.gemm import Weight
from deepinfer.kernels.testing import assert_bitwise_equal, assert_close

PAD = 2
VECTORS = {
    (1, (100,)): [
        4052413, 23667694, 42906971, 52829082, 75741025, 88719377, 111210122, 112422857,
        138893193, 154754281, 160059424, 191821447, 207733256, 223702343, 239672137, 250328800,
        270913409, 282584305, 299653391, 308191258, 324551334, 349093302, 360573537, 378065828,
    ],
    (1, (100, 200, 300, 400, 500)): [
        1611640, 17050140, 34461255, 61794840, 78945792, 84702960, *[None] * 17, 371236821,
    ],
    (14, (100, 200, 300, 400, 500)): [
        6182201, 22999056, 43193658, 56665438, 79404451, 88070808, *[None] * 17, 373316454,
    ],
}  # fmt: skip


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_released_hash_vectors():
    """Rows of known histories of compressed ids at full size; None was not published."""
    config = ModelConfig.flash()
    for (layer_id, history), expected in VECTORS.items():
        primes = torch.tensor(config.engram_primes[config.engram_layer_ids.index(layer_id)])
        ends = primes.flatten().cumsum(0)
        lookback = [history[-1 - s] if s < len(history) else PAD for s in range(4)]
        rows = engram_hash(
            torch.tensor([lookback]),
            torch.from_numpy(hash_multipliers(config, layer_id)),
            primes,
            ends.view_as(primes) - primes,
        )[0].tolist()
        assert [r for r, e in zip(rows, expected, strict=True) if e is not None] == [
            e for e in expected if e is not None
        ]


def test_hash_products_fit_in_63_bits():
    config = ModelConfig.flash()
    for layer_id in config.engram_layer_ids:
        for multiplier in hash_multipliers(config, layer_id).tolist():
            assert multiplier % 2 == 1
            assert multiplier * (config.engram_compressed_vocab_size - 1) < 2**63


def test_lookup_dequantises_rows():
    table = normal(10, 64, seed=1).to(torch.float8_e4m3fn)
    exponents = torch.randint(120, 134, (10, 2), dtype=torch.uint8)
    rows = torch.tensor([[3, 3, 9], [0, 1, 2]])
    out = engram_lookup(table, exponents.view(torch.float8_e8m0fnu), rows)
    assert out.shape == (2, 192)
    for token, column, place in ((0, 0, 5), (0, 2, 63), (1, 1, 31), (1, 2, 32)):
        row = int(rows[token, column])
        scale = 2.0 ** (int(exponents[row, place // 32]) - 127)
        assert float(out[token, column * 64 + place]) == float(table[row, place]) * scale


def test_gate_follows_the_definition():
    x, kv = normal(6, 4, 32, seed=2).bfloat16(), normal(6, 160, seed=3).bfloat16()
    q_weight, k_weight = normal(4, 32, seed=4).bfloat16(), normal(4, 32, seed=5).bfloat16()
    wide, keys, value = x.double(), kv[:, :128].double().view(6, 4, 32), kv[:, 128:].double()
    dot = (wide * q_weight.double() * k_weight.double() * keys).sum(-1)
    dot = dot / wide.square().mean(-1).sqrt() / keys.square().mean(-1).sqrt() / 32**0.5
    gate = torch.sigmoid(dot.sign() * dot.abs().clamp(min=1e-6).sqrt())
    expected = wide + gate[..., None] * value[:, None]
    out = engram_gate(x, kv, q_weight, k_weight)
    assert_close(out.double(), expected, atol=1e-4, rtol=2**-7)
    assert_bitwise_equal(engram_gate(x[2:3], kv[2:3], q_weight, k_weight), out[2:3])


def test_pooling_is_a_softmax_over_the_pair_per_channel():
    first, second = normal(7, 2, 16, seed=6), normal(7, 2, 16, seed=7) * 30
    gates = torch.softmax(torch.stack([first[:, 1], second[:, 1]]).double(), 0)
    expected = gates[0] * first[:, 0].double() + gates[1] * second[:, 0].double()
    out = pool_pairs(first, second)
    assert_close(out.double(), expected, atol=1e-5, rtol=2**-7)
    assert_bitwise_equal(pool_pairs(first[3:4], second[3:4]), out[3:4])


def test_draft_heads():
    base, previous = normal(5, 40, seed=8), normal(5, 8, seed=9).bfloat16()
    head, proj = (
        Weight(normal(40, 8, seed=10).bfloat16()),
        Weight(normal(1, 24, seed=11).bfloat16()),
    )
    expected = base.double() + previous.double() @ head.values.double().t()
    assert_close(markov_logits(base, previous, head).double(), expected, atol=1e-5, rtol=1e-5)
    hidden, embed = normal(5, 3, 16, seed=12).bfloat16(), normal(7, 8, seed=13).bfloat16()
    anchors, drafts = torch.tensor([6, 0, 1, 2, 3]), torch.arange(15).view(5, 3) % 7
    out = draft_confidence(hidden, anchors, drafts, embed, proj)
    for place, token in ((0, 6), (1, 0), (2, 1)):  # of the first request; what came before each
        joined = torch.cat([hidden[0, place], embed[token]]).double()
        expected = torch.sigmoid(joined @ proj.values[0].double())
        assert_close(out[0, place].double(), expected, atol=1e-5, rtol=1e-5)
    assert_bitwise_equal(
        draft_confidence(hidden[4:], anchors[4:], drafts[4:], embed, proj), out[4:]
    )
