"""The rehearsal finds every kernel, for every batch."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

_KERNELS = Path(__file__).parents[2] / "kernels"
_UNPLANNED = {
    # Noise by itself: the kernels that draw and verify make their own.
    "noise_kernel",
    # Experts of several ranks: one rank leaves this sum to the next block.
    "_sum_kernel",
    # The streams' product with the mixing weights, and their end: SM90 has others.
    "mix_kernel",
    "finish_kernel",
    # Results of experts that are not sent by the Hopper form of their last product.
    "send_rows_kernel",
    # Before the Hopper form of attention, which takes the released model's sizes.
    "unpack_kernel",
}

_PLAN = """
import json, sys
import torch
from deepinfer.engine import kernel_plan
from deepinfer.engine.kernel_plan import model_launches
from deepinfer.kernels.rehearsal import PretendedDevice, rehearse
from deepinfer.kernel_build import model_config

config = model_config("tiny")
device = PretendedDevice((9, 0))
planned = model_launches(config, device)
names = sorted({launch.kernel.fn.__name__ for launch in planned})

def facts(launch):
    return str((launch.kernel, launch.signature, launch.constants, launch.attributes,
                launch.options))

known = {facts(launch) for launch in planned}
models = [kernel_plan.model_of_zeros(config, device, as_fp8=form) for form in (False, True)]
passes = json.loads(sys.argv[1])
with rehearse(device) as launches, torch.inference_mode():
    for place, number in enumerate(passes):
        kernel_plan._pass(models[place % 2], *number)
print(json.dumps({
    "names": names,
    "unknown": [facts(launch) for key, launch in launches.items() if facts(launch) not in known],
    "seen": len(launches),
}))
"""


def test_every_launch_says_whether_it_fuses() -> None:
    """Triton warns where that is left to it, and 3.10 will decide otherwise."""
    silent = []
    for path in _KERNELS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(ast.Call(ast.Name("launch"), [ast.Name(name), _]), _, keywords):
                    if "enable_fp_fusion" not in [keyword.arg for keyword in keywords]:
                        silent.append(f"{path.name}:{node.lineno} {name}")
    assert not silent


def test_other_batches_launch_nothing_else(in_own_process: Callable[..., Any]) -> None:
    """Batches that the plan does not hold, with experts in one form and the other in turns: no
    kernel that is not in it."""
    passes = [(2, 1, 39), (5, 6, 777), (33, 2, 1500), (1, 700, 1), (9, 40, 2600), (64, 6, 333)]
    passes += [(1, 450, 1), (1, 1200, 1), (4, 600, 1)]
    found = in_own_process(_PLAN, str([list(entry) for entry in passes]))
    assert found["unknown"] == []
    assert found["seen"] > 40
    launched = set()
    for path in _KERNELS.rglob("*.py"):
        if path.name.startswith("gluon"):
            continue  # for the released model's sizes
        launched |= set(re.findall(r"\blaunch\((\w+),", path.read_text(encoding="utf-8")))
    assert launched - set(found["names"]) == _UNPLANNED
