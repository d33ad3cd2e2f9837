"""Compares every kernel of a model's pass with its plain-torch form on the same inputs."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from deepinfer.kernels.gemm import HopperWeight, Weight, grouped_linear, quantized_linear
from deepinfer.kernels.gemm.k_order import KOrder, plain_order
from deepinfer.kernels.moe import PairOutputs, experts, swiglu
from deepinfer.kernels.norm import NormedRows
from deepinfer.kernels.quant import fake_quantize_fp8

OPERATIONS = {
    "quantized_linear", "grouped_linear", "linear", "fp32_linear", "rms_norm", "pack_latents",
    "store_latents", "sparse_attention", "paged_index_scores", "select_topk", "candidate_blocks",
    "advance_streams", "enter_streams", "expand_streams", "collapse_streams", "engram_hash",
    "engram_lookup", "engram_gate", "expert_pairs", "route", "gated_linear", "markov_logits",
    "confidence_logits", "sample", "pool_tokens", "split_projection", "grouped_linear_quantized",
    "gated_linear_and_logits", "listed_index_scores", "pool_rows",
}  # fmt: skip


@dataclass
class Agreement:
    """One operation so far: calls, share of equal values, worst difference over the largest value
    of its result, worst relative error of a result (L2)."""

    calls: int = 0
    num_equal: int = 0
    num_values: int = 0
    worst: float = 0.0
    relative: float = 0.0
    error: str = ""


@contextmanager
def shadowed() -> Iterator[dict[str, Agreement]]:
    """Within this context, operations of ``engine.model`` run twice; only the GPU's counts."""
    found: dict[str, Agreement] = defaultdict(Agreement)
    before = []
    for module in list(sys.modules.values()):
        if not getattr(module, "__name__", "").startswith("deepinfer.engine."):
            continue
        for name in OPERATIONS & vars(module).keys():
            function = getattr(module, name)
            before.append((module, name, function))
            setattr(module, name, _twice(name, function, found))
    try:
        yield found
    finally:
        for module, name, function in before:
            setattr(module, name, function)


def _twice(
    name: str, function: Callable[..., Any], found: dict[str, Agreement]
) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        copies = _to_cpu((args, kwargs))
        result = function(*args, **kwargs)
        agreement = found[name]
        agreement.calls += 1
        try:
            expected = _PLAIN.get(name, function)(*copies[0], **copies[1])
        except Exception as error:  # the report says so; the pass goes on
            agreement.error = f"{type(error).__name__}: {error}"[:200]
            return result
        actual = result
        if name == "expert_pairs":
            nothing = torch.zeros(len(args[0]), result[0].shape[1], dtype=torch.bfloat16)
            actual = PairOutputs(*result, nothing)
        if name == "gated_linear_and_logits":
            actual = result[0]  # ``route`` shows what logits are worth
        result_tensors, expected_tensors = _tensors(_to_cpu(actual)), _tensors(expected)
        if name.startswith("gated_linear"):  # padded
            result_tensors = [result_tensors[0][:, : expected.shape[1]]]
        if name in _WRITES:
            result_tensors.append(args[_WRITES[name]].cpu())
            expected_tensors.append(copies[0][_WRITES[name]])
        if name in _SEEN:
            seen = copies[0][_SEEN[name]]
            result_tensors, expected_tensors = _visible(result_tensors, expected_tensors, seen)
        for actual, wanted in zip(result_tensors, expected_tensors, strict=True):
            _compare(agreement, actual, wanted)
        return result

    return run


def _plain_linear(x: Tensor, weight: Weight | HopperWeight) -> Tensor:
    """Of what may be activations of another operation, which are padded."""
    plain = weight.plain[0] if isinstance(weight, HopperWeight) else weight
    return quantized_linear(x[:, : plain.dense.shape[1]], weight)


def _plain_experts(*arguments: Any, num_pairs: int, slots: object) -> Tensor:
    """What the pairs add up to, rounded once."""
    return experts(*arguments).to(torch.bfloat16)


def _plain_gated(x: Tensor, gate_up: Weight | HopperWeight, limit: float, linear: object) -> Tensor:
    return fake_quantize_fp8(swiglu(_plain_linear(x, gate_up), limit))


def _plain_gated_and_logits(x: Tensor, *shared: Any) -> Tensor:
    operand, gate_up, limit, linear, _gate, _slots = shared
    return _plain_gated(operand, gate_up, limit, linear)


