"""Overhead of constraints in a decode step on a GPU.

    python -m benchmarks.constraint_gpu [--step-ms 40 10] [--constraints "json schema" regex gbnf]

64 requests, the V4 vocabulary of 129,280 tokens, real constraints: llguidance computes masks for
every verified position, and checks drafts and tokens.  The model is a stand-in: matrix products in
a CUDA graph that take the requested time, then logits of the real size with a clear maximum at the
next token of a valid answer.  Drafts are that answer's next tokens, three of four correct.
Everything else is the engine's own code.

Runs with and without constraints, with the same answers, alternate every few steps: once without
drafts, where a step is launched before the previous one is read, and once with five.  One JSON line
per case: median milliseconds per step, and the overhead of the constraint.
``--device cpu`` with few ``--requests`` and ``--steps`` only shows that it runs.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.constraint_masks import CONSTRAINTS, TYPICAL, v4_tokenizer
from deepinfer.engine.execution.batch import DraftOutput
from deepinfer.engine.execution.decode import DecodeWorker
from deepinfer.engine.execution.decode_stages import DrawnDecode
from deepinfer.engine.execution.decode_step import StepOutput
from deepinfer.engine.execution.staging import host_zeros, send
from deepinfer.engine.sampling.constraint import AnswerConstraint
from deepinfer.engine.sampling.sampler import Sampler
from deepinfer.engine.scheduling.intake import detached_state
from deepinfer.engine.scheduling.request_state import RequestState
from deepinfer.engine.scheduling.schedule import DecodeBatch
from deepinfer.kernels.sampling import mask_logits, sample
from deepinfer.recipes.constraints.compiler import CompiledConstraint, ConstraintCompiler
from deepinfer.recipes.constraints.vocabulary import ConstraintVocabulary
from deepinfer.recipes.tokenizer import Tokenizer

VOCAB_SIZE, WIDTH, NUM_DRAFTS = 129_280, 5_120, 5
WARM_STEPS, TURNS = 4, 3
DRAFT_SHARE = 1 / 16  # fraction of a step's time for the draft stages
RIGHT_SHARE = 0.75
LONGEST_ANSWER = 120


def matching_answer(compiled: CompiledConstraint, tokenizer: Tokenizer, seed: int) -> list[int]:
    """Tokens of one answer: a typical text as far as it is allowed, then random tokens."""
    chance = random.Random(seed)
    matcher = compiled.new_matcher()
    rest, answer = TYPICAL, list[int]()
    while not matcher.is_finished and len(answer) < LONGEST_ANSWER:
        mask = matcher.mask()
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        wanted = tokenizer.encode_plain(rest)[:1]
        fits = bool(wanted) and wanted[0] in allowed
        answer.append(wanted[0] if fits else int(chance.choice(allowed)))
        rest = rest[len(tokenizer.decode(wanted)) :] if fits else rest
        matcher.push(answer[-1])
    return answer


@dataclass
class StandInStep:
    """A stand-in with the interface of ``DecodeStep``.  ``answers``: the tokens of each slot."""

    device: str
    num_requests: int
    seconds: float
    answers: list[list[int]] = field(default_factory=list)
    num_drafts: int = NUM_DRAFTS
    vocab_size: int = VOCAB_SIZE

    def __post_init__(self) -> None:
        self.sampler = Sampler(self.num_requests, self.device)
        self.table = SimpleNamespace(device=self.device)
        self.model = SimpleNamespace(model=None)
        self.newest = torch.zeros(self.num_requests, dtype=torch.int64, device=self.device)
        self.captured: dict[int, tuple[Callable[[], None], Any]] = {}
        # Without graphs, steps without constraints also read drafts first, so only masks differ.
        self.graphs = SimpleNamespace(is_enabled=False)
        self.chance = random.Random(0)
        is_gpu = self.device != "cpu"
        width = WIDTH if is_gpu else 64
        kind: Any = {"device": self.device, "dtype": torch.bfloat16}
        self.hidden = torch.randn(4_096, width, **kind) / width**0.5
        self.square = torch.randn(width, width, **kind)
        self.head = torch.randn(width, VOCAB_SIZE, **kind)
        one = _seconds(torch.matmul, self.hidden, self.square) if is_gpu else self.seconds
        self.num_products = max(1, round(self.seconds / one))
        self.num_draft_products = max(1, round(DRAFT_SHARE * self.seconds / one))

    def run(
        self, states: Sequence[Any], first: Sequence[int], drafts: Sequence[Sequence[int]] | None
    ) -> StepOutput:
        lengths = [1 + len(ids) for ids in drafts or [()] * len(states)]
        slots = np.repeat([state.slot for state in states], lengths)
        places = np.concatenate(
            [range(at, at + n) for at, n in zip(first, lengths, strict=True)]
        ).astype(np.int64)
        wanted = [self._token(slot, place) for slot, place in zip(slots, places, strict=True)]
        replay, logits = self._graph(self.num_requests * (1 + (NUM_DRAFTS if drafts else 0)))
        replay()
        sent_slots, positions, ids = send([slots, places + 1, wanted], self.device)
        logits = logits[: len(slots)]
        logits.scatter_(1, ids[:, None], 1e4)
        return StepOutput(logits, sent_slots, positions)

    def draft(self, states: Sequence[Any], depth: int, num_new: None = None) -> DraftOutput:
        replay, _ = self._graph(0)
        replay()
        shape = (len(states), depth)
        ids = [
            [
                self._token(state.slot, state.next_position + place)
                if self.chance.random() < RIGHT_SHARE
                else self.chance.randrange(VOCAB_SIZE)
                for place in range(depth)
            ]
            for state in states
        ]
        return DraftOutput(
            token_ids=send(ids, self.device),
            logits=None,
            confidence=torch.ones(shape, device=self.device),
        )

    def note_newest(self, states: object, token_ids: object) -> None:
        pass

    def _token(self, slot: int, place: int) -> int:
        """The token after position ``place``; answers are concatenated."""
        answer = self.answers[slot]
        return answer[place % len(answer)]

    def _graph(self, count: int) -> tuple[Callable[[], None], Any]:
        """A graph of a step with ``count`` rows of logits; 0: of the draft stages."""
        if count not in self.captured:
            logits = self._model(count)
            replay: Callable[[], None] = lambda: None  # noqa: E731  on a CPU once is enough
            if self.device != "cpu":
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    logits = self._model(count)
                replay = graph.replay
            self.captured[count] = replay, logits
        return self.captured[count]

    def _model(self, count: int) -> Tensor | None:
        x = self.hidden
        for _ in range(self.num_products if count else self.num_draft_products):
            x = self.hidden @ self.square
        return (x[:count] @ self.head).float() if count else None


class Feed:
    """Runs steps in one configuration; ``step`` returns seconds."""

    def __init__(
        self, step: StandInStep, compiled: CompiledConstraint | None, *, drafts: int
    ) -> None:
        self.worker = DecodeWorker(_any(step), calibration=_any(_Sure()))
        self.compiled, self.answers = compiled, step.answers
        self.states = [_state(slot) for slot in range(step.num_requests)]
        for state in self.states:
            self._restart(state)
        step.sampler.assign(self.states)
        self.drafts = drafts
        self.drawn: DrawnDecode | None = None

    def step(self) -> float:
        """One step, as in ``LLMEngine._run_ahead`` or ``DecodeWorker.run``."""
        most = [min(self.drafts, self._left(state) - 1) for state in self.states]
        batch = DecodeBatch(states=self.states, num_drafts=most)
        begin = time.perf_counter()
        if self.drafts:
            self._push(self.worker.run(batch).tokens)
        else:
            launched = self.worker.launch(self.worker.plan(batch))
            for state in self.states:
                state.num_in_flight += 1
            self._finish()
            with self.worker.start_masks(launched.plan) as masks:
                self.drawn = self.worker.draw(launched, masks)
        return time.perf_counter() - begin

    def drain(self) -> None:
        self._finish()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def _finish(self) -> None:
        drawn, self.drawn = self.drawn, None
        if drawn is not None:
            self._push(self.worker.finish(drawn).tokens)
            for state in self.states:
                state.num_in_flight -= 1

    def _push(self, tokens: list[list[int]]) -> None:
        for state, ids in zip(self.states, tokens, strict=True):
            for token_id in ids:
                state.append(token_id)
                state.num_computed_tokens += 1
                if self._left(state) == len(self.answers[state.slot]):
                    self._restart(state)

    def _left(self, state: RequestState) -> int:
        """Tokens until the end of this answer; at its end, all of the next one."""
        length = len(self.answers[state.slot])
        return length - state.num_output_tokens % length

    def _restart(self, state: RequestState) -> None:
        if self.compiled is not None:
            state.constraint = AnswerConstraint(self.compiled.new_matcher())
        state.finish_reason = None


def _any(stand_in: Any) -> Any:
    """Type cast for stand-ins that implement only part of a type."""
    return stand_in


class _Sure:
    """A calibration that predicts that every draft is accepted."""

    def survival(self, confidence: Tensor, logits: Tensor, is_greedy: object) -> Tensor:
        return confidence


def _state(slot: int) -> RequestState:
    state = detached_state(slot)
    state.slot, state.max_output_tokens = slot, 10**9
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
    """Microseconds of the kernels that constraints add, and of sampling."""
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


def measure(
    step: StandInStep, compiled: CompiledConstraint, drafts: int, num_steps: int
) -> dict[str, Any]:
    """Alternate both configurations every few steps, as steps of one overlap."""
    ways = {"free": Feed(step, None, drafts=drafts), "held": Feed(step, compiled, drafts=drafts)}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(TURNS):
        for name, feed in ways.items():
            seconds = [feed.step() for _ in range(WARM_STEPS + num_steps)]
            found[name] += seconds[WARM_STEPS:]
            feed.drain()
    medians = {f"{name}_ms": round(1e3 * statistics.median(s), 2) for name, s in found.items()}
    added = statistics.median(found["held"]) / statistics.median(found["free"]) - 1
    return {"drafts": drafts, **medians, "added": round(added, 4)}


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-ms", type=float, nargs="+", default=[40.0, 10.0])
    parser.add_argument(
        "--constraints", nargs="+", choices=CONSTRAINTS, default=["json schema", "regex", "gbnf"]
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--steps", type=int, default=12, help="in each turn")
    options = parser.parse_args()
    num_requests, device = options.requests, options.device
    if device == "cuda":
        if not torch.cuda.is_available():
            print("this needs an NVIDIA GPU", file=sys.stderr)
            return 1
        print(json.dumps({"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__}))
        for rows in (num_requests, num_requests * (1 + NUM_DRAFTS)):
            print(json.dumps({"rows": rows, "us": _kernels(rows)}), flush=True)
    tokenizer = v4_tokenizer()
    steps = [StandInStep(device, num_requests, step_ms / 1e3) for step_ms in options.step_ms]
    with ConstraintCompiler(ConstraintVocabulary(tokenizer, VOCAB_SIZE)) as compiler:
        for name in options.constraints:
            compiled = [compiler.compile(CONSTRAINTS[name]) for _ in range(num_requests)][-1]
            answers = [matching_answer(compiled, tokenizer, seed) for seed in range(8)]
            for step in steps:
                step.answers = [answers[slot % len(answers)] for slot in range(num_requests)]
                for drafts in (NUM_DRAFTS, 0):
                    line = measure(step, compiled, drafts, options.steps)
                    print(json.dumps({"constraint": name, **line}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
