"""One rank's share of an expert-parallel deployment, with random weights, on one device.

Weights are random codes of the checkpoint's formats: kernels do the same work on them as on trained
ones.  The other ranks are not there: what they would send is made here, by the routing of
``ExpectedRouting``, in the numbers that even routing sends on average.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from deepinfer.engine.checkpoint.random_weights import random_tensor
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.engram_buckets import bucket_primes
from deepinfer.engine.model.layer_tensors import LayerTensors
from deepinfer.engine.model.schedule import LayerPlan
from deepinfer.engine.model.share import LocalExperts, RoutedExperts
from deepinfer.engine.model.tensors import TensorSpec, expected_tensors
from deepinfer.engine.parallel.exchange import PresentExperts

from .plan import padded_experts

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
    """A rank's ``Share``: all of attention, and its part of the routed experts."""

    tensor_rank = 0
    tensor_size = 1

    def __init__(self, ranks: int, seed: int) -> None:
        self.ranks = ranks
        self.seed = seed

    def has_layer(self, plan: LayerPlan) -> bool:
        return True

    def gather_groups(self, groups: Tensor) -> Tensor:
        return groups

    def routed_experts(self, plan: LayerPlan, tensors: LayerTensors, limit: float) -> RoutedExperts:
        held = padded_experts(plan.n_routed_experts, self.ranks)
        local = LocalExperts(tensors, range(held), limit, plan.n_routed_experts)
        if self.ranks == 1:
            return local
        routing = ExpectedRouting(
            num_experts=plan.n_routed_experts,
            num_choices=plan.num_experts_per_tok,
            num_held=held,
            ranks=self.ranks,
            seed=self.seed + plan.layer_id,
        )
        return ReceivedTokens(PresentExperts(local), routing)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRouting:
    """What even routing sends one of ``ranks`` equal ranks, of which each has T tokens."""

    num_experts: int
    num_choices: int
    num_held: int
    ranks: int
    seed: int

    def num_received(self, num_tokens: int) -> int:
        """Tokens of all ranks with at least one expert here."""
        missed = 1.0
        for choice in range(self.num_choices):
            missed *= (self.num_experts - self.num_held - choice) / (self.num_experts - choice)
        return max(1, round(num_tokens * self.ranks * (1 - max(0.0, missed))))

    def choices(self, num_tokens: int) -> Tensor:
        """[received, K] i64 held experts, ascending, -1 first where there is none.

        As many choices in all as the ranks' own tokens make for this rank, spread evenly.
        """
        received, width = self.num_received(num_tokens), self.num_choices
        pairs = num_tokens * width * self.num_held * self.ranks // self.num_experts
        generator = torch.Generator().manual_seed(self.seed)
        counts = torch.full((received,), max(1, pairs // received))
        extra = pairs - int(counts.sum())
        counts[torch.randperm(received, generator=generator)[: max(0, extra)]] += 1
        counts.clamp_(max=min(width, self.num_held))
        order = torch.rand(received, self.num_held, generator=generator).argsort(1)
        picks = torch.full((received, width), -1)
        shown = min(width, self.num_held)
        is_used = torch.arange(shown) < counts[:, None]
        picks[:, :shown] = torch.where(is_used, order[:, :shown], -1)
        return picks.sort(1).values


class ReceivedTokens:
    """Local experts at work on the tokens that all ranks would send; the results of as many tokens
    as this rank has are added up as they would come back."""

    def __init__(self, local: RoutedExperts, routing: ExpectedRouting) -> None:
        self.local = local
        self.routing = routing
        self._tables: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return self.begin(x, ids, weights)()

    def begin(self, x: Tensor, ids: Tensor, weights: Tensor) -> Callable[[], Tensor]:
        choices, factors = self._table(len(x), x.device)
        copies = -(-len(choices) // len(x))
        # A copy in memory, as what arrives lies in a buffer of its own.
        received = x.repeat(copies, 1)[: len(choices)]

        def finish() -> Tensor:
            rows = self.local(received, choices, factors).to(torch.bfloat16)
            total = rows[: len(x)].float()
            for copy in range(1, len(choices) // len(x)):
                total += rows[copy * len(x) : (copy + 1) * len(x)]
            return total

        return finish

    def assist(self) -> None:
        """There is nobody to help."""

    def _table(self, num_tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
        if num_tokens not in self._tables:
            choices = self.routing.choices(num_tokens).to(device)
            factors = torch.full(choices.shape, 1 / self.routing.num_choices, device=device)
            self._tables[num_tokens] = (choices, factors)
        return self._tables[num_tokens]
