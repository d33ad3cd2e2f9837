"""What constraints add to a decode step of a GPU; needs torch, triton and numpy only.

    python benchmarks/constraint_gpu.py

64 requests, a vocabulary of 129,280.  The model is a stand-in: matrix products in a CUDA graph that
take as long as asked for, then logits of the real size.  The constraint is a stand-in, too: random
masks that are ready after a given time, as long as llguidance needs for such a batch; its threads
hold no lock of Python's meanwhile, so a sleep stands for them.  All the rest is the engine's own.

Three ways take turns, step by step: without constraints, with them, and without them but one step
after the other, as they had to be run before masks were asked for beside the model.  Then steps
that verify five drafts.  One JSON line for each case: milliseconds of a step, medians.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepinfer.engine.execution.batch import DraftOutput
from deepinfer.engine.execution.decode import DecodeWorker, DrawnDecode
from deepinfer.engine.execution.decode_step import StepOutput
from deepinfer.engine.execution.staging import host_zeros
from deepinfer.engine.sampling.constraint import AnswerConstraint, Mask
from deepinfer.engine.sampling.sampler import Sampler
from deepinfer.engine.scheduling.request_state import RequestState
from deepinfer.engine.scheduling.schedule import DecodeBatch
from deepinfer.engine.types import Request, SamplingParams
from deepinfer.errors import RowError
from deepinfer.kernels.sampling import mask_logits, sample

BATCH, VOCAB_SIZE, WIDTH, NUM_DRAFTS = 64, 129_280, 5_120, 5
NUM_STEPS, WARM_STEPS = 24, 4
STEP_MS = (10.0, 40.0)
MASK_MS = (1.5, 4.0)


class StandInConstraint:
    """Half of all tokens, another half after each; ``MASK_S`` for a batch without drafts."""

    mask_s = 0.0
    patterns = np.random.default_rng(0).integers(0, 2**32, (16, VOCAB_SIZE // 32), dtype=np.uint32)
    is_finished = False

    def __init__(self, number: int) -> None:
        self.number = number
        self.num_tokens = 0

    @classmethod
    def fill_masks(
        cls, constraints: Sequence[Any], drafts: Sequence[Sequence[int]], out: Mask
    ) -> list[RowError | None]:
        row = 0
        for rule, ids in zip(constraints, drafts, strict=True):
            for place in range(1 + len(ids)):
                out[row] = cls.patterns[(rule.number + rule.num_tokens + place) % 16]
                row += 1
        time.sleep(cls.mask_s * row / BATCH)
        return [None] * len(constraints)

    def forced_tokens(self) -> list[int]:
        return []

    def num_allowed(self, draft_token_ids: Sequence[int]) -> int:
        return len(draft_token_ids)

    def push(self, token_id: int) -> None:
        self.num_tokens += 1


@dataclass
class StandInStep:
    """What ``DecodeWorker`` uses of a ``DecodeStep``."""

    sampler: Sampler
    seconds: float

    def __post_init__(self) -> None:
        self.table = SimpleNamespace(device="cuda")
        self.vocab_size = VOCAB_SIZE
        self.newest = torch.zeros(BATCH, dtype=torch.int64, device="cuda")
        self.position = torch.zeros(1, dtype=torch.int64, device="cuda")
        self.graphs: dict[int, tuple[Any, Tensor]] = {}
        self.hidden = torch.randn(4_096, WIDTH, device="cuda", dtype=torch.bfloat16) / WIDTH**0.5
        self.square = torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16)
        self.head = torch.randn(WIDTH, VOCAB_SIZE, device="cuda", dtype=torch.bfloat16)
        self.num_products = 1
        one = _seconds(torch.matmul, self.hidden, self.square)
        self.num_products = max(1, round(self.seconds / one))

    def run(self, states: Sequence[Any], first: object, drafts: object) -> StepOutput:
        count = len(states) * (1 + (NUM_DRAFTS if drafts else 0))
        if count not in self.graphs:
            self._model(count)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                logits = self._model(count)
            self.graphs[count] = graph, logits
        graph, logits = self.graphs[count]
        graph.replay()
        self.position += 1
        slots = torch.arange(len(states), device="cuda").repeat_interleave(count // len(states))
        return StepOutput(logits, slots, self.position.expand(count).contiguous())

    def draft(self, states: Sequence[Any]) -> DraftOutput:
        shape = (len(states), NUM_DRAFTS)
        return DraftOutput(
            token_ids=torch.randint(0, VOCAB_SIZE, shape, device="cuda"),
            logits=torch.empty((*shape, 1), device="cuda"),
            confidence=torch.ones(shape, device="cuda"),
        )

    def note_newest(self, states: object, token_ids: object) -> None:
        pass

    def _model(self, count: int) -> Tensor:
        x = self.hidden
        for _ in range(self.num_products):
            x = self.hidden @ self.square
        logits: Tensor = (x[:count] @ self.head).float()
        return logits


class Feed:
    """One way of making steps; ``step`` gives its seconds."""

    def __init__(self, step: StandInStep, *, is_held: bool, is_ahead: bool, drafts: int) -> None:
        self.worker = DecodeWorker(_any(step), calibration=_any(_Sure()))
        self.states = [_state(slot, is_held) for slot in range(BATCH)]
        step.sampler.assign(self.states)
        self.batch = DecodeBatch(states=self.states, num_drafts=[drafts] * BATCH)
        self.is_ahead = is_ahead
        self.drawn: DrawnDecode | None = None

    def step(self) -> float:
        """As ``LLMEngine._run_ahead`` or ``DecodeWorker.run`` do it."""
        begin = time.perf_counter()
        if self.is_ahead:
            launched = self.worker.launch(self.worker.plan(self.batch))
            if self.drawn is not None:
                self._push(self.worker.finish(self.drawn).tokens)
            with self.worker.start_masks(launched.plan) as masks:
                self.drawn = self.worker.draw(launched, masks)
        else:
            self._push(self.worker.run(self.batch).tokens)
        return time.perf_counter() - begin

    def drain(self) -> None:
        if self.drawn is not None:
            self._push(self.worker.finish(self.drawn).tokens)
            self.drawn = None
        torch.cuda.synchronize()

    def _push(self, tokens: list[list[int]]) -> None:
        for state, ids in zip(self.states, tokens, strict=True):
            for token_id in ids:
                state.append(token_id)


def _any(stand_in: Any) -> Any:
    """For where a type is asked that a stand-in has only the needed part of."""
    return stand_in


class _Sure:
    """Every draft survives, as far as the planner is told."""

    def survival(self, confidence: Tensor, logits: Tensor, is_greedy: object) -> Tensor:
        return confidence


def _state(slot: int, is_held: bool) -> RequestState:
    sampling = SamplingParams(temperature=1.0)
    state = RequestState(
        request=Request(request_id=str(slot), prompt_token_ids=(0,), sampling=sampling, seed=slot),
        arrival=slot,
        arrived_s=0.0,
        token_ids=[0],
        num_prompt_tokens=1,
        max_output_tokens=1_000_000,
        decoder_start=0,
        stop_token_ids=frozenset(),
    )
    state.slot = slot
    state.constraint = AnswerConstraint(StandInConstraint(slot)) if is_held else None
    return state


def _seconds(work: Callable[..., object], *arguments: object, repeats: int = 10) -> float:
    """Device seconds of one call, back to back."""
    work(*arguments)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(repeats):
        work(*arguments)
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / repeats


def _kernels(rows: int) -> dict[str, float]:
    """Microseconds of the parts that constraints add on the device, and of sampling."""
    logits = torch.randn(rows, VOCAB_SIZE, device="cuda")
    row_ids = torch.arange(rows, device="cuda")
    half = torch.randint(-(2**31), 2**31, (rows, VOCAB_SIZE // 32), device="cuda").int()
    one, zero = torch.ones(rows, device="cuda"), torch.zeros_like(row_ids)
    sampling = (logits, one, one, zero, 0 * one, row_ids, zero)
    seconds = {"sample": _seconds(sample, *sampling)}
    for name, masks in (("all", half | -1), ("half", half), ("none", half & 0)):
        seconds[f"mask, {name} allowed"] = _seconds(mask_logits, logits, masks, row_ids)
    host = host_zeros(tuple(half.shape), torch.int32, "cuda")
    seconds["send masks"] = _seconds(lambda: host.to("cuda", non_blocking=True))
    return {name: round(1e6 * value, 1) for name, value in seconds.items()}


@torch.inference_mode()
def main() -> int:
    if not torch.cuda.is_available():
        print("this needs an NVIDIA GPU", file=sys.stderr)
        return 1
    print(json.dumps({"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__}))
    for rows in (BATCH, BATCH * (1 + NUM_DRAFTS)):
        print(json.dumps({"rows": rows, "us": _kernels(rows)}), flush=True)
    for step_ms in STEP_MS:
        step = StandInStep(Sampler(BATCH, "cuda"), step_ms / 1e3)
        for drafts in (0, NUM_DRAFTS):
            ways = {
                "free": Feed(step, is_held=False, is_ahead=not drafts, drafts=drafts),
                "held": Feed(step, is_held=True, is_ahead=not drafts, drafts=drafts),
            }
            if not drafts:
                ways["one by one"] = Feed(step, is_held=True, is_ahead=False, drafts=0)
            for mask_ms in MASK_MS:
                StandInConstraint.mask_s = mask_ms / 1e3
                found: dict[str, list[float]] = {name: [] for name in ways}
                for _ in range(3):  # turns of some steps, as a step ahead belongs to its way
                    for name, feed in ways.items():
                        seconds = [feed.step() for _ in range(WARM_STEPS + NUM_STEPS // 3)]
                        found[name] += seconds[WARM_STEPS:]
                        feed.drain()
                line = {"drafts": drafts, "masks_take_ms": mask_ms * (1 + drafts)}
                line |= {f"{n}_ms": round(1e3 * statistics.median(s), 2) for n, s in found.items()}
                line["added"] = round(line["held_ms"] / line["free_ms"] - 1, 4)
                print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
