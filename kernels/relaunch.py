"""Kernel launches with less host overhead than Triton's.

Triton looks up the compiled kernel by a description of every argument, which takes longer than many
kernels run.  Here the key consists only of what that description depends on, and the compiled
kernel that Triton found the first time is launched directly.
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
_MOST_PROGRAMS = _WORD - 1, 65535, 65535  # of a grid on NVIDIA GPUs, by axis
_NO_HOOKS = (None, None, None)
_NEVER_COMPILED_IN = (float, bool, type(None))
# By device and key: the launch function, and what precedes and follows the positional arguments.
_known: dict[tuple[int, Hashable], tuple[Callable[..., None], tuple[Any, ...], list[Any]]] = {}


def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
    """``kernel[grid]``; takes runtime arguments by position, and constexpr arguments and options by
    name.

    Raises: TypeError if an argument is passed the other way; TensorError for a tensor on another
    device, for one that TMA cannot copy, and for a grid that is too large.
    """
    return partial(_launch, kernel, grid)


def _launch(kernel: Any, grid: tuple[int, ...], *args: Any, **named: Any) -> None:
    if not isinstance(kernel, JITFunction):  # interpreted
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
    except RuntimeError:  # the driver's, which does not name the tensor
        _check_grid(kernel, grid)
        _check_copied(kernel, args)
        raise
    # A rehearsal has nothing to launch; launchers of other vendors were not tested.
    is_ours = isinstance(compiled, CompiledKernel) and compiled.metadata.target.backend == "cuda"
    if is_ours and key is not None:
        before = compiled.function, compiled.packed_metadata, *_NO_HOOKS
        constants = [named[name] for name in kernel.arg_names[len(args) :]]
        _known[device, key] = compiled.run, before, constants


def launch_key(
    kernel: Any, args: Sequence[Any], named: Mapping[str, Any], device: int
) -> tuple[tuple[Hashable, ...] | None, list[Any]]:
    """A key that is equal only for launches of the same compiled kernel, None if there are
    arguments of unknown types; and ``args`` with addresses instead of tensors.

    Triton specializes on whether pointers and integers are multiples of 16, whether integers are 1,
    and whether they exceed 32 bits; not on floating-point values.
    Raises: TensorError for a tensor that is not on ``device``, where the kernel would run.
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
            # For host memory Triton asks the driver for the device address.
            values.append(arg if place < 0 else address)
            continue
        values.append(arg)
        if kind is int:
            number = 1 if arg == 1 else 0 if arg % 16 else 16
            key.append(number if -_WORD <= arg < _WORD else (number,))
        elif kind in _NEVER_COMPILED_IN:
            key.append(kind)
        elif hasattr(arg, "key"):  # TMA descriptors; not specialized on shapes and strides
            key.append(arg.key)
            if arg.base.get_device() not in (-1, device):
                raise _elsewhere(kernel, len(values), arg.base, device)
        else:
            return None, values
    return tuple(key), values


def _elsewhere(kernel: Any, place: int, x: Tensor, device: int) -> TensorError:
    return TensorError(
        f"{kernel.arg_names[place]}: expected a tensor on device {device}, where "
        f"{kernel.fn.__name__} would run, found one on {x.device}: launch it within "
        f"torch.cuda.device({x.get_device()})"
    )


def _check_grid(kernel: Any, grid: tuple[int, ...]) -> None:
    """Raises: TensorError if the grid is too large along an axis."""
    if any(count > most for count, most in zip(grid, _MOST_PROGRAMS, strict=False)):
        raise TensorError(
            f"{kernel.fn.__name__}: expected a grid of at most {list(_MOST_PROGRAMS)} programs, "
            f"found {list(grid)}: give it fewer rows at once"
        )


def _check_copied(kernel: Any, args: Sequence[Any]) -> None:
    """Raises: TensorError for a tensor that TMA cannot copy."""
    for name, arg in zip(kernel.arg_names, args, strict=False):
        if not hasattr(arg, "key"):
            continue
        x, past = arg.base, arg.base.data_ptr() % 16
        if past or any(x.element_size() * step % 16 for step in x.stride()[:-1]):
            raise TensorError(
                f"{name}: {kernel.fn.__name__} copies it by TMA, for which the address and all "
                f"strides but the last must be multiples of 16 bytes, found {describe(x)}, "
                f"{past} bytes past a multiple of 16"
            )


def _check_names(kernel: JITFunction[Any], count: int, named: Mapping[str, Any]) -> None:
    params = kernel.params
    by_name = [param.name for param in params if param.name in named]
    if by_name != [param.name for param in params[count:]] or any(
        param.is_constexpr != (param.name in named) for param in params
    ):
        raise TypeError(
            f"{kernel.fn.__name__}: expected its constexpr arguments by name, and all others "
            f"by position, found {count} and {', '.join(named)}"
        )
