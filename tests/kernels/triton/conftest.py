"""Kernels run on the GPU if there is one, else in Triton's interpreter on the CPU.

Triton decides at the moment a kernel is decorated, so the choice is made here, before any test of
this folder imports one.  Compilation without a GPU is tested in processes of its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
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
def _interpreter_does_nothing_in_vain() -> Iterator[None]:
    """Half of the time of Triton's interpreter, without a change of what it computes.

    For each call of a device function it looks through the whole language for what it has to
    replace: here once for each function, and what it replaced stays.  For each sum of integers it
    finds out whether they overflow, and forgets the answer unless it debugs: here only then.  For
    each operation it lists the types of numpy: here once.
    """
    if HAS_GPU:
        yield
        return
    from triton.runtime import interpreter

    replace_language, numpy_type = interpreter._patch_lang, interpreter._get_np_dtype
    builder = interpreter.interpreter_builder
    options = replace(builder.options, sanitize_overflow=builder.options.debug)
    numpy_types: dict[str, Any] = {}

    @cache
    def replace_for_good(function: Any) -> Any:
        replace_language(function)
        return interpreter._LangPatchScope()  # nothing to restore

    def known_numpy_type(triton_type: Any) -> Any:
        name = triton_type.scalar.name
        if name not in numpy_types:
            numpy_types[name] = numpy_type(triton_type)
        return numpy_types[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", replace_for_good)
        patch.setattr(interpreter, "_get_np_dtype", known_numpy_type)
        patch.setattr(builder, "options", options)
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
