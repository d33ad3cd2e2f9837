"""Compiles cases of kernels for GPUs that are not here, and says what came out.

    python compiled_kernels.py a_test_module.py 90 [all]

The module's ``add_cases`` says what is compiled, ``FEW`` what of it by default.  In a process of
its own, because that of the tests may have set Triton to interpret.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

Add = Callable[..., None]  # (name, kernel, types, constants, **options)

_INSTRUCTIONS = ("QGMMA", "HGMMA", "UTMALDG", "WARPGROUP.ARRIVE")
_MATRIX_STEP = r"(?:wgmma\.mma_async|tcgen05\.mma|mma\.sync)\S+"


class Compiled:
    """What the cases of a test module became, by architecture and name."""

    def __init__(self, module: str, few: Iterable[str]) -> None:
        """``few``: the names of what is compiled by default; the others take minutes."""
        self._module, self._few = module, frozenset(few)

    def kernel(self, arch: int, name: str) -> dict[str, Any]:
        """One that fits: registers, and shared memory."""
        kernel = self.kernels(arch, every=name not in self._few)[name]
        assert kernel["stack_bytes"] <= 32, (name, kernel)  # 8 registers
        assert kernel["shared_bytes"] <= 227 * 1024
        return kernel

    def kernels(self, arch: int, every: bool = False) -> dict[str, dict[str, Any]]:
        return _compiled(self._module, arch, every)

    def steps(self, arch: int, name: str) -> str:
        """The instructions of its products."""
        return " ".join(self.kernel(arch, name)["steps"])


def cases(few: Iterable[str], more: Iterable[str]) -> list[Any]:
    return [*few, *(pytest.param(name, marks=pytest.mark.slow) for name in more)]


@cache
def _compiled(module: str, arch: int, every: bool) -> dict[str, dict[str, Any]]:
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    env["TRITON_DEFAULT_FP_FUSION"] = "1"
    # -P: the folder of tests of Triton must not hide Triton.
    command = [sys.executable, "-P", __file__, module, str(arch), *["all"] * every]
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    compiled: dict[str, dict[str, Any]] = json.loads(run.stdout)
    return compiled


def _compile(module: str, arch: int, every: bool) -> dict[str, dict[str, Any]]:
    from deepinfer.kernels.aot import compile_kernel, disassemble

    found = runpy.run_path(module)
    compiled: dict[str, dict[str, Any]] = {}

    def add(
        name: str, kernel: Any, types: str | list[str], constants: dict[str, Any], **options: Any
    ) -> None:
        """``types``: one word an argument; "n" an i32, "n16" one that is a multiple of 16."""
        if not every and name not in found["FEW"]:
            return
        names = [arg for arg in kernel.arg_names if arg not in constants]
        listed = types.split() if isinstance(types, str) else types
        words = dict(zip(names, listed, strict=True))
        result = compile_kernel(
            kernel,
            {arg: "i32" if word in ("n", "n16") else word for arg, word in words.items()},
            constants,
            arch=arch,
            multiples_of_16=[arg for arg, word in words.items() if word == "n16"],
            **options,
        )
        steps = sorted(set(re.findall(_MATRIX_STEP, result.ptx)))
        compiled[name] = {
            "steps": steps,
            "stack_bytes": result.stack_bytes,
            "shared_bytes": result.shared_bytes,
            "hints": result.ptx.count("L2::cache_hint"),
        }
        if name.startswith(("narrow", "wide")):
            sass = disassemble(result.cubin)
            compiled[name] |= {word: sass.count(word) for word in _INSTRUCTIONS}

    found["add_cases"](arch, add)
    return compiled


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent))
    print(json.dumps(_compile(sys.argv[1], int(sys.argv[2]), every="all" in sys.argv)))
