"""Effect of FP8 inputs of the output projection, on its result and on answers.

``PYTHONPATH=.:tests/gpu python benchmarks/output_projection.py``, on a CPU.
"""

from __future__ import annotations

import torch
from gpu_models import FOLDERS, Passes, sequences, token_data
from torch import Tensor

from deepinfer.engine.checkpoint.weights import open_checkpoint
from deepinfer.engine.model.model import Model
from deepinfer.kernels.gemm import Weight, grouped_linear

GROUPS, INPUTS, OUTPUTS = 8, 4096, 1024
NUM_PROMPTS, NUM_TOKENS, AT_ONCE = 200, 64, 20


def product_error(x: Tensor) -> float:
    """Relative error of FP8 against bf16 inputs, at the released sizes, in the Frobenius norm."""
    values = torch.randn(GROUPS, OUTPUTS, INPUTS).mul(60).clamp(-448, 448).to(torch.float8_e4m3fn)
    shape = (GROUPS, OUTPUTS // 32, INPUTS // 32)
    scales = torch.randint(118, 124, shape, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    weight = Weight(values, scales)
    exact = grouped_linear(x, weight).double()
    return float((grouped_linear(x, weight, fp8=True).double() - exact).norm() / exact.norm())


def teacher_forced(*, output_as_fp8: bool) -> Tensor:
    """Teacher-forced logits [prompts, 64, V] of the embedded model for the stored answers."""
    checkpoint = open_checkpoint(FOLDERS["embedded"])
    token_map = token_data()["map_embedded"]
    model = Model(
        checkpoint.config, checkpoint.load(), token_map=token_map, output_as_fp8=output_as_fp8
    )
    logits = []
    asked = sequences(NUM_PROMPTS)
    for first in range(0, NUM_PROMPTS, AT_ONCE):
        group = asked[first : first + AT_ONCE]
        rows = Passes(model, len(group), max(map(len, group))).run(list(enumerate(group)))
        for part in torch.split(rows, [len(sequence) for sequence in group]):
            logits.append(part[-NUM_TOKENS - 1 : -1])
    return torch.stack(logits)


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, GROUPS, INPUTS)
    outliers = x * torch.where(torch.rand(INPUTS) < 0.01, 30.0, 1.0)
    for name, rows in {"normal": x, "1 % of channels 30 times as large": outliers}.items():
        print(f"product, {name}: {product_error(rows.to(torch.bfloat16)):.2e}")
    bf16, fp8 = teacher_forced(output_as_fp8=False), teacher_forced(output_as_fp8=True)
    top = bf16.topk(2, dim=-1).values
    margin = top[..., 0] - top[..., 1]
    same = bf16.argmax(-1) == fp8.argmax(-1)
    relative = (fp8 - bf16).norm(dim=-1) / bf16.norm(dim=-1)
    change = torch.nn.functional.kl_div(
        fp8.log_softmax(-1), bf16.log_softmax(-1), log_target=True, reduction="none"
    ).sum(-1)
    print(f"logits, relative: median {relative.median():.4f}, 99 % {relative.quantile(0.99):.4f}")
    print(f"KL divergence: mean {change.mean():.2e}")
    print(f"same argmax: {same.double().mean():.2%} of {same.numel():,} positions")
    for limit in (0.5, 1.0):
        clear = margin > limit
        share, count = same[clear].double().mean(), int(clear.sum())
        print(f"  where the margin exceeds {limit}: {share:.3%} of {count:,}")
    print(f"largest margin of a changed one: {margin[~same].max():.2f}")


if __name__ == "__main__":
    main()
