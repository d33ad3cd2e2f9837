"""Lets the tests of this folder import their helper modules, here and in the ranks they start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_FOLDER = str(Path(__file__).parent)
sys.path.insert(0, _FOLDER)
os.environ["PYTHONPATH"] = os.pathsep.join(
    part for part in (_FOLDER, os.environ.get("PYTHONPATH", "")) if part
)

from rank_pool import RankPool  # noqa: E402


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    """No longer than it is needed: threads of four idle ranks take a third of a core."""
    ranks = RankPool()
    yield ranks
    ranks.close()
