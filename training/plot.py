"""Plots the loss curves of training logs.

python -m training.plot recipes/tiny/training.png log-backbone-*.jsonl log-draft-*.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402


def read(paths: list[Path]) -> list[dict[str, Any]]:
    entries = [json.loads(line) for path in paths for line in path.read_text("utf-8").splitlines()]
    return sorted(entries, key=lambda entry: (entry["stage"], entry["step"]))


def main() -> None:
    target, entries = Path(sys.argv[1]), read([Path(p) for p in sys.argv[2:]])
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6), constrained_layout=True)
    curve(left, entries, "backbone", ("loss", "index"))
    curve(right, entries, "draft", ("draft", "variation", "confidence"))
    for kind in ("valid", "valid-long"):
        found = [
            (e["step"], e["valid"])
            for e in entries
            if e.get("kind") == kind and e["stage"] == "backbone"
        ]
        if found:
            left.plot(*zip(*found, strict=True), "o", label=kind)
    for axes, title in ((left, "backbone"), (right, "draft stages")):
        axes.set(title=title, xlabel="update", ylabel="nats per token")
        axes.legend()
    figure.savefig(target, dpi=110)


def curve(axes: Any, entries: list[dict[str, Any]], stage: str, names: tuple[str, ...]) -> None:
    for name in names:
        points = [(e["step"], e[name]) for e in entries if e["stage"] == stage and name in e]
        if points:
            axes.plot(*zip(*points, strict=True), label=name, linewidth=1)


if __name__ == "__main__":
    main()
