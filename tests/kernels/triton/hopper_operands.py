"""Gives launchers for SM90 operands that they cannot take; prints what they did not refuse as JSON.

    python hopper_operands.py

A script of its own because the kernels of the test process are interpreted.  Nothing runs: launches
are rehearsed, up to which operands are checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from deepinfer.errors import TensorError
from deepinfer.kernels.attention.gluon_launch import sparse_attention_gluon
from deepinfer.kernels.dspark import draft_confidence, markov_logits
from deepinfer.kernels.gemm import HopperWeight, Weight
from deepinfer.kernels.gemm.activations import quantize_activations
from deepinfer.kernels.gemm.gluon_grouped_launch import grouped_linear_gluon
from deepinfer.kernels.gemm.gluon_joint_launch import gated_joint_gluon
from deepinfer.kernels.gemm.gluon_kernel import quantized_linear_gluon
from deepinfer.kernels.gemm.gluon_parts_launch import fp32_linear_parts_gluon
from deepinfer.kernels.gemm.gluon_plain_launch import (
    plain_fp32_linear_gluon,
    plain_linear_gluon,
    plain_linear_quantized_gluon,
)
from deepinfer.kernels.gemm.hopper_weights import prepare_gate_up, prepare_weight
from deepinfer.kernels.gemm.k_order import KOrder
from deepinfer.kernels.gemm.matrix_path import MatrixPath
from deepinfer.kernels.hyper_connection import Entrance, HyperMix, Mixer
from deepinfer.kernels.hyper_connection.triton_kernel import advance_streams_triton
from deepinfer.kernels.indexer.gluon_launch import (
    listed_index_scores_gluon,
    paged_index_scores_gluon,
)
from deepinfer.kernels.moe.gluon_experts import expert_pairs_gluon, gated_linear_gluon
from deepinfer.kernels.rehearsal import PretendedDevice, rehearse

BF16, F32, I64, U8 = torch.bfloat16, torch.float32, torch.int64, torch.uint8
# A name, a launcher, tensors that it takes, and by tensor the dimensions that may be any.
Entry = tuple[str, Callable[..., Any], dict[str, Tensor], dict[str, tuple[int, ...]]]


def new(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def prepared(n: int, k: int, *members: int, gates: bool = False) -> HopperWeight:
    values = torch.zeros(*members, n, k, dtype=torch.float8_e4m3fn)
    scales = torch.full((*members, n // 32, k // 32), 127, dtype=U8)
    weight = Weight(values, scales.view(torch.float8_e8m0fnu))
    made = prepare_gate_up(weight) if gates else prepare_weight(weight)
    assert made is not None
    return made


def lists() -> Iterator[Entry]:
    listed = {
        "q": new(BF16, 3, 64, 512), "window_rows": new(U8, 9, 528),
        "window_index": new(I64, 3, 128), "main_rows": new(U8, 9, 288),
        "main_index": new(I64, 3, 512), "sink": new(F32, 64),
        "cos": new(F32, 3, 64), "sin": new(F32, 3, 64),
    }  # fmt: skip
    free = {"window_rows": (0,), "main_rows": (0,), "window_index": (1,), "main_index": (1,)}
    yield (
        "attention",
        lambda cos, sin, **t: sparse_attention_gluon(**t, scale=1.0, rope=(cos, sin)),
        listed,
        free,
    )
    scored = {
        "query_rows": new(U8, 3, 32, 68), "head_weights": new(BF16, 3, 32),
        "pool": new(U8, 4, 64, 68), "block_table": new(I64, 2, 4), "request_rows": new(I64, 3),
    }  # fmt: skip
    yield (
        "index scores",
        lambda **t: paged_index_scores_gluon(**t, num_entries=256),
        scored | {"num_visible": new(I64, 3)},
        {"block_table": (0,), "pool": (0,)},
    )
    yield (
        "listed scores",
        lambda **t: listed_index_scores_gluon(**t, block_size=8),
        scored | {"blocks": new(I64, 3, 5), "num_places": new(I64, 3)},
        {"block_table": (0, 1), "pool": (0, 1), "blocks": (1,)},
    )


def products() -> Iterator[Entry]:
    def many(*sizes: int) -> dict[str, Tensor]:
        return {"x": new(BF16, 256, *sizes[:-2], sizes[-1]), "values": new(BF16, *sizes)}

    linear = prepared(256, 256)
    yield (
        "plain", lambda x, values: plain_linear_gluon(x, Weight(values)), many(64, 128),
        {"x": (0,), "values": (0,)},
    )  # fmt: skip
    yield (
        "groups", lambda x, values: plain_linear_gluon(x, Weight(values)), many(2, 128, 128),
        {"x": (0,), "values": (1,)},
    )  # fmt: skip
    yield (
        "quantised groups",
        lambda x, values: plain_linear_quantized_gluon(x, Weight(values), linear),
        many(2, 128, 128),
        {"x": (0,)},
    )
    yield (
        "fp32",
        lambda x, values, addend, out: plain_fp32_linear_gluon(x, Weight(values), addend, out),
        many(64, 128) | {"addend": new(F32, 256, 64), "out": new(F32, 256, 64)},
        {},
    )
    yield (
        "fp32 in parts", lambda x, values: fp32_linear_parts_gluon(x, Weight(values), 2),
        many(64, 128), {"x": (0,), "values": (0,)},
    )  # fmt: skip
    yield "FP8", lambda x: quantized_linear_gluon(x, linear), {"x": new(BF16, 3, 256)}, {"x": (0,)}
    groups = prepared(128, 256, 2)
    yield (
        "FP8 groups", lambda x: grouped_linear_gluon(x, groups, linear),
        {"x": new(BF16, 3, 2, 256)}, {"x": (0,)},
    )  # fmt: skip
    halves = prepared(512, 256, gates=True)
    yield (
        "gates", lambda x: gated_linear_gluon(x, halves, 1.0, linear), {"x": new(BF16, 3, 256)},
        {"x": (0,)},
    )  # fmt: skip
    acts = quantize_activations(new(BF16, 3, 256), MatrixPath.FP8, KOrder.PLAIN)
    yield (
        "gates and the router's product",
        lambda x, values, preset: gated_joint_gluon(
            acts, halves, KOrder.PLAIN, 1.0, x, Weight(values), 2, preset=(preset, 0)
        ),
        {"x": new(BF16, 3, 256), "values": new(BF16, 64, 256), "preset": new(torch.int32, 64)},
        {"values": (0,), "preset": (0,)},
    )
    gate_up, down = prepared(512, 256, 2, gates=True), prepared(256, 256, 2)
    yield (
        "experts",
        lambda **t: expert_pairs_gluon(**t, gate_up=gate_up, down=down, limit=1.0),
        {"x": new(BF16, 3, 256), "ids": new(I64, 3, 2), "weights": new(F32, 3, 2)},
        {"ids": (1,)},
    )


def streams_and_drafts() -> Iterator[Entry]:
    linear = prepared(256, 256)

    def advance(fn: Tensor, scale: Tensor, base: Tensor, norm: Tensor, **t: Tensor) -> None:
        mixer = Mixer(Weight(fn), scale, base, iterations=2, eps=1e-6)
        mix = HyperMix(t["pre"], t["post"], t["comb"])
        advance_streams_triton(t["streams"], t["output"], mix, mixer, Entrance(norm, 1e-6, linear))

    yield (
        "streams",
        advance,
        {
            "streams": new(BF16, 3, 4, 256), "output": new(BF16, 3, 256), "post": new(F32, 3, 4),
            "comb": new(F32, 3, 4, 4), "pre": new(F32, 3, 4), "fn": new(F32, 24, 1024),
            "scale": new(F32, 3), "base": new(F32, 24), "norm": new(BF16, 256),
        },
        {},
    )  # fmt: skip
    for requests in (6, 128):  # portable products, and those of SM90
        yield (
            f"Markov of {requests}",
            lambda base, previous, head: markov_logits(base, previous, Weight(head)),
            {
                "base": new(F32, requests, 512), "previous": new(BF16, requests, 64),
                "head": new(BF16, 512, 64),
            },
            {},
        )  # fmt: skip
    yield (
        "confidence",
        lambda proj, **rest: draft_confidence(**rest, proj=Weight(proj)),
        {
            "hidden": new(BF16, 2, 3, 256),
            "anchors": new(I64, 2),
            "drafts": new(I64, 2, 3),
            "embed": new(BF16, 9, 64),
            "proj": new(BF16, 1, 320),
        },
        {"embed": (0,)},
    )


def wrong_forms(x: Tensor, free: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
    yield "another dtype", x.to(torch.float64 if x.dtype.itemsize > 1 else torch.int16)
    yield "with a dimension more", x[None]
    yield "with a dimension less", x[0].contiguous()
    yield "with no dimension", x.flatten()[0]
    for axis in set(range(x.dim())) - set(free):
        yield f"shorter in {axis}", x.narrow(axis, 0, x.shape[axis] - 1).contiguous()


def wrong_weights() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Activations and weights that were made for others."""
    gate_up = prepared(512, 256, 2, gates=True)
    tokens = {"x": new(BF16, 3, 256), "ids": new(I64, 3, 2), "weights": new(F32, 3, 2)}
    for down in (prepared(256, 512, 2), prepared(256, 256, 3)):
        yield (
            f"experts with down {list(down.values.shape)}",
            lambda down=down: expert_pairs_gluon(**tokens, gate_up=gate_up, down=down, limit=1.0),
        )
    for k, path, order in (
        (512, MatrixPath.FP8, KOrder.PLAIN),
        (256, MatrixPath.FP8, KOrder.FRAGMENT),
        (256, MatrixPath.DECODED, KOrder.PLAIN),
    ):
        acts = quantize_activations(new(BF16, 3, k), path, order)
        weight = prepared(256, 256)
        yield f"{k} {path} {order}", lambda a=acts, w=weight: quantized_linear_gluon(a, w)
    right = quantize_activations(new(BF16, 3, 512), MatrixPath.FP8, KOrder.PLAIN)
    grouped_linear_gluon(right, prepared(128, 256, 2), prepared(64, 256))
    for what, weight, linear in (
        ("four groups", prepared(128, 256, 4), prepared(64, 512)),
        ("groups that end inside of a tile", prepared(192, 256, 2), prepared(64, 512)),
        ("groups of gates and ups", prepared(256, 256, 2, gates=True), prepared(64, 512)),
        ("the next layer of another width", prepared(128, 256, 2), prepared(64, 512)),
    ):
        yield what, partial(grouped_linear_gluon, right, weight, linear)


def main() -> None:
    refused, faults = 0, []

    def refuse(what: str, call: Callable[[], Any]) -> None:
        nonlocal refused
        try:
            call()
            faults.append(f"{what}: accepted")
        except TensorError:
            refused += 1
        except Exception as error:
            faults.append(f"{what}: {type(error).__name__}: {error}")

    with rehearse(PretendedDevice((9, 0))):
        for name, call, tensors, free in (*lists(), *products(), *streams_and_drafts()):
            call(**tensors)
            for tensor, x in tensors.items():
                for form, wrong in wrong_forms(x, free.get(tensor, ())):
                    given = tensors | {tensor: wrong}
                    refuse(f"{name}: {tensor} {form}", lambda c=call, g=given: c(**g))
        for what, launch in wrong_weights():
            refuse(what, launch)
    print(json.dumps({"refused": refused, "faults": faults}))


if __name__ == "__main__":
    main()
