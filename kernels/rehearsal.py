"""Rehearsal: launchers run as on a GPU, but on CPU memory, and kernels are recorded instead of run.

The launchers themselves thus tell which kernels a program will launch, without its device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver as active_driver
from triton.runtime.jit import JITFunction

from . import relaunch
from .launch import is_interpreted

# Pretended devices need numbers of their own: Triton caches the target of a device forever.
_FIRST_DEVICE = 1000


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel as Triton specialized it for its arguments: the input of its compiler.

    ``constants`` and ``attributes`` are by position (a path of indices), as in Triton.
    """

    kernel: JITFunction[Any]
    signature: Mapping[str, Any]
    constants: Mapping[tuple[int, ...], Any]
    attributes: Mapping[tuple[int, ...], Any]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PretendedDevice:
    """``capability`` is that of an NVIDIA GPU; None for an accelerator of another vendor."""

    capability: tuple[int, int] | None

    @property
    def torch_device(self) -> torch.device:
        return torch.device("privateuseone" if self.capability is None else "cuda", 0)

    @property
    def target(self) -> GPUTarget:
        major, minor = self.capability or (9, 0)
        return GPUTarget("cuda", 10 * major + minor, 32)


@contextmanager
def rehearse(device: PretendedDevice) -> Iterator[dict[tuple[object, str], Launch]]:
    """Within the context launchers run as on ``device``, and their launches are recorded, one for
    each specialization.

    Results of kernels are not computed: integers are 0, all other values are undefined.
    Raises: RuntimeError if the kernels of this process are interpreted.
    """
    launches: dict[tuple[object, str], Launch] = {}

    def note(
        kernel: JITFunction[Any], key: object, signature: Any, device: Any, constants: Any,
        options: Any, attributes: Any, warmup: bool,
    ) -> None:  # fmt: skip
        new = Launch(kernel, signature, constants, attributes, dict(options.__dict__))
        launches.setdefault((kernel.fn, str(key)), new)

    known: set[object] = set()
    as_triton_does = relaunch._launch

    def launch_new(kernel: Any, grid: tuple[int, ...], *args: Any, **named: Any) -> None:
        """Skips launches that are equal to an earlier one, which is slow in Triton itself."""
        key, _ = relaunch.launch_key(kernel, args, named, active_driver.active.get_current_device())
        if key is None or key not in known:
            as_triton_does(kernel, grid, *args, **named)
            known.add(key)

    with (
        _replaced(relaunch, "_launch", launch_new),
        _replaced(JITFunction, "_do_compile", note),
        pretend(device),
    ):
        yield launches


@contextmanager
def pretend(device: PretendedDevice) -> Iterator[None]:
    """Within the context CPU tensors claim to be on ``device``, and Triton that this is its device.

    Raises: RuntimeError if the kernels of this process are interpreted.
    """
    if is_interpreted():
        raise RuntimeError("TRITON_INTERPRET is set: start a process without it to compile kernels")

    def capability(index: Any = None) -> tuple[int, int]:
        assert device.capability is not None, "not an NVIDIA device"
        return device.capability

    with ExitStack() as stack:
        stack.enter_context(_replaced(torch.cuda, "get_device_capability", capability))
        stack.enter_context(_replaced(torch.cuda, "get_device_properties", _properties))
        stack.enter_context(_replaced(active_driver, "_active", _Driver(device.target)))
        stack.enter_context(_Pretence(device.torch_device))
        yield


def _properties(index: Any = None) -> SimpleNamespace:
    """Those of an H200; only grids depend on them, not the kernels."""
    return SimpleNamespace(multi_processor_count=132)


class _Driver:
    """The part of a driver that a launch needs before it compiles."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return _FIRST_DEVICE + int(self._target.arch)

    def get_current_stream(self, device: int) -> int:
        return 0


class _Pretence(TorchFunctionMode):
    """Every tensor is on the CPU but claims to be on ``device``."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _QUESTIONS:
            return self._device if func == _DEVICE else self._device.type == "cuda"
        if not _PLACES.isdisjoint(map(type, args)):
            args = [self._real(value) for value in args]
        if kwargs:
            kwargs = {name: self._real(value) for name, value in kwargs.items()}
        result = func(*args, **(kwargs or {}))
        return _without_junk(result) if func in _UNWRITTEN else result

    def _real(self, value: Any) -> Any:
        is_here = type(value) in _PLACES and str(value) in (str(self._device), self._device.type)
        return torch.device("cpu") if is_here else value


def _without_junk(x: Tensor) -> Tensor:
    """Zero integers, which may be used as indices and must be valid."""
    return x.zero_() if x.dtype in (torch.int32, torch.int64) else x


_DEVICE: Any = Tensor.device.__get__
_QUESTIONS = {_DEVICE, Tensor.is_cuda.__get__}  # type: ignore[attr-defined]
_UNWRITTEN = {torch.empty, torch.empty_like, Tensor.new_empty}
_PLACES = {torch.device, str}


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
