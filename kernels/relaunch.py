"""Launches of kernels, without most of what Triton does for each where one like it was launched
before.

Triton finds the compiled kernel of a launch by a description of every argument, which takes a host
longer than many kernels take a GPU.  Here a launch is known by the few things that such a
description depends on, and what Triton found for them the first time is launched at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from triton.compiler import CompiledKernel
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from deepinfer.errors import TensorError

from .launch import describe

_WORD = 1 << 31
_MOST_PROGRAMS = _WORD - 1, 65535, 65535  # of a launch on NVIDIA's GPUs, by axis
_NO_HOOKS = (None, None, None)
_NEVER_COMPILED_IN = (float, bool, type(None))
# For each device and key how to launch, and what comes before and after the arguments by position.
_known: dict[tuple[int, Hashable], tuple[Callable[..., None], tuple[Any, ...], list[Any]]] = {}


def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
    """``kernel[grid]``, to be called with what the kernel computes with by position, and with its
    compile-time arguments and options by name.

    Raises: TypeError if an argument comes in the other way; TensorError for a tensor of another
    device, for one that TMA should copy and cannot, and for more programs than a launch has.
    """
    return partial(_launch, kernel, grid)


def _launch(kernel: Any, grid: tuple[int, ...], *args: Any, **named: Any) -> None:
    if not isinstance(kernel, JITFunction):  # the interpreter's
        kernel[grid](*args, **named)
        return
    active = driver.active
    device = active.get_current_device()
    key, values = launch_key(kernel, args, named, device)
    known = _known.get((device, key))
    try:
        if known is not None:
            run, before, constants = known
            x, y, z = (*grid, 1, 1)[:3]
            run(x, y, z, active.get_current_stream(device), *before, *values, *constants)
            return
        _check_names(kernel, len(args), named)
        compiled = kernel[grid](*args, **named)
    except RuntimeError:  # of the driver, which names none of the tensors
        _check_grid(kernel, grid)
        _check_copied(kernel, args)
        raise
    # A rehearsal has nothing to launch; launchers of other makers were not tried.
    is_ours = isinstance(compiled, CompiledKernel) and compiled.metadata.target.backend == "cuda"
    if is_ours and key is not None:
        before = compiled.function, compiled.packed_metadata, *_NO_HOOKS
        constants = [named[name] for name in kernel.arg_names[len(args) :]]
        _known[device, key] = compiled.run, before, constants


def launch_key(
    kernel: Any, args: Sequence[Any], named: Mapping[str, Any], device: int
) -> tuple[tuple[Hashable, ...] | None, list[Any]]:
    """What launches with the same compiled kernel may share, and those with another never, None if
    there are arguments of other kinds; and ``args`` with addresses in the place of tensors.

    Triton compiles in which pointers and integers are multiples of 16, which integers are 1, and
    which take more than 32 bits; nothing of floating-point numbers.
    Raises: TensorError for a tensor of another device than number ``device``, where it would run.
    """
    key: list[Any] = [kernel.fn, *named, *named.values()]
    values: list[Any] = []
    for arg in args:
        kind = type(arg)
        if kind is Tensor:
            address = arg.data_ptr()
            key += arg.dtype, address % 16
            place = arg.get_device()
            if place >= 0 and place != device:
                raise _elsewhere(kernel, len(values), arg, device)
            # Where memory of the host lies for a GPU is for Triton to ask.
            values.append(arg if place < 0 else address)
            continue
        values.append(arg)
        if kind is int:
            number = 1 if arg == 1 else 0 if arg % 16 else 16
            key.append(number if -_WORD <= arg < _WORD else (number,))
        elif kind in _NEVER_COMPILED_IN:
            key.append(kind)
        elif hasattr(arg, "key"):  # described tiles; shapes and strides are passed, not compiled in
            key.append(arg.key)
            if arg.base.get_device() not in (-1, device):
                raise _elsewhere(kernel, len(values), arg.base, device)
        else:
            return None, values
    return tuple(key), values


def _elsewhere(kernel: Any, place: int, x: Tensor, device: int) -> TensorError:
    return TensorError(
        f"{kernel.arg_names[place]}: expected a tensor of device {device}, where "
        f"{kernel.fn.__name__} would run, found one of {x.device}: launch it within "
        f"torch.cuda.device({x.get_device()})"
    )


def _check_grid(kernel: Any, grid: tuple[int, ...]) -> None:
    """Raises: TensorError for more programs along an axis than there may be."""
    if any(count > most for count, most in zip(grid, _MOST_PROGRAMS, strict=False)):
        raise TensorError(
            f"{kernel.fn.__name__}: expected a grid of at most {list(_MOST_PROGRAMS)} programs, "
            f"found {list(grid)}: give it fewer rows at once"
        )


def _check_copied(kernel: Any, args: Sequence[Any]) -> None:
    """Raises: TensorError for tiles of a tensor that TMA cannot copy."""
    for name, arg in zip(kernel.arg_names, args, strict=False):
        if not hasattr(arg, "key"):
            continue
        x, past = arg.base, arg.base.data_ptr() % 16
        if past or any(x.element_size() * step % 16 for step in x.stride()[:-1]):
            raise TensorError(
                f"{name}: {kernel.fn.__name__} has it copied by TMA, for which its address and its "
                f"strides but for the last must be multiples of 16 bytes, found {describe(x)}, "
                f"{past} bytes past one"
            )


def _check_names(kernel: JITFunction[Any], count: int, named: Mapping[str, Any]) -> None:
    params = kernel.params
    by_name = [param.name for param in params if param.name in named]
    if by_name != [param.name for param in params[count:]] or any(
        param.is_constexpr != (param.name in named) for param in params
    ):
        raise TypeError(
            f"{kernel.fn.__name__}: expected its compile-time arguments by name, and all others "
            f"by position, found {count} and {', '.join(named)}"
        )
