"""Weight number formats against plain definitions, and the random checkpoints built from them."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepinfer.engine.checkpoint.random_weights import random_tensors
from deepinfer.engine.checkpoint.weight_formats import (
    encode_fp4_rows,
    encode_fp8_rows,
    encode_fp8_tiles,
)
from deepinfer.engine.checkpoint.weights import open_checkpoint
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.tensors import check_tensors, expected_tensors

ROOT = Path(__file__).parents[2]
CONFIG_PATH = Path(__file__).parent / "data" / "tiny_config.json"
CONFIG = ModelConfig.from_file(CONFIG_PATH)
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def scale_of(scale: Tensor) -> Tensor:
    return torch.exp2(scale.view(torch.uint8).double() - 127)


def decode_fp4(packed: Tensor, scale: Tensor) -> Tensor:
    """The definition: low nibble first, sign in bit 3, one scale per 32 inputs."""
    codes = packed.view(torch.uint8).int()
    nibbles = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(1)
    values = E2M1.double()[nibbles & 7] * (1 - 2 * (nibbles >> 3))
    return values * scale_of(scale).repeat_interleave(32, dim=1)


def decode_fp8(values: Tensor, scale: Tensor, rows: int) -> Tensor:
    wide = scale_of(scale).repeat_interleave(32, dim=1).repeat_interleave(rows, dim=0)
    return values.double() * wide


def smallest_power(amax: float, largest: float) -> float:
    """By search, not by logarithm."""
    exponent = -126
    while largest * 2.0**exponent < amax:
        exponent += 1
    return 2.0**exponent


FLOATS = st.floats(-(2.0**100), 2.0**100, width=32)


@settings(max_examples=150, deadline=None)
@given(values=st.lists(FLOATS, min_size=32, max_size=32))
def test_fp4_is_the_nearest_value_under_the_smallest_scale(values: list[float]) -> None:
    weight = torch.tensor([values], dtype=torch.float32)
    packed, scale = encode_fp4_rows(weight)
    step = float(scale_of(scale))
    assert step == smallest_power(float(weight.abs().max()), 6.0)
    decoded = decode_fp4(packed, scale)[0]
    grid = torch.cat([E2M1, -E2M1]).double() * step
    best = (grid[None] - weight.double().T).abs().min(dim=1).values
    assert torch.equal((decoded - weight[0].double()).abs(), best)


def test_fp4_ties_go_to_the_even_code() -> None:
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    weight = torch.tensor([[*ties, 6.0, *(-x for x in ties), -0.0, *[0.0] * 16]])
    decoded = decode_fp4(*encode_fp4_rows(weight))[0].tolist()
    even = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert decoded[:15] == [*even, 6.0, *(-x for x in even)]


def test_fp4_round_trips_every_byte() -> None:
    packed = torch.arange(256, dtype=torch.uint8).view(16, 16).view(torch.int8)
    scale = torch.full((16, 1), 130, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    decoded = decode_fp4(packed, scale).float()
    decoded[:, 0] = 48.0  # a largest value in every block pins its scale
    again = decode_fp4(*encode_fp4_rows(decoded))
    assert torch.equal(again, decoded.double())


@pytest.mark.parametrize("exponent", [-120, -9, 0, 7, 110])
@pytest.mark.parametrize("encode", [encode_fp8_tiles, encode_fp8_rows])
def test_fp8_scale_is_the_smallest_that_holds_the_maximum(exponent: int, encode: object) -> None:
    limit = torch.tensor(448.0) * 2.0**exponent
    above = torch.nextafter(limit, torch.tensor(float("inf")))
    for top, expected in ((limit, exponent), (above, exponent + 1)):
        weight = torch.zeros(32, 32)
        weight[5, 7] = -top
        _, scale = encode(weight)  # type: ignore[operator]
        assert float(scale_of(scale).max()) == 2.0**expected


def test_fp8_error_is_at_most_half_a_step() -> None:
    weight = torch.randn(96, 64, generator=torch.Generator().manual_seed(0))
    for (values, scale), rows in ((encode_fp8_tiles(weight), 32), (encode_fp8_rows(weight), 1)):
        decoded = decode_fp8(values, scale, rows)
        wide = scale_of(scale).repeat_interleave(32, dim=1).repeat_interleave(rows, dim=0)
        # E4M3 keeps 3 bits; below 2**-6 of the scale the steps are 2**-9 of it.
        step = torch.maximum(weight.double().abs() * 2.0**-4, wide * 2.0**-10)
        assert ((decoded - weight.double()).abs() <= step).all()


def test_zero_blocks_stay_zero() -> None:
    for values, scale in (
        encode_fp8_tiles(torch.zeros(32, 32)),
        encode_fp4_rows(torch.zeros(2, 32)),
    ):
        assert not values.view(torch.uint8).any() and torch.isfinite(scale.float()).all()


def test_random_tensors_fit_the_config_and_depend_on_seed_and_name_only() -> None:
    tensors = random_tensors(CONFIG, seed=5)
    check_tensors(expected_tensors(CONFIG), tensors, where=lambda name: "memory")
    part = random_tensors(CONFIG, seed=5, wanted=lambda name: ".experts.2." in name)
    assert part and all(
        torch.equal(part[name].view(torch.uint8), tensors[name].view(torch.uint8)) for name in part
    )
    other = random_tensors(CONFIG, seed=6)
    for name in ("embed.weight", "layers.0.ffn.experts.0.w1.weight", "layers.0.attn.wkv.weight"):
        assert not torch.equal(tensors[name].view(torch.uint8), other[name].view(torch.uint8))


def test_random_linears_keep_the_size_of_their_input() -> None:
    tensors = random_tensors(CONFIG, seed=5)
    name = "layers.0.ffn.experts.1.w1"
    weight = decode_fp4(tensors[f"{name}.weight"], tensors[f"{name}.scale"])
    assert 0.9 < float(weight.pow(2).sum(dim=1).mean()) < 1.1
    name = "layers.0.attn.wq_b"
    weight = decode_fp8(tensors[f"{name}.weight"], tensors[f"{name}.scale"], 32)
    assert 0.9 < float(weight.pow(2).sum(dim=1).mean()) < 1.1


def test_the_script_writes_a_checkpoint_that_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(json.dumps({"any": "content"}))
    arguments = ["--config", str(CONFIG_PATH), "--tokenizer", str(tokenizer), "--seed", "9"]
    out = tmp_path / "model"
    monkeypatch.setattr(sys, "argv", ["random_checkpoint.py", *arguments, "--out", str(out)])
    runpy.run_path(str(ROOT / "training" / "random_checkpoint.py"), run_name="__main__")
    assert "seed 9" in capsys.readouterr().out
    assert open_checkpoint(out).config == CONFIG
    assert (out / "tokenizer.json").read_bytes() == tokenizer.read_bytes()
