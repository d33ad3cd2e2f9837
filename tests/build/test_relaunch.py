"""Launches that skip Triton's own description of their arguments are those that Triton makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_START = """
import json, random
from types import SimpleNamespace
import torch
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction
from deepinfer.errors import TensorError
from deepinfer.kernels import rehearsal
from deepinfer.kernels.gemm.gluon_slim import slim_kernel
from deepinfer.kernels.gemm.gluon_tiles import described_tiles
from deepinfer.kernels.relaunch import launch, launch_key
from deepinfer.kernels.rows.triton_kernel import row_kernel

device = rehearsal.PretendedDevice((9, 0))
draw = random.Random(0)
floats, halves = torch.zeros(64), torch.zeros(64, dtype=torch.bfloat16)
"""

_KEYS = (
    _START
    + """
others = [
    floats, floats[1:], floats[4:], halves, halves[4:], halves[8:], None, True, False, 0, 1, 2, 8,
    16, 17, -1, -16, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**40, 2**40 + 1, 0.0, 1.0, 16.0,
]
tiles = [
    described_tiles(x, *box)
    for x in (torch.zeros(64, 256, dtype=torch.bfloat16), torch.zeros(64, 256), torch.zeros(1, 64))
    for box in ((64, 16), (64, 32), (16, 64))
]

def by_key(kernel, chosen):
    binder = kernel.device_caches[rehearsal.active_driver.active.get_current_device()][-1]
    found = {}
    for args, named in chosen:
        _, described, options = binder(*args, **named)
        key, _ = launch_key(kernel, args, named, 0)
        found.setdefault(key, set()).add(str((described, options)))
    return found

def changed(args, values):
    place = draw.randrange(len(args))
    return [*args[:place], draw.choice(values), *args[place + 1 :]]

def constants(kernel):
    names = [param.name for param in kernel.params if param.is_constexpr]
    return {name: draw.choice([0, 1, 16]) for name in names} | {"num_warps": draw.choice([4, 8])}

with rehearsal.pretend(device):
    results = {}
    for kernel, values in ((row_kernel, others), (slim_kernel, others + tiles)):
        count = sum(not param.is_constexpr for param in kernel.params)
        args, named, chosen = [floats] * count, constants(kernel), []
        for _ in range(3000):
            args = changed(args, values)
            if draw.random() < 0.02:
                named = constants(kernel)
            chosen += [(args, named), ([floats] * (count - 1) + args[:1], named)]
        found = by_key(kernel, chosen)
        results[kernel.fn.__name__] = [len(found), max(map(len, found.values()))]
print(json.dumps(results))
"""
)

_PASSED = (
    _START
    + """
passed = []

def run(x, y, z, stream, function, packed, metadata, enter, leave, *args):
    plain = [arg.data_ptr() if isinstance(arg, torch.Tensor) else arg for arg in args]
    passed.append(str([x, y, z, stream, function, packed, *map(str, plain)]))

class Compiled(CompiledKernel):
    module, function, packed_metadata = 0, 1, 2

    def __init__(self, backend):
        self.metadata = SimpleNamespace(target=SimpleNamespace(backend=backend))
        self._run = run

    def launch_metadata(self, *args):
        return None

def found(kernel, key, *unused, **named):
    compiled = Compiled(backend)
    compiles.append(backend)
    kernel.device_caches[rehearsal.active_driver.active.get_current_device()][0][key] = compiled
    return compiled

compiles, described = [], []
count = sum(not param.is_constexpr for param in row_kernel.params)
named = {param.name: 16 for param in row_kernel.params if param.is_constexpr}
go_on = JITFunction.run

def note(kernel, *args, **more):
    described.append(backend)
    return go_on(kernel, *args, **more)

JITFunction.run = note
with rehearsal._replaced(JITFunction, "_do_compile", found), rehearsal.pretend(device):
    for backend, shift in (("cuda", 4), ("other", 1)):
        for _ in range(3):
            args = [floats[shift:], *range(2, count + 1)]
            launch(row_kernel, (3, 2))(*args, **named, num_warps=4)
    backend, args[0] = "cuda", torch.nn.Parameter(floats)
    for _ in range(2):
        launch(row_kernel, (3, 2))(*args, **named, num_warps=4)
    try:
        launch(row_kernel, (1,))(*args, *named.values())
    except TypeError as error:
        print(json.dumps([compiles, described, passed[:3], str(error)]))
