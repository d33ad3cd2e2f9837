"""``Shard``: the rows that one of several machines answers, and its output file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard ``number`` of ``count``: rows number - 1, number - 1 + count, ... of the input.

    Rows keep their numbers in the whole input, so ids, seeds and answers do not depend on the
    sharding.
    """

    number: int = 1
    count: int = 1

    @classmethod
    def of(cls, setting: str | None) -> Shard:
        """The shard that the setting ``2/8`` means; None is the whole input."""
        return cls(*map(int, setting.split("/"))) if setting else cls()

    @classmethod
    def of_file(cls, output: Path, path: Path) -> Shard | None:
        """The shard of ``output`` that the name of ``path`` says; None for other names."""
        name = re.escape(output.stem) + r"\.(\d+)-of-(\d+)" + re.escape(output.suffix)
        match = re.fullmatch(name, path.name)
        return cls(int(match[1]), int(match[2])) if match else None

    def holds(self, index: int) -> bool:
        return index % self.count == self.number - 1

    def num_rows(self, total: int) -> int:
        """How many of an input's ``total`` rows are in this shard."""
        return max(0, -(-(total - self.number + 1) // self.count))

    def path(self, output: Path) -> Path:
        """``out.jsonl`` -> ``out.2-of-8.jsonl``; the whole input keeps its name."""
        if self.count == 1:
            return output
        return output.with_name(f"{output.stem}.{self.number}-of-{self.count}{output.suffix}")

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def shards_beside(output: Path) -> dict[Path, Shard]:
    """The finished and unfinished shards of ``output`` in its folder, by name."""
    found = {}
    if output.parent.is_dir():
        for path in sorted(output.parent.iterdir()):
            path = path.with_name(path.name.removesuffix(".partial"))
            if shard := Shard.of_file(output, path):
                found[path] = shard
    return found
