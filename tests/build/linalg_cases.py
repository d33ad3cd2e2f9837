"""Every family's launcher on small inputs, its kernels run from Ascend's Linalg on this CPU.

    python linalg_cases.py FOLDER TOOLS [name ...]

FOLDER takes what is compiled, TOOLS is where triton-ascend lies.  Prints JSON: for each case, how
far the results are from the plain torch reference.  A script of its own because the kernels of the
test process may be interpreted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from linalg_cpu import LinalgKernel
from torch import Tensor
from triton.runtime.jit import JITFunction

from deepinfer.kernels.ascend.environment import worker_environment
from deepinfer.kernels.attention import sparse_attention
from deepinfer.kernels.compile_pool import compile_all
from deepinfer.kernels.compile_task import task_of
from deepinfer.kernels.dspark import draft_confidence
from deepinfer.kernels.engram import engram_gate, engram_hash, engram_lookup
from deepinfer.kernels.gemm import Weight, fp32_linear, grouped_linear, quantized_linear
from deepinfer.kernels.hyper_connection import Entrance, Entry, HyperMix, Mixer, advance_streams
from deepinfer.kernels.indexer import candidate_blocks, paged_index_scores, select_topk
from deepinfer.kernels.moe import experts, route, swiglu
from deepinfer.kernels.norm import rms_norm
from deepinfer.kernels.quant import pack_index_rows, pack_main_rows, pack_window_rows
from deepinfer.kernels.rehearsal import Launch, PretendedDevice, pretend, rehearse
from deepinfer.kernels.rope import rope_frequencies, rope_table
from deepinfer.kernels.rows import pack_latents, split_projection
from deepinfer.kernels.sampling import exponential_noise, mask_logits, penalize_logits, sample

DEVICE = PretendedDevice(None)
Results = Tensor | Iterable[Tensor]


def _rows(*shape: int) -> Tensor:
    return torch.randn(*shape).bfloat16()


def _index(rows: int, *shape: int) -> Tensor:
    return torch.randint(0, rows, shape).masked_fill(torch.rand(*shape) < 0.3, -1)


def _fp4(members: int, n: int, k: int) -> Weight:
    scales = torch.randint(122, 125, (members, n, k // 32), dtype=torch.uint8)
    values = torch.randint(-128, 128, (members, n, k // 2), dtype=torch.int8)
    return Weight(values, scales.view(torch.float8_e8m0fnu))


def _fp8(n: int, k: int) -> Weight:
    scales = torch.randint(116, 119, (n // 32, k // 32), dtype=torch.uint8)
    values = torch.randn(n, k).mul(60).clamp(-400, 400).to(torch.float8_e4m3fn)
    return Weight(values, scales.view(torch.float8_e8m0fnu))


def cases() -> dict[str, Callable[[], Results]]:
    """Every family's cases on operands that are the same in each process."""
    torch.manual_seed(0)
    families = (
        _attention, _row_cases, _linears, _expert_cases, _streams, _index_cases, _engram, _drafts,
        _sampling,
    )  # fmt: skip
    return {name: case for family in families for name, case in family().items()}


def _attention() -> dict[str, Callable[[], Results]]:
    tokens, heads, width = 3, 16, 128
    q, sink, rope = _rows(tokens, heads, width), torch.randn(heads), _rope()
    window = pack_window_rows(torch.randn(40, width) / 4), _index(40, tokens, 33)
    main = pack_main_rows(torch.randn(60, width) / 4), _index(60, tokens, 70)
    return {"attention": lambda: sparse_attention(q, *window, *main, sink, width**-0.5, rope=rope)}


def _row_cases() -> dict[str, Callable[[], Results]]:
    x, latents, norm, rope = _rows(5, 256), _rows(3, 128), _rows(128), _rope()
    both, norms, linear = _rows(3, 256), _rows(2, 128), _fp8(64, 128)
    return {
        "norm": lambda: rms_norm(x, x[0].contiguous(), 1e-6),
        "norm and quantise": lambda: [
            pack_latents(latents, rope, "window", weight=norm, eps=1e-6),
            pack_latents(latents, rope, "main", weight=norm, eps=1e-6),
            pack_latents(latents, rope, "index"),
        ],
        "projection": lambda: _projection(both, rope, norms, linear),
    }


def _linears() -> dict[str, Callable[[], Results]]:
    x, wide, gate, groups = _rows(5, 256), _fp8(64, 256), Weight(_rows(24, 256)), _rows(2, 32, 128)
    return {
        "quantised linear": lambda: quantized_linear(x, wide),
        "grouped linear": lambda: grouped_linear(x.view(5, 2, 128), Weight(groups)),
        "fp32 linear": lambda: fp32_linear(x, gate),
    }


