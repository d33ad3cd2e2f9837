"""Trains the embedded model in resumable legs.

    python -m training.train backbone --data D --run R --out O --leg-s 480 --total-s 960
    python -m training.train draft    --data D --run R --out O --leg-s 300 --total-s 300
    python -m training.train backbone --data D --run R --out O --leg-s 300 --total-s 300 --start recipes/tiny --peak 0.3

The learning rate schedule depends on the time spent, so that it ends after ``--total-s`` seconds on any machine.
``--run`` holds the complete state; ``--out`` receives what to keep: log, compact masters, checkpoint.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from training.batches import Batch, endless_batches
from training.corpus_files import TOKEN_MAP, load_documents
from training.draft import Drafter, choose_anchors, draft_loss
from training.evaluate import evaluate, fixed_batches
from training.export import export, load_checkpoint
from training.losses import backbone_loss, balance_routers
from training.model import Backbone
from training.optimizer import Optimizer
from training.parameters import Weights, effective_weights, new_masters
from training.state import COMPLETE, load_compact, load_complete, save_compact, save_complete

from deepinfer.engine.model.config import ModelConfig

WARMUP_STEPS, DECAY_FROM, FINAL_SCALE = 100, 0.5, 0.02
REPLAY_SHARE = 0.4
LONG_EVERY = 8
INDEX_QUERIES = 128
BALANCE_RATE = 2e-3
ANCHOR_SHARE = 8
SAVE_EVERY_S = 100.0


@dataclass(slots=True)
class Run:
    """The state and inputs of a leg."""

    options: argparse.Namespace
    config: ModelConfig
    device: torch.device
    masters: Weights
    backbone: Backbone
    step: int = 0
    elapsed: float = 0.0
    cold_start: int = 0
    log: list[dict[str, Any]] = field(default_factory=list)

    @property
    def progress(self) -> float:
        """Completed fraction of the whole schedule."""
        if self.options.total_steps:
            return self.step / float(self.options.total_steps)
        return self.elapsed / float(self.options.total_s)

    @property
    def scale(self) -> float:
        """The present factor of all learning rates.  Warm-up counts the updates of this optimizer."""
        planned = self.options.total_steps or 10 * WARMUP_STEPS
        warmup = min(WARMUP_STEPS, planned // 10)
        begun = min(1.0, (self.step - self.cold_start + 1) / warmup)
        return float(self.options.peak) * learning_rate_scale(self.progress) * begun

    @property
    def biases(self) -> Weights:
        return {name: m for name, m in self.masters.items() if name.endswith(".gate.bias")}


def learning_rate_scale(progress: float) -> float:
    """Constant, then linear decay; ``progress`` from 0 to 1."""
    return max(FINAL_SCALE, min(1.0, (1 - progress) / (1 - DECAY_FROM)))


def prepare(options: argparse.Namespace) -> Run:
    torch.manual_seed(options.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device(options.device)
    config = ModelConfig.from_file(options.model)
    token_map = np.load(options.data / TOKEN_MAP)
    masters = new_masters(config, options.seed, device)
    backbone = Backbone(config, torch.from_numpy(token_map), device)
    return Run(options, config, device, masters, backbone)


def trained_names(run: Run) -> list[str]:
    is_draft = run.options.stage == "draft"
    return [name for name in run.masters if name.startswith("mtp.") == is_draft]


def backbone_masters(run: Run) -> Weights:
    return {name: master for name, master in run.masters.items() if not name.startswith("mtp.")}


def resume(run: Run, optimizer: Optimizer) -> None:
    """Resume from the complete state, else from the compact one, else from an exported checkpoint, else start with new
    weights."""
    if (run.options.run / COMPLETE).exists():
        saved = load_complete(run.options.run, run.masters)
        if saved["stage"] == run.options.stage:
            optimizer.load_state(saved["optimizer"])
            run.step, run.elapsed = int(saved["step"]), float(saved["elapsed"])
    elif run.options.compact is not None:
        progress = load_compact(run.options.compact, run.masters)
        if run.options.stage == ("draft" if progress["draft"] else "backbone"):
            run.step, run.elapsed = int(progress["step"]), progress["elapsed"]
            run.cold_start = run.step
    elif run.options.start is not None:
        load_checkpoint(run.options.start, run.masters)
        held_out(run)


def batches(run: Run) -> Iterator[Batch]:
    """Batches of ordinary rows; every ``LONG_EVERY``-th batch has long ones."""
    options = run.options
    kinds = []
    for kind, length in (("part-*", options.length), ("long", options.long_length)):
        documents = load_documents(options.data, kind)
        kinds.append(endless_batches(
            documents, length=length, tokens_per_batch=options.tokens_per_batch,
            seed=options.seed + run.step, replay_share=REPLAY_SHARE,
        ))  # fmt: skip
    while True:
        yield next(kinds[run.step % LONG_EVERY == LONG_EVERY - 1])


def train_backbone(run: Run, optimizer: Optimizer) -> Iterator[dict[str, torch.Tensor]]:
    """One update per ``next``."""
    generator = torch.Generator().manual_seed(run.options.seed + run.step)
    for batch_on_cpu in batches(run):
        batch = batch_on_cpu.to(run.device)
        weights = effective_weights(backbone_masters(run), run.config)
        sample = torch.randperm(batch.tokens.shape[1], generator=generator)
        sample = sample[: INDEX_QUERIES * batch.tokens.shape[1] // run.options.length].to(
            run.device
        )
        trace = run.backbone(weights, run.biases, batch, index_sample=sample)
        loss, parts = backbone_loss(trace, weights, batch)
        loss.backward()
        scale = run.scale
        optimizer.step(scale)
        parts["worst_load"] = balance_routers(run.biases, trace, run.config, BALANCE_RATE * scale)
        yield parts


def train_draft(run: Run, optimizer: Optimizer) -> Iterator[dict[str, torch.Tensor]]:
    """One update per ``next``; the backbone is frozen."""
    generator = torch.Generator().manual_seed(run.options.seed + run.step)
    drafter = Drafter(run.config, run.backbone.rotary)
    stages = {name: m for name, m in run.masters.items() if name.startswith("mtp.")}
    with torch.no_grad():
        fixed = effective_weights(backbone_masters(run), run.config)
    for batch_on_cpu in batches(run):
        batch = batch_on_cpu.to(run.device)
        with torch.no_grad():
            trace = run.backbone(fixed, run.biases, batch)
        weights = fixed | effective_weights(stages, run.config)
        anchors = choose_anchors(batch_on_cpu, batch.tokens.numel() // ANCHOR_SHARE, generator).to(
            run.device
        )
        guess = drafter(weights, run.biases, batch, trace.main_hidden, anchors)
        loss, parts = draft_loss(guess, trace, weights, batch, anchors, run.config)
        loss.backward()
        scale = run.scale
        optimizer.step(scale)
        with torch.no_grad():
            for stage, load in enumerate(guess.loads):
                run.masters[f"mtp.{stage}.ffn.gate.bias"] += (
                    BALANCE_RATE * scale * torch.sign(load.mean() - load)
                )
        yield parts


def run_leg(run: Run, optimizer: Optimizer) -> None:
    """Update until the time of the leg or of the whole schedule has passed."""
    options = run.options
    updates = (train_draft if options.stage == "draft" else train_backbone)(run, optimizer)
    begin, first, before = time.monotonic(), run.step, run.elapsed
    saved = begin
    while time.monotonic() - begin < options.leg_s and run.progress < 1.0:
        parts = next(updates)
        run.step += 1
        run.elapsed = before + time.monotonic() - begin
        if run.step % options.log_every == 0 or run.step == first + 1:
            entry = {name: round(float(value), 5) for name, value in parts.items()}
            seconds = time.monotonic() - begin
            rate = (run.step - first) * options.tokens_per_batch / seconds
            record(
                run,
                {
                    "step": run.step,
                    "elapsed_s": round(run.elapsed, 1),
                    "tokens_per_s": round(rate),
                    **entry,
                },
            )
            if not np.isfinite(list(entry.values())).all():
                raise FloatingPointError(f"step {run.step}: {entry}; the last saved state is good")
            if time.monotonic() - saved > SAVE_EVERY_S:
                save(run, optimizer)
                saved = time.monotonic()
        if options.max_steps and run.step - first >= options.max_steps:
            break


def record(run: Run, entry: dict[str, Any]) -> None:
    """Write one line to the log and to the terminal."""
    entry = {"stage": run.options.stage, **entry}
    run.log.append(entry)
    print(json.dumps(entry), flush=True)


def held_out(run: Run) -> None:
    options = run.options
    with torch.no_grad():
        weights = effective_weights(backbone_masters(run), run.config)
    for kind, length in (("valid", options.length), ("valid-long", options.long_length)):
        chosen = fixed_batches(
            load_documents(options.data, kind), length=length,
            tokens_per_batch=options.tokens_per_batch, max_batches=options.valid_batches,
        )  # fmt: skip
        result = evaluate(run.backbone, weights, run.biases, chosen, run.config.sliding_window)
        record(run, {"step": run.step, "kind": kind, **{k: round(v, 5) for k, v in result.items()}})


def save(run: Run, optimizer: Optimizer) -> None:
    """Save the complete state, for the next leg on this machine."""
    state = {"stage": run.options.stage, "step": run.step, "elapsed": run.elapsed}
    save_complete(run.options.run, run.masters, {**state, "optimizer": optimizer.state()})


def finish(run: Run, optimizer: Optimizer) -> None:
    """Save everything, and evaluate the held-out loss."""
    options = run.options
    save(run, optimizer)
    held_out(run)
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / f"log-{options.stage}-{run.step}.jsonl").open(
        "w", encoding="utf-8"
    ) as file:
        file.writelines(json.dumps(entry) + "\n" for entry in run.log)
    if options.keep_masters:
        progress = {
            "draft": float(options.stage == "draft"),
            "step": run.step,
            "elapsed": run.elapsed,
        }
        kept = run.masters if options.stage == "draft" else backbone_masters(run)
        save_compact(options.out, kept, progress)
    if options.export:
        export(
            run.masters, run.config, options.out / "checkpoint", options.model / "tokenizer.json"
        )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=("backbone", "draft"))
    parser.add_argument(
        "--model", type=Path, default=Path("recipes/tiny"), help="config.json, tokenizer.json"
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--compact", type=Path, help="folder of masters-*.safetensors to go on from"
    )
    parser.add_argument("--start", type=Path, help="exported checkpoint to fine-tune")
    parser.add_argument("--peak", type=float, default=1.0, help="of all learning rates")
    parser.add_argument("--leg-s", type=float, default=480.0)
    parser.add_argument("--total-s", type=float, default=960.0)
    parser.add_argument("--total-steps", type=int, default=0, help="schedule by steps, not by time")
    parser.add_argument("--max-steps", type=int, default=0)
    parser.add_argument("--tokens-per-batch", type=int, default=65536)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--long-length", type=int, default=8192)
    parser.add_argument("--valid-batches", type=int, default=3)
    parser.add_argument("--log-every", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--keep-masters", action="store_true")
    parser.add_argument("--export", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    run = prepare(parse(arguments))
    trained = trained_names(run)
    for name in trained:
        run.masters[name].requires_grad_(not name.endswith(".gate.bias"))
    optimizer = Optimizer(run.masters, trained)
    resume(run, optimizer)
    run_leg(run, optimizer)
    finish(run, optimizer)


if __name__ == "__main__":
    main()
