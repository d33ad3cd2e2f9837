"""One rank's share of an expert-parallel deployment, with random weights, on one device.

Weights are random codes of the checkpoint's formats: kernels do the same work on them as on trained
ones.  The other ranks are not there: what they would send is made here, as ``Traffic`` says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from deepinfer.engine.checkpoint.random_weights import random_tensor
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.engram_buckets import bucket_primes
from deepinfer.engine.model.layer_tensors import LayerTensors
from deepinfer.engine.model.schedule import LayerPlan
from deepinfer.engine.model.share import (
    LocalExperts,
    Outputs,
    RoutedExperts,
    Steps,
    added_up,
    only,
)
from deepinfer.engine.model.tensors import TensorSpec, expected_tensors
from deepinfer.engine.parallel.exchange import PresentExperts
from deepinfer.kernels.moe import sum_rows

from .arrived import ArrivedTokens
from .plan import padded_experts
from .traffic import Traffic

# Scales of 2 ** (exponent - 127) under which random codes keep activations near their size.
_CODE_DEVIATION = {torch.float8_e4m3fn: 0.9, torch.int8: 2.9}


def rank_config(model: ModelConfig, ranks: int) -> ModelConfig:
    """The model with Engram tables of as many rows as one rank holds."""
    if not model.engram_layer_ids:
        return model
    vocab_size = max(1, model.engram_vocab_size // ranks)
    primes = bucket_primes(
        num_layers=len(model.engram_layer_ids),
        num_orders=model.engram_max_ngram_size - 1,
        num_heads=model.engram_n_heads,
        vocab_size=vocab_size,
    )
    rows = tuple(sum(map(sum, layer)) for layer in primes)
    return dataclasses.replace(model, engram_vocab_size=vocab_size, engram_num_embeddings=rows)


class RandomTensors(Mapping[str, Tensor]):
    """A checkpoint whose tensors are made when they are asked for, on ``device``."""

    def __init__(self, config: ModelConfig, seed: int, device: torch.device | str) -> None:
        self._config = config
        self._seed = seed
        self._device = torch.device(device)
        self._specs = expected_tensors(config)

    def __getitem__(self, name: str) -> Tensor:
        spec = self._specs[name]
        if spec.is_scale:
            weight = self._specs[name.removesuffix("scale") + "weight"]
            return self._scale(spec, weight)
        if spec.dtype.itemsize > 1:
            return random_tensor(self._config, name, spec, self._seed, self._device)
        return self._codes(name, spec)

    def __contains__(self, name: object) -> bool:
        return name in self._specs

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def _codes(self, name: str, spec: TensorSpec) -> Tensor:
        codes = torch.empty(spec.shape, dtype=torch.uint8, device=self._device)
        codes.random_(0, 256)
        if spec.dtype == torch.float8_e4m3fn:
            codes &= 0xBF  # magnitudes below 2, no NaN
        return codes.view(spec.dtype)

    def _scale(self, spec: TensorSpec, weight: TensorSpec) -> Tensor:
        inputs = weight.shape[1] * (2 if weight.dtype == torch.int8 else 1)
        wanted = inputs**-0.5 / _CODE_DEVIATION[weight.dtype]
        exponent = 127 + round(torch.tensor(wanted).log2().item())
        return torch.full(spec.shape, exponent, dtype=torch.uint8, device=self._device).view(
            spec.dtype
        )


class SliceShare:
    """A rank's ``Share``: all of attention, and its part of the routed experts.

    ``num_redundant`` experts more are held than the ranks need together; even and skewed routing
    leave them alone."""

    tensor_rank = 0
    tensor_size = 1

    def __init__(self, ranks: int, seed: int, num_redundant: int = 0) -> None:
        self.ranks = ranks
        self.seed = seed
        self.num_redundant = num_redundant
        self.routing = "even"
        self.arrived = ArrivedTokens()

    def has_layer(self, plan: LayerPlan) -> bool:
        return True

    def gather_groups(self, groups: Tensor) -> Tensor:
        return groups

    def routed_experts(self, plan: LayerPlan, tensors: LayerTensors, limit: float) -> RoutedExperts:
        num_held = padded_experts(plan.n_routed_experts, self.ranks) + self.num_redundant
        local = LocalExperts(tensors, range(num_held), limit, plan.n_routed_experts)
        if self.ranks == 1:
            return local
        return ReceivedTokens(local, self, plan)

    def traffic(self, plan: LayerPlan) -> Traffic:
        """What comes here in a layer with the present routing."""
        num_held = padded_experts(plan.n_routed_experts, self.ranks)
        return Traffic(
            routing=self.routing,
            num_experts=plan.n_routed_experts,
            num_choices=plan.num_experts_per_tok,
            num_held=num_held + (self.num_redundant if self.routing == "balanced" else 0),
            ranks=self.ranks,
            seed=self.seed + plan.layer_id,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Table:
    """What the other ranks send when this one has T tokens: N tokens, with choices [N, K] i64 and
    factors [N, K] f32.  back [T copies] i32: the results that a token of this rank gets back."""

    choices: Tensor
    factors: Tensor
    back: Tensor
    copies: int


class ReceivedTokens:
    """Local experts at work on the tokens that all ranks would send; as many results as would come
    back are added up.  On a GPU they lie there from the beginning, as tokens of other ranks do once
    they have come; on a CPU they are copies of this rank's own."""

    def __init__(self, local: LocalExperts, share: SliceShare, plan: LayerPlan) -> None:
        self.local = local
        self._share = share
        self._plan = plan
        self._tables: dict[tuple[str, int], _Table] = {}

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return added_up(self.begin(x, ids, weights)()(), len(x))

    def begin(self, x: Tensor, ids: Tensor, weights: Tensor) -> Steps:
        table = self._table(len(x), x.device)
        count, choices = table.choices.shape

        def compute() -> Outputs:
            if x.is_cuda:
                arrivals = self._share.arrived.tokens(count, x.shape[1], choices, x.device)
                pairs = self.local.pairs(arrivals, table.choices, table.factors)
                return sum_rows(*pairs, choices, torch.bfloat16), table.back
            received = x[torch.arange(count) % len(x)]
            experts = PresentExperts(self.local)
            results = experts(received, table.choices, table.factors).to(torch.bfloat16)
            return sum_rows(results, table.back, table.copies)

        return only(compute)

    def assist(self) -> None:
        """There is nobody to help."""

    def _table(self, num_tokens: int, device: torch.device) -> _Table:
        key = self._share.routing, num_tokens
        if key not in self._tables:
            choices = self._share.traffic(self._plan).choices(num_tokens).to(device)
            count = len(choices)
            copies = -(-count // num_tokens)
            back = torch.arange(copies * num_tokens, dtype=torch.int32, device=device)
            back = torch.where(back < count, back, -1).view(copies, num_tokens).t()
            self._tables[key] = _Table(
                choices=choices,
                factors=torch.full(choices.shape, 1 / choices.shape[1], device=device),
                back=back.flatten(),
                copies=copies,
            )
        return self._tables[key]