def _expert_cases() -> dict[str, Callable[[], Results]]:
    x, gate_up, down = _rows(5, 256), _fp4(4, 128, 256), _fp4(4, 256, 64)
    ids = torch.rand(5, 4).argsort(1)[:, :2].sort(1).values
    weights = torch.rand(5, 2)
    gate, bias = Weight(_rows(24, 256)), torch.randn(24) / 10
    return {
        "experts": lambda: experts(x, ids, weights, gate_up, down, 10.0),
        "swiglu": lambda: swiglu(x, 10.0),
        "router": lambda: route(
            x, gate, bias, num_experts_per_tok=6, normalize=True, scaling_factor=1.5
        ),
    }


def _streams() -> dict[str, Callable[[], Results]]:
    tokens = 3
    streams, output, norm = _rows(tokens, 4, 128), _rows(tokens, 128), _rows(128)
    mix = HyperMix(torch.rand(tokens, 4), torch.rand(tokens, 4), torch.rand(tokens, 4, 4))
    fn = Weight(torch.randn(24, 512) / 20)
    mixer = Mixer(fn, torch.rand(3), torch.randn(24), iterations=20, eps=1e-6)
    entrance = Entrance(norm, 1e-6, _fp8(64, 128))
    return {"mhc": lambda: _flat(advance_streams(streams, output, mix, mixer, entrance))}


def _index_cases() -> dict[str, Callable[[], Results]]:
    index = (
        pack_index_rows(torch.randn(5, 8, 128)), _rows(5, 8),
        pack_index_rows(torch.randn(9, 16, 128)), torch.randperm(9).view(3, 3),
        torch.tensor([0, 0, 1, 2, 2]), torch.tensor([40, 41, 7, 48, 0]),
    )  # fmt: skip
    scores, seen = _rows(4, 300), torch.tensor([300, 0, 150, 37])
    long_scores, long_seen = _rows(2, 20000), torch.tensor([20000, 9999])
    return {
        "index scores": lambda: _seen(paged_index_scores(*index, 48), index[-1]),
        "top-k": lambda: [
            select_topk(scores, seen, 64),
            select_topk(long_scores, long_seen, 1024),
            select_topk(long_scores, long_seen, 2048),
            candidate_blocks(scores, seen, 8, 5),
        ],
    }


def _engram() -> dict[str, Callable[[], Results]]:
    lookback = torch.randint(0, 1000, (5, 4))
    primes = torch.tensor([[101, 103], [107, 109], [113, 127]])
    offsets = torch.arange(0, 600, 100).view(3, 2)
    multipliers = torch.randint(1, 2**40, (4,)) * 2 + 1
    table = torch.randn(700, 64).to(torch.float8_e4m3fn)
    scales = torch.randint(120, 130, (700, 2), dtype=torch.uint8).view(torch.float8_e8m0fnu)
    picks = torch.arange(12).view(3, 4) * 57
    streams, key_value, weights = _rows(3, 4, 128), _rows(3, 640), _rows(2, 4, 128)
    return {
        "engram": lambda: [
            engram_hash(lookback, multipliers, primes, offsets),
            engram_lookup(table, scales, picks),
            engram_gate(streams, key_value, weights[0], weights[1]),
        ]
    }


def _drafts() -> dict[str, Callable[[], Results]]:
    anchors, drafts = torch.tensor([3, -1]), torch.tensor([[5, 0, 6], [1, -1, 2]])
    hidden, embed, proj = _rows(2, 3, 128), _rows(7, 32), Weight(_rows(1, 160))
    return {"confidence": lambda: draft_confidence(hidden, anchors, drafts, embed, proj)}


def _sampling() -> dict[str, Callable[[], Results]]:
    logits, positions, least = torch.randn(4, 1000) * 3, torch.arange(4), torch.full((4,), 0.01)
    temperature, top_p = torch.tensor([0.0, 1.0, 0.7, 1.3]), torch.tensor([1.0, 1.0, 0.8, 0.5])
    top_k, seeds = torch.tensor([0, 0, 5, 3]), torch.tensor([1, 2, -3, 2**60])
    return {
        "sampling": lambda: [
            sample(logits, temperature, top_p, top_k, least, seeds, positions),
            exponential_noise(seeds, positions, 1000),
            _masked(logits),
            _penalized(logits),
        ]
    }


def _rope() -> tuple[Tensor, Tensor]:
    return rope_table(rope_frequencies(64, 1e4), torch.tensor([0, 7, 1000]))