"""
)


def test_launches_that_share_a_key_are_described_alike(in_own_process: Callable[..., Any]) -> None:
    """Pointers, integers, tiles and constants of all kinds, in all places of two kernels."""
    for keys, most in in_own_process(_KEYS).values():
        assert keys > 1000
        assert most == 1


def test_second_launch_passes_what_the_first_did(in_own_process: Callable[..., Any]) -> None:
    """Triton is asked once, and each time about drivers and arguments of other kinds."""
    compiles, described, passed, error = in_own_process(_PASSED)
    assert compiles == ["cuda", "other"]
    assert described == ["cuda", *["other"] * 3, *["cuda"] * 2]
    assert len(set(passed)) == 1
    assert "row_kernel: expected its constexpr arguments by name" in error


_ELSEWHERE = (
    _START
    + """
kernel = row_kernel
count = sum(not param.is_constexpr for param in kernel.params)
args = [floats, 1, halves, *[0] * (count - 3)]
tiles = described_tiles(torch.zeros(64, 256), 64, 16)
found = []
with rehearsal.pretend(device):
    for given in (args, [1, tiles, *args[2:]]):
        for place in (1, -1, 0):
            torch.Tensor.get_device = lambda tensor: place
            try:
                values = launch_key(kernel, given, {}, 1)[1]
                found.append([type(value).__name__ for value in values[:3]])
            except TensorError as error:
                found.append(str(error))
print(json.dumps(found))
"""
)


def test_a_tensor_of_another_gpu_is_refused(in_own_process: Callable[..., Any]) -> None:
    """Its address would be read on the GPU that launches go to; memory of the host is Triton's to
    ask about."""
    found = in_own_process(_ELSEWHERE)
    assert found[0] == ["int", "int", "int"] and found[3] == ["int", "Tiles", "int"]
    assert found[1] == ["Tensor", "int", "Tensor"] and found[4] == ["int", "Tiles", "Tensor"]
    for elsewhere in found[2], found[5]:
        assert "expected a tensor on device 1, where row_kernel would run" in elsewhere
        assert elsewhere.endswith("launch it within torch.cuda.device(0)")


_CHANGED_TILES = (
    _START
    + """
wide = torch.zeros(64, 512)
tensors = torch.zeros(64, 256), torch.zeros(1, 16), wide[:7, :256], wide[:, 256:]
count = sum(not param.is_constexpr for param in slim_kernel.params)
keys, passed = set(), []
with rehearsal.pretend(device):
    for x in tensors:
        tiles = described_tiles(x, 64, 16)
        key, values = launch_key(slim_kernel, [tiles] * count, {}, 0)
        keys.add(key)
        value = values[0]
        passed.append([value.base is x, list(value.shape) == list(x.shape),
                       list(value.strides) == list(x.stride())])
print(json.dumps([len(keys), passed]))
"""
)


def test_tiles_of_other_sizes_share_a_launch_and_pass_their_own(
    in_own_process: Callable[..., Any],
) -> None:
    """Kernels are compiled for the box and the type; where a tensor lies, how large it is and how
    its rows lie is told to the driver anew each time."""
    keys, passed = in_own_process(_CHANGED_TILES)
    assert keys == 1 and passed == [[True, True, True]] * 4


_REFUSED = (
    _START
    + """
def refuse(kernel, *args, **named):
    raise RuntimeError("Triton Error [CUDA]: invalid argument")

JITFunction.run = refuse  # the driver's answer to tiles that it does not take
count = sum(not param.is_constexpr for param in row_kernel.params)
named = {param.name: 16 for param in row_kernel.params if param.is_constexpr}
wide = torch.zeros(64, 258)
good = torch.zeros(64 * 64 + 4)[4:].view(64, 64)
tensors = torch.zeros(64 * 64 + 1)[1:].view(64, 64), wide[:, :256], good, torch.zeros(7)
found = []
with rehearsal.pretend(device):
    for x, grid in [*zip(tensors, [(1,)] * 4), (good, (1, 65535)), (good, (1, 65536))]:
        args = [floats[1:], described_tiles(x, *[16] * x.dim()), *range(2, count)]
        try:
            launch(row_kernel, grid)(*args, **named)
        except Exception as error:
            found.append([type(error).__name__, str(error)])
print(json.dumps(found))
"""
)


def test_what_the_driver_refuses_is_named(in_own_process: Callable[..., Any]) -> None:
    """What TMA cannot copy, and too many programs: only what is at fault, and only once the driver
    refused the launch."""
    address, stride, *others, grid = in_own_process(_REFUSED)
    assert grid[0] == "TensorError" and "row_kernel: expected a grid of at most" in grid[1]
    assert "found [1, 65536]" in grid[1]
    assert address[0] == stride[0] == "TensorError"
    for message in address[1], stride[1]:
        assert ": row_kernel copies it by TMA" in message
        assert "multiples of 16 bytes" in message
    assert address[1].endswith("4 bytes past a multiple of 16") and "strides [258, 1]" in stride[1]
    assert others == [["RuntimeError", "Triton Error [CUDA]: invalid argument"]] * 3