def _plain_groups(x: Tensor, weight: Weight | HopperWeight, linear: object, *, fp8: bool) -> Tensor:
    """Quantised or not, depending on how many rows there are."""
    return grouped_linear(x, weight, fp8=fp8).flatten(1)


# Which argument says how many scores a query sees.
_SEEN = {"paged_index_scores": 5, "listed_index_scores": 6}
# Where the plain form of an operation on a GPU is another function, or writes into an argument.
_PLAIN: dict[str, Callable[..., Any]] = {
    "quantized_linear": _plain_linear,
    "expert_pairs": _plain_experts,
    "gated_linear": _plain_gated,
    "gated_linear_and_logits": _plain_gated_and_logits,
    "grouped_linear_quantized": _plain_groups,
}
_WRITES = {"store_latents": 3, "split_projection": 2}


def _visible(actual: list[Tensor], wanted: list[Tensor], count: Tensor) -> Any:
    """Scores that a query sees; others are unspecified."""
    seen = torch.arange(wanted[0].shape[1]) < count[:, None]
    return [torch.where(seen, actual[0], 0.0)], [torch.where(seen, wanted[0], 0.0)]


def _compare(agreement: Agreement, actual: Tensor, wanted: Tensor) -> None:
    if actual.shape != wanted.shape:
        agreement.error = f"shape {tuple(actual.shape)}, expected {tuple(wanted.shape)}"
        return
    a, w = actual.double(), wanted.double()
    same = (a == w) | (a.isnan() & w.isnan())
    agreement.num_equal += int(same.sum())
    agreement.num_values += same.numel()
    difference = torch.where(same, 0.0, a - w)
    if not bool(difference.isfinite().all()):
        agreement.error = "values that are not finite at different places"
    difference = difference.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    size = w.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    if size.numel():
        agreement.worst = max(
            agreement.worst, float(difference.abs().max() / size.abs().max().clamp(min=1e-30))
        )
        relative = difference.norm() / size.norm().clamp(min=1e-30)
        agreement.relative = max(agreement.relative, float(relative))


_weights: dict[int, Weight | HopperWeight] = {}


def _to_cpu(value: Any) -> Any:
    """Copies on the CPU, through tuples, mappings and dataclasses; a weight is copied once."""
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, NormedRows):  # what is compared, and quantised again on the CPU
        return NormedRows(value.values.cpu(), value.values.cpu())
    if type(value).__name__ == "Activations":
        return _decoded(value)
    if isinstance(value, PairOutputs):
        return _added_up(value)
    if isinstance(value, Weight | HopperWeight):
        if id(value) not in _weights:
            copies = {f.name: getattr(value, f.name) for f in fields(value)}
            _weights[id(value)] = type(value)(**{n: _to_cpu(copy) for n, copy in copies.items()})
        return _weights[id(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{f.name: _to_cpu(getattr(value, f.name)) for f in fields(value)})
    if isinstance(value, dict):
        return {key: _to_cpu(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        items = [_to_cpu(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _added_up(outputs: PairOutputs) -> Tensor:
    """In fp32, in the order of the choices, on the CPU."""
    rows, row, added = outputs.rows.cpu(), outputs.row.cpu().long(), outputs.added.cpu()
    picked = torch.where(row[:, None] >= 0, rows[row.clamp(min=0)].float(), 0.0)
    total = torch.zeros(added.shape)
    for choice in picked.view(len(added), -1, added.shape[1]).unbind(1):
        total = total + choice
    return (total + added.float()).to(torch.bfloat16)


def _decoded(acts: Any) -> Tensor:
    """The numbers of activations, in bf16 on the CPU; quantising them again changes nothing."""
    values = acts.values.cpu()
    if acts.scales is None or acts.order == KOrder.SPLIT or acts.scales.dtype == torch.uint8:
        return values.to(torch.bfloat16)
    scales = acts.scales.cpu()[:, : len(values)].t().repeat_interleave(128, 1)
    numbers = values.float() * scales
    return (plain_order(numbers) if acts.order == KOrder.FRAGMENT else numbers).to(torch.bfloat16)


def _tensors(value: Any) -> list[Tensor]:
    if value is None:
        return []
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, NormedRows):
        return [value.values]
    if is_dataclass(value):
        return [t for f in fields(value) for t in _tensors(getattr(value, f.name))]
    return [t for item in value for t in _tensors(item)]
