"""The documents as a site: complete, without a warning, without anything from elsewhere.

Needs mkdocs (``pip install '.[docs]'``); what a site would complain of is also tested without it,
in ``test_links.py`` and ``test_kernel_pages.py``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_site_is_built_and_loads_nothing_from_elsewhere(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="needs mkdocs: pip install '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=root, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) >= len(list((root / "docs").rglob("*.md")))
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|link rel="(?:stylesheet|preload|preconnect)")[^>]*'
                            r'(?:src|href)="(https?:[^"]+)"', text)  # fmt: skip
        assert loaded == [], page.name
