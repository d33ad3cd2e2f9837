"""Paths of a run's output, and the check that they replace no input."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from deepinfer.errors import ConfigError

# All files of a working folder; others are never touched.
OUR_FILES = {"lock", "run.json", "run.json.new", "journal", "index", "results", "errors"}
OUR_FILES |= {"report", "report.json", "report.new", "status.json", "status.json.new"}
OUR_FILES |= {"earlier.json", "earlier.new", "retried.json"}
# Paths of stdin and of shell pipes such as <(cat *.jsonl), beside which no files can be written.
_FOLDERS_OF_PIPES = ("/dev/stdin", "/dev/fd/", "/proc/")
_ENDINGS_OF_JSONL = (".gz", ".zst", ".jsonl", ".ndjson", ".json", ".csv", ".tsv")


def default_output(source: str) -> str:
    """``prompts.jsonl`` -> ``prompts.out.jsonl``, Parquet -> ``.out.parquet``, stdin -> stdout."""
    if source == "-" or source.startswith(_FOLDERS_OF_PIPES):
        return "-"
    path = Path(source) if Path(source).name else Path(source).resolve()
    if path.suffix == ".parquet":
        return str(path.with_suffix(".out.parquet"))
    while path.suffix in _ENDINGS_OF_JSONL:
        path = path.with_suffix("")
    return str(path.with_name(path.name + ".out.jsonl"))


@dataclass(frozen=True, slots=True)
class OutputPaths:
    """Paths of a run's output.  ``results`` appears when everything is finished."""

    results: Path

    @property
    def errors(self) -> Path:
        return self.results.with_name(self.results.name + ".errors.jsonl")

    @property
    def report(self) -> Path:
        return self.results.with_name(self.results.name + ".report.json")

    @property
    def partial(self) -> Path:
        return self.results.with_name(self.results.name + ".partial")

    @property
    def written(self) -> list[Path]:
        """All files that a run creates or replaces."""
        inside = [self.partial / name for name in sorted(OUR_FILES)]
        return [self.results, self.errors, self.report, *inside]


def check_inputs_are_safe(sources: Iterable[str | Path], written: Iterable[Path]) -> None:
    """Raise ConfigError if a file that this run would replace is one of ``sources``."""
    for source, path in product(sources, list(written)):
        try:
            is_input = source != "-" and path.exists() and path.samefile(source)
        except FileNotFoundError:
            continue
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise ConfigError(f"cannot write {path}: {reason}; give another place") from error
        if is_input:
            raise ConfigError(
                f"{source} is the input, and {path} would replace it; give that another name"
            )