def _masked(logits: Tensor) -> Tensor:
    """Logits under masks, in numbers that can be subtracted."""
    masks = torch.arange(2 * 32).view(2, 32).int() * 123_456_789
    found = logits.clone()
    mask_logits(found, masks, torch.tensor([3, 1]))
    return found.clamp(min=-1e4)


def _penalized(logits: Tensor) -> Tensor:
    """Two rows, one of them after two drafts."""
    found, marks = logits.clone(), (torch.arange(2 * 1000) % 5).int().view(2, 1000)
    drafts = torch.tensor([[7, -1], [7, -1]])
    penalties = torch.tensor([[0.5, 0.25, 1.5], [0.0, 1.0, 0.7]])
    penalize_logits(found, torch.tensor([3, 1]), torch.tensor([1, 0]), drafts, marks, penalties)
    return found


def _projection(both: Tensor, rope: Any, norms: Tensor, linear: Weight) -> Results:
    cache, rows = torch.zeros(5, 132, dtype=torch.uint8), torch.tensor([4, 0, 2])
    latents = split_projection(
        both, rope, cache, rows, q_norm=norms[0], kv_norm=norms[1], eps=1e-6, linear=linear
    )
    return [latents.values, cache]


def _seen(scores: Tensor, visible: Tensor) -> Tensor:
    """What a query does not see is unspecified."""
    return scores.masked_fill(torch.arange(scores.shape[1]) >= visible[:, None], 0.0)


def _flat(found: tuple[Tensor, Entry]) -> list[Tensor]:
    return [found[0], *found[1].mix, found[1].rows.values]


class _Runnable:
    """What Triton launches, with our own way to run it."""

    function = packed_metadata = None

    def __init__(self, kernel: LinalgKernel, task: dict[str, Any]) -> None:
        self._kernel = kernel
        constants = {path[0] for path, _ in task["constants"]}
        self._passed = [i for i in range(len(task["arguments"])) if i not in constants]
        self._kinds = [task["signature"][task["arguments"][i]] for i in self._passed]

    def launch_metadata(self, *_: Any) -> None:
        return None

    def run(self, x: int, y: int, z: int, *arguments: Any) -> None:
        bound = arguments[6:]  # after stream, function, metadata and hooks
        self._kernel([bound[i] for i in self._passed], self._kinds, (x, y, z))


def main(folder: Path, tools: Path, wanted: list[str]) -> None:
    chosen = {name: case for name, case in cases().items() if not wanted or name in wanted}
    with rehearse(DEVICE) as launches:
        for case in chosen.values():
            case()
    tasks = [
        task_of(launch) | {"stage": "linalg", "objects": str(folder / "objects")}
        for launch in launches.values()
    ]
    lowered = compile_all(
        tasks,
        jobs=2,
        worker="deepinfer.kernels.ascend.worker",
        environment=worker_environment(tools),
    )
    runnable = {}
    for number, (task, result) in enumerate(zip(tasks, lowered, strict=True)):
        assert "files" in result and result["files"], result
        library = LinalgKernel(Path(result["files"][".linalg.mlir"]), folder / f"{number}")
        runnable[json.dumps(task, sort_keys=True)] = _Runnable(library, task)

    def find(
        kernel: Any, key: Any, signature: Any, device: Any, constants: Any, options: Any,
        attributes: Any, warmup: bool,
    ) -> _Runnable:  # fmt: skip
        launch = Launch(kernel, signature, constants, attributes, dict(options.__dict__))
        task = task_of(launch) | {"stage": "linalg", "objects": str(folder / "objects")}
        return runnable[json.dumps(task, sort_keys=True)]

    JITFunction._do_compile = find
    found = {}
    for name, case in chosen.items():
        expected = _list(case())
        with pretend(DEVICE):
            actual = _list(case())
        found[name] = [_distance(a, e) for a, e in zip(actual, expected, strict=True)]
    print(json.dumps({"cases": found, "kernels": sorted({t["kernel"] for t in tasks})}))


def _list(results: Results) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else list(results)


def _distance(actual: Tensor, expected: Tensor) -> dict[str, Any]:
    """Share of unequal values, and the largest difference relative to the largest value."""
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    a, e = actual.double(), expected.double()
    finite = e.isfinite()
    if not torch.equal(a.isfinite(), finite):
        return {"unequal": 1.0, "error": float("inf")}
    a, e = a[finite], e[finite]
    size = float(e.abs().max()) if e.numel() else 0.0
    return {
        "unequal": float((actual != expected).double().mean()),
        "error": float((a - e).abs().max()) / (size or 1.0) if e.numel() else 0.0,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
