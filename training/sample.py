"""Answers 50 held-out prompts with a checkpoint, without selection, as Markdown for the model card.

python -m training.sample recipes/tiny > samples.md
"""

from __future__ import annotations

import sys
from typing import Any

from training.answers import fact
from training.conversations import asked_story
from training.grammar import Writer
from training.sums import arithmetic
from training.tasks import task

from deepinfer import OfflineEngine, SamplingParams

SEED = "samples"
MAX_TOKENS = 400


def prompts() -> list[dict[str, Any]]:
    """30 stories, 8 facts, 6 sums (half with thinking), 6 tasks; other seeds than the corpus's."""
    writer = Writer(SEED)
    rows: list[dict[str, Any]] = [{"prompt": asked_story(writer)[0]} for _ in range(30)]
    rows += [{"prompt": fact(writer)[0]} for _ in range(8)]
    rows += [
        {"prompt": arithmetic(writer)[0], "thinking": ("off", "default")[i % 2]} for i in range(6)
    ]
    rows += [{"prompt": task(writer)[0]} for _ in range(6)]
    return rows


def main() -> None:
    rows = prompts()
    params = [
        SamplingParams(temperature=0.6, max_tokens=MAX_TOKENS, seed=i) for i in range(len(rows))
    ]
    with OfflineEngine(model_path=sys.argv[1]) as engine:
        outputs = engine.generate(rows, params)
    for i, (row, output) in enumerate(zip(rows, outputs, strict=True)):
        sample = output.samples[0]
        print(
            f"### {i + 1} ({sample.finish_reason})\n\n> "
            + row["prompt"].replace("\n", "\n> ")
            + "\n"
        )
        if output.reasoning:
            print(f"*{output.reasoning.strip()}*\n")
        print(output.text + "\n")


if __name__ == "__main__":
    main()
