"""A launch in JSON, so that another process, or another Triton, can compile it."""

from __future__ import annotations

import base64
import importlib
import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import triton.language as tl
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

if TYPE_CHECKING:
    from .rehearsal import Launch

Json = dict[str, Any]
_PLAIN = (bool, int, float, str, type(None))
# Paths inside the installed Triton; the compiler fills them in.
_OWN_PATHS = ("extern_libs",)


def task_of(launch: Launch) -> Json:
    """The input of ``source_of`` and ``options_of``, in JSON types."""
    return {
        "module": launch.kernel.fn.__module__,
        "kernel": launch.kernel.fn.__qualname__,
        "arguments": launch.kernel.arg_names,
        "signature": {name: _encode(kind) for name, kind in launch.signature.items()},
        "constants": _pairs(launch.constants),
        "attributes": _pairs(launch.attributes),
        "options": {
            name: _encode(value) for name, value in launch.options.items() if name not in _OWN_PATHS
        },
    }


def kernel_of(task: Json) -> JITFunction[Any]:
    """The kernel of a task, from its module."""
    kernel = getattr(importlib.import_module(task["module"]), task["kernel"])
    assert isinstance(kernel, JITFunction)
    return kernel


def source_of(task: Json) -> ASTSource:
    """The input of ``triton.compile``: the kernel with its signature, constants and attributes."""
    kernel = kernel_of(task)
    kind: Any = ASTSource
    if kernel.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource

        kind = GluonASTSource
    return kind(
        kernel,
        {name: decode(kind) for name, kind in task["signature"].items()},
        {tuple(path): decode(value) for path, value in task["constants"]},
        {tuple(path): value for path, value in task["attributes"]},
    )


def options_of(task: Json) -> Json:
    """The compiler options of the launch."""
    return {name: decode(value) for name, value in task["options"].items()}


def _pairs(values: Mapping[tuple[int, ...], Any]) -> list[list[Any]]:
    return [[list(path), _encode(value)] for path, value in values.items()]


def _encode(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list):
        return [_encode(item) for item in value]
    if isinstance(value, tuple) and type(value) is tuple:
        return {"tuple": [_encode(item) for item in value]}
    if isinstance(value, tl.dtype):
        return {"dtype": str(value)}
    if isinstance(value, tl.constexpr):
        return {"constexpr": _encode(value.value)}
    # Such as Gluon layouts: plain classes of Triton.
    return {"pickle": base64.b64encode(pickle.dumps(value)).decode()}


def decode(value: Any) -> Any:
    """The inverse of ``_encode``."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tuple":
        return tuple(decode(item) for item in content)
    if kind == "dtype":
        return tl.dtype(content)
    if kind == "constexpr":
        return tl.constexpr(decode(content))
    return pickle.loads(base64.b64decode(content))
