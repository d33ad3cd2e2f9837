"""Which tokens the n-grams of Engram see: across passes, after rejected drafts, around images."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from deepinfer.engine.cache.kv_cache import HISTORY_RING_SIZE
from deepinfer.engine.model.engram import read_history
from deepinfer.engine.model.tokens import Tokens

SIZE, PAD, NUM_SLOTS = 4, 2, 5
NO_WINDOW: Any = SimpleNamespace()


class Texts:
    """Requests with a start, tokens and images; the tokens read are what a walk back finds."""

    def __init__(self, generator: torch.Generator, images: float) -> None:
        self._draw, self._images = generator, images
        self.slots = torch.randperm(NUM_SLOTS, generator=generator)[:3]
        self.starts = [0, 7, 3]
        self.ids = [torch.empty(0, dtype=torch.int64)] * 3
        self.is_image = [torch.empty(0, dtype=torch.bool)] * 3
        # What an earlier request left there must not be seen.
        self.history = torch.full((NUM_SLOTS, HISTORY_RING_SIZE), 77)

    def next_pass(self, parts: list[tuple[int, int]]) -> tuple[torch.Tensor, list[list[int]]]:
        """The next ``count`` tokens of each (request, count): those read, and those wanted."""
        positions, offsets = [], []
        for number, count in parts:
            first = self.starts[number] + len(self.ids[number])
            positions += range(first, first + count)
            offsets += range(count)
            new = torch.randint(3, 60, (count,), generator=self._draw)
            is_image = torch.rand(count, generator=self._draw) < self._images
            self.ids[number] = torch.cat([self.ids[number], new])
            self.is_image[number] = torch.cat([self.is_image[number], is_image])
        rows = [row for row, (_, count) in enumerate(parts) for _ in range(count)]
        images = torch.cat([self.is_image[n][len(self.ids[n]) - count :] for n, count in parts])
        slots = self.slots[[number for number, _ in parts]]
        tokens = Tokens(
            positions=torch.tensor(positions),
            request_rows=torch.tensor(rows),
            places=torch.arange(len(rows)),
            offsets=torch.tensor(offsets),
            slots=slots[rows],
            query_lens=tuple(count for _, count in parts),
            rope={},
            window=NO_WINDOW,
            is_image=images[:, None] if self._images else None,
        )
        compressed = torch.cat([self.ids[n][len(self.ids[n]) - count :] for n, count in parts])
        starts = torch.tensor([self.starts[number] for number, _ in parts])
        read = read_history(self.history, compressed, tokens, starts, size=SIZE, pad=PAD)
        wanted = [
            self._walk(number, len(self.ids[number]) - count + i)
            for number, count in parts
            for i in range(count)
        ]
        return read, wanted

    def reject(self, number: int, count: int) -> None:
        """The last tokens were drafts that the model did not choose."""
        keep = len(self.ids[number]) - count
        self.ids[number] = self.ids[number][:keep]
        self.is_image[number] = self.is_image[number][:keep]

    def _walk(self, number: int, place: int) -> list[int]:
        found: list[int] = []
        while len(found) < SIZE and place >= 0 and not self.is_image[number][place]:
            found.append(int(self.ids[number][place]))
            place -= 1
        return found + [PAD] * (SIZE - len(found))


@pytest.mark.parametrize("images", [0.0, 0.2, 1.0])
def test_what_is_read_is_what_a_walk_back_finds(images: float) -> None:
    """Nothing before a request's start nor behind an image is seen, an image itself reads nothing;
    drafts that were rejected have never been there."""
    generator = torch.Generator().manual_seed(3)
    texts = Texts(generator, images)
    for step in range(60):
        counts = torch.randint(0, 7 if step % 9 else 40, (3,), generator=generator).tolist()
        parts = [(number, count) for number, count in enumerate(counts) if count]
        if not parts:
            continue
        read, wanted = texts.next_pass(parts)
        assert read.tolist() == wanted, f"{step=}"
        for number, count in parts:
            texts.reject(number, int(torch.randint(0, min(count, 6), (), generator=generator)))
