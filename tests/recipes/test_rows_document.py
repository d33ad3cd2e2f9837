"""docs/rows.md names every kind of row and of error that the code knows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from deepinfer.recipes.sampling_fields import SAMPLING_FIELDS
from deepinfer.recipes.types import RowKind

ROOT = Path(__file__).parent.parent.parent


def test_the_document_is_complete():
    text = (ROOT / "docs" / "rows.md").read_text(encoding="utf-8")
    sources = [*ROOT.glob("recipes/*.py"), *ROOT.glob("deepinfer/*.py")]
    kinds = {
        kind
        for source in sources
        for kind in re.findall(r'RowError\(\s*"(\w+)"', source.read_text(encoding="utf-8"))
    }
    assert len(kinds) > 5
    for word in {*kinds, *get_args(RowKind)}:
        assert f"`{word}`" in text, word
    for name in SAMPLING_FIELDS:
        assert name in text, name
