"""Lowers a kernel to Linalg, in a process whose Triton is triton-ascend.

That Triton is older: it takes constants by name, and signatures without constants.  The stages are
its own.
"""

from __future__ import annotations

from typing import Any

from triton._C.libtriton import ir
from triton.backends.compiler import AttrsDescriptor, GPUTarget
from triton.compiler import ASTSource, make_backend

from deepinfer.kernels.compile_task import Json, decode, kernel_of

CHIP = "Ascend950PR_9599"
_OPTIONS = {"compile_on_910_95": True, "multibuffer": False, "enable_auto_bind_sub_block": False}


def linalg_of(task: Json) -> str:
    """The kernel's Linalg.  Raises: errors of the compiler's front end."""
    backend = make_backend(GPUTarget("npu", CHIP, 0))
    source = _source(task)
    options = backend.parse_options(_OPTIONS)
    metadata: dict[str, Any] = {"target": backend.target, **options.__dict__}
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options)
    module = source.make_ir(options, backend.get_codegen_implementation(), {}, context)
    text: str = stages["ttadapter"](stages["ttir"](module, metadata), metadata)
    return text


def _source(task: Json) -> Any:
    kernel = kernel_of(task)
    names = kernel.arg_names
    constants = {names[path[0]]: decode(value) for path, value in task["constants"]}
    signature = {name: kind for name, kind in task["signature"].items() if name not in constants}
    aligned = [
        path[0] for path, value in task["attributes"] if value and names[path[0]] in signature
    ]
    attributes = AttrsDescriptor.from_hints(dict.fromkeys(aligned, 16))
    return ASTSource(kernel, signature=signature, constants=constants, attrs=attributes)
