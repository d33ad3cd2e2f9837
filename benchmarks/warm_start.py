"""Time from a loaded model to its first token, with and without a bundle of compiled kernels.

    python benchmarks/warm_start.py

Needs an NVIDIA GPU.  Each start is a new process; the first two have an empty Triton cache, "again"
has that of "warm": up to Triton 3.6 it contains small host launchers, one per signature, which are
not part of a bundle.  Prints a JSON line for each: seconds, and the kernels that were compiled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_ROOT = Path(__file__).parents[1]


def first_token(store: Path | None) -> dict[str, object]:
    """One prompt of the embedded model, its first token and its drafts."""
    import torch

    from deepinfer.engine import kernel_plan
    from deepinfer.engine.cache.kv_cache import KVCache
    from deepinfer.engine.checkpoint.weights import open_checkpoint
    from deepinfer.engine.model.model import Model
    from deepinfer.kernels.bundle import find_bundle
    from deepinfer.kernels.bundle_loader import KernelCounter, use_bundle
    from deepinfer.recipes.embedded import embedded_model_path

    device = torch.device("cuda", 0)
    checkpoint = open_checkpoint(embedded_model_path())
    config = checkpoint.config
    tensors = {name: tensor.to(device) for name, tensor in checkpoint.load().items()}
    token_map = torch.zeros(config.vocab_size, dtype=torch.int64)
    model = Model(config, tensors, device=device, token_map=token_map)
    torch.cuda.synchronize()

    started = time.perf_counter()
    counter = KernelCounter() if store is None else use_bundle(find_bundle(store, _identity()))
    cache = KVCache.allocate(config, num_blocks=2, block_size=64, num_slots=1, device=device)
    with torch.inference_mode():
        kernel_plan.run_pass(model, cache, num_requests=1, length=40, context=0, device=device)
    torch.cuda.synchronize()
    return {"seconds": round(time.perf_counter() - started, 3), "compiled": counter.compiled}


def _identity():  # type: ignore[no-untyped-def]
    import torch

    from deepinfer.kernel_build import model_config
    from deepinfer.kernels.bundle import nvidia_identity
    from deepinfer.kernels.targets import nvidia_target

    target = nvidia_target(torch.cuda.get_device_capability(0))
    assert target is not None, "there are no kernels for this GPU"
    return nvidia_identity(model_config("tiny").to_dict(), "tiny", target)


def _build(store: Path) -> dict[str, object]:
    from deepinfer.kernel_build import build_kernels

    started = time.perf_counter()
    bundle = build_kernels("tiny", _identity().target, store).bundle
    return {"seconds": round(time.perf_counter() - started, 3), "kernels": len(bundle.kernels)}


def _child(what: str, store: Path, folder: Path) -> dict[str, object]:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
        "TRITON_CACHE_DIR": str(folder / ("warm" if what == "again" else what)),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-P", __file__, what, str(store)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{what}: {done.stderr}")
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    if len(sys.argv) == 3:
        store = Path(sys.argv[2])
        result = (
            _build(store)
            if sys.argv[1] == "build"
            else first_token(None if sys.argv[1] == "cold" else store)
        )
        print(json.dumps(result))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for what in ("build", "cold", "warm", "again"):
            print(json.dumps({"start": what} | _child(what, folder / "store", folder)), flush=True)


if __name__ == "__main__":
    main()
