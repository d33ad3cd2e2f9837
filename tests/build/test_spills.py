"""Kernels of the released model keep next to nothing outside of their registers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer_cli.build.bundle_report import MOST_STACK

_BUILD = """
import json, sys
from pathlib import Path
from deepinfer.kernel_build import build_kernels

bundle = build_kernels("full", sys.argv[1], Path(sys.argv[2])).bundle
print(json.dumps([[kernel["kernel"], kernel["stack_bytes"]] for kernel in bundle.kernels]))
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", ["sm90a", "sm100a", "sm103a"])
def test_manifests_show_few_spills(
    target: str, in_own_process: Callable[..., Any], tmp_path: Path
) -> None:
    """Eight registers at most; minutes of compiling."""
    found = in_own_process(_BUILD, target, str(tmp_path / "store"))
    assert len(found) > 100
    spilling = [pair for pair in found if pair[1] > MOST_STACK]
    assert spilling == []
