"""Muon for the matrices inside the layers, AdamW for everything else.

Muon: momentum whose update is orthogonalised by a Newton-Schulz iteration (Jordan et al. 2024).
Matrices of one shape are updated together.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from training.parameters import NOT_TRAINED, Weights

MUON_LR, MUON_MOMENTUM, MUON_DECAY = 0.015, 0.95, 0.02
ADAM_BETAS, ADAM_EPS = (0.9, 0.98), 1e-10
EMBEDDING_LR, TABLE_LR, OTHER_LR = 6e-3, 6e-3, 3e-3
_ON_ADAM = (
    "embed.weight",
    "head.weight",
    "gate.weight",
    "weights_proj.weight",
    "proj.weight",
    "_fn",
)


def is_muon(name: str, master: Tensor) -> bool:
    if name.endswith("main_proj.weight"):
        return True
    is_vectors = name.endswith(("q_weight", "k_weight"))
    return master.dim() >= 2 and not name.endswith(_ON_ADAM) and not is_vectors


class Optimizer:
    """Updates the ``trained`` masters in place; ``state`` is its complete state."""

    def __init__(self, masters: Weights, trained: list[str]) -> None:
        names = [name for name in trained if not name.endswith(NOT_TRAINED)]
        self.masters = masters
        self.groups: dict[tuple[int, ...], list[str]] = defaultdict(list)
        for name in names:
            if is_muon(name, masters[name]):
                self.groups[tuple(masters[name].shape)].append(name)
        self.momentum = {
            name: torch.zeros_like(masters[name]) for g in self.groups.values() for name in g
        }
        plain = [name for name in names if name not in self.momentum]
        by_rate: dict[float, list[Tensor]] = defaultdict(list)
        for name in plain:
            by_rate[base_lr(name)].append(masters[name])
        self.adam = torch.optim.AdamW(
            [{"params": params, "lr": rate, "base_lr": rate} for rate, params in by_rate.items()],
            betas=ADAM_BETAS, eps=ADAM_EPS, weight_decay=0.0, foreach=True,
        )  # fmt: skip

    def step(self, scale: float) -> None:
        """One update, with all learning rates multiplied by ``scale``; clears the gradients."""
        for group in self.adam.param_groups:
            group["lr"] = group["base_lr"] * scale
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        for names in self.groups.values():
            self._muon_step(names, MUON_LR * scale)

    @torch.no_grad()
    def _muon_step(self, names: list[str], lr: float) -> None:
        names = [name for name in names if self.masters[name].grad is not None]
        if not names:
            return
        grads = [self.masters[name].grad for name in names]
        moments = [self.momentum[name] for name in names]
        torch._foreach_lerp_(moments, grads, 1 - MUON_MOMENTUM)
        stacked = torch.stack(torch._foreach_lerp(grads, moments, MUON_MOMENTUM))
        rows, columns = stacked.shape[-2:]
        update = orthogonalize(stacked.view(-1, rows, columns)).view(stacked.shape)
        masters = [self.masters[name] for name in names]
        torch._foreach_mul_(masters, 1 - lr * MUON_DECAY)
        torch._foreach_add_(
            masters, list(update.unbind()), alpha=-lr * max(1.0, rows / columns) ** 0.5
        )
        for master in masters:
            master.grad = None

    def state(self) -> dict[str, Any]:
        return {"momentum": self.momentum, "adam": self.adam.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        for name, moment in state["momentum"].items():
            self.momentum[name].copy_(moment)
        self.adam.load_state_dict(state["adam"])


def base_lr(name: str) -> float:
    if ".engram.embed." in name:
        return TABLE_LR
    return EMBEDDING_LR if name.endswith("embed.weight") else OTHER_LR


def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """[G, R, C] f32 -> the same shape, with all singular values near 1."""
    # On a CPU bf16 takes ten times as long as f32.
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    return (x.mT if tall else x).float()
