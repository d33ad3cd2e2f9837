"""Kernels run on the GPU if there is one, else in Triton's interpreter on the CPU.

Triton decides at the moment a kernel is decorated, so the choice is made here, before any test of
this folder imports one.  Compilation without a GPU is tested in processes of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parent))  # of modules that tests share

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    assert "triton" not in sys.modules, "something imported triton before it could be interpreted"
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session", autouse=True)
def _interpreter_looks_once() -> Iterator[None]:
    """Triton's interpreter looks through the whole language for what it has to replace, again for
    each call of a device function: a third of its time.  Here it does so once for each function,
    and leaves what it replaced."""
    if HAS_GPU:
        yield
        return
    from triton.runtime import interpreter

    replace = interpreter._patch_lang

    @cache
    def replace_for_good(function: Any) -> Any:
        replace(function)
        return interpreter._LangPatchScope()  # nothing to restore

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", replace_for_good)
        yield


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where a kernel's tensors lie: the interpreter's CPU, or the GPU (``pytest -m gpu``)."""
    if (request.param == "cuda") != HAS_GPU:
        reason = "kernels are compiled here: use -m gpu" if HAS_GPU else "no NVIDIA GPU"
        pytest.skip(reason)
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def _fixed_and_silent() -> Iterator[None]:
    """Fixed seed; like a GPU, the interpreter says nothing of infinities."""
    torch.manual_seed(0)
    with np.errstate(all="ignore"):
        yield


@pytest.fixture
def needs_sm90() -> None:
    if not HAS_GPU or torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("no NVIDIA SM90")
