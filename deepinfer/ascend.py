"""Ascend NPUs as torch devices; the vendor's packages are imported only on request."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from .errors import ConfigError


def load_torch_npu() -> None:
    """Register torch's device ``npu``.  Raises: ConfigError that says what is missing."""
    try:
        import_module("torch_npu")
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"device='npu' needs torch_npu, which does not load ({error}): install CANN, source "
            "its set_env.sh, and install the torch-npu of this torch; or use device='cpu'"
        ) from error
    if find_spec("triton") is None or find_spec("triton.backends.ascend") is None:
        raise ConfigError(
            "device='npu' needs triton-ascend, and the Triton installed here is another: pip "
            "uninstall triton, then pip install triton-ascend"
        )
