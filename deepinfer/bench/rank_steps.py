"""Measures all rows of a plan on one rank's share, or on those of all present ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from deepinfer.engine.execution.padded_sizes import padded_size
from deepinfer.engine.memory.out_of_memory import free_unused
from deepinfer.engine.memory.weight_bytes import weight_bytes
from deepinfer.engine.model.config import ModelConfig
from deepinfer.engine.model.share import Share
from deepinfer.errors import ConfigError
from deepinfer.machine import is_hopper

from .limits import rank_weight_bytes
from .plan import CHUNK_TOKENS, BenchPlan
from .rank_decode import measure_decode
from .rank_model import RankModel, num_that_fit
from .rank_prefill import measure_prefill
from .results import Measurement

_MEASURES = {"decode": measure_decode, "prefill": measure_prefill}


@dataclass(frozen=True, slots=True)
class Deployment:
    """What to measure with one number of ranks and one format of experts, by phase.

    ``tables_on_host``: Engram rows are read from pinned host memory, see ``RankModel.make``."""

    model: ModelConfig
    ranks: int
    experts_as_fp8: bool
    parts: tuple[tuple[str, BenchPlan], ...]
    tables_on_host: bool = False

    @property
    def name(self) -> str:
        return f"{self.ranks} ranks{', experts as FP8' if self.experts_as_fp8 else ''}"

    @property
    def plan(self) -> BenchPlan:
        """One of the plans; they differ only in their rows."""
        return self.parts[0][1]

    @property
    def num_slots(self) -> int:
        """Maximum number of requests or prompts at once."""
        return max(_num_slots(phase, part) for phase, part in self.parts)

    @property
    def most_tokens(self) -> int:
        """Maximum tokens of a pass of one rank."""
        return max(self._most_tokens(phase, part) for phase, part in self.parts)

    def _most_tokens(self, phase: str, part: BenchPlan) -> int:
        if phase == "prefill":
            return CHUNK_TOKENS
        block, requests = self.model.dspark_block_size, max(part.requests)
        drafts = max(block if number is None else number for number in part.drafts)
        return max(padded_size(requests * (1 + drafts)), padded_size(requests) * block)

    def make_rank(self, device: str, real_share: Share | None = None) -> RankModel:
        """``real_share``: the share of a rank that has present peers."""
        plan = self.plan
        return RankModel.make(
            self.model,
            ranks=self.ranks,
            context=plan.longest,
            num_slots=self.num_slots,
            seed=plan.seed,
            device=device,
            num_redundant=int("balanced" in plan.routing),
            real_share=real_share,
            experts_as_fp8=self.experts_as_fp8,
            output_as_fp8=plan.output_projection == "fp8",
            tables_on_host=self.tables_on_host,
        )

    def measure(self, rank: RankModel, tick: Callable[[str], None]) -> Iterator[Measurement]:
        """The rows measured on this rank."""
        for phase, part in self.parts:
            tick(f"{phase} of {rank.present} of {self.ranks} ranks")
            rows = _MEASURES[phase](part, self.model, rank, tick)
            if not self.tables_on_host:
                yield from rows
                continue
            num_bytes = float(weight_bytes(rank.config).tables)
            yield from (replace(row, host_table_bytes=num_bytes) for row in rows)


def measure_rank(
    plan: BenchPlan,
    flash: ModelConfig,
    devices: Sequence[str],
    tick: Callable[[str], None] = lambda name: None,
) -> Iterator[Measurement]:
    """All rows of the plan, deployment by deployment, on as many of ``devices`` as it has ranks.

    Raises: ConfigError if a phase has a size that does not fit in a device's free memory.
    """
    for deployment in deployments(plan, flash, devices[0]):
        deployment = _that_fits(deployment, devices[0])
        present = min(deployment.ranks, len(devices))
        if present > 1 and plan.routing == ("even",):
            from .together import measure_together

            yield from measure_together(deployment, devices[:present], tick)
            continue
        tick(f"random weights of 1 of {deployment.name}")
        rank = deployment.make_rank(devices[0])
        yield from deployment.measure(rank, tick)
        del rank
        free_unused(devices[0])  # so that the next one has its memory


def deployments(plan: BenchPlan, model: ModelConfig, device: str) -> Iterator[Deployment]:
    """Each number of ranks, with the formats of experts that its rows need."""
    sizes = {"decode": plan.decode_ranks, "prefill": plan.prefill_ranks}
    wanted = [phase for phase in sizes if phase in plan.phases]
    for ranks in dict.fromkeys(size for phase in wanted for size in sizes[phase]):
        plans = {
            phase: _with_form_that_fits(plan, model, ranks, phase, device)
            for phase in wanted
            if ranks in sizes[phase]
        }
        for as_fp8 in (False, True):
            parts = [
                (phase, part)
                for phase, own in plans.items()
                for part in _rows_of_form(own, model, ranks, phase, as_fp8)
            ]
            if parts:
                yield Deployment(model, ranks, as_fp8, tuple(parts))


def _with_form_that_fits(
    plan: BenchPlan, flash: ModelConfig, ranks: int, phase: str, device: str
) -> BenchPlan:
    """``plan``, with ``auto`` resolved to FP4 for a phase where FP8 is not faster or too big."""
    parts = _rows_of_form(plan, flash, ranks, phase, as_fp8=True)
    if plan.expert_weights != "auto" or not parts:
        return plan
    num_slots = max(_num_slots(phase, part) for part in parts)
    fit = num_that_fit(flash, ranks, plan.longest, device, experts_as_fp8=True)
    has_room = fit is not None and fit >= num_slots and is_hopper(device)
    return plan if has_room else replace(plan, expert_weights="fp4")


def _rows_of_form(
    plan: BenchPlan, flash: ModelConfig, ranks: int, phase: str, as_fp8: bool
) -> list[BenchPlan]:
    """Plans with the rows of a phase that use this format of experts."""
    if phase == "prefill":
        tokens = [n for n in plan.tokens if plan.prefills_as_fp8(flash, ranks, n) == as_fp8]
        return [replace(plan, tokens=tuple(tokens))] if tokens else []
    by_requests: dict[tuple[int, ...], list[int | None]] = {}
    for drafts in plan.drafts:
        requests = tuple(
            number
            for number in plan.requests
            if plan.decodes_as_fp8(flash, ranks, number, drafts) == as_fp8
        )
        by_requests.setdefault(requests, []).append(drafts)
    return [
        replace(plan, requests=requests, drafts=tuple(drafts))
        for requests, drafts in by_requests.items()
        if requests
    ]


def _num_slots(phase: str, plan: BenchPlan) -> int:
    """Maximum number of requests at once."""
    if phase == "decode":
        return max(plan.requests)
    return max(len(plan.prompts(number)) for number in plan.tokens)


def _that_fits(deployment: Deployment, device: str) -> Deployment:
    """The deployment, with Engram tables on the host if it does not fit otherwise.

    Raises: ConfigError if it does not fit at all.
    """
    plan, model, ranks = deployment.plan, deployment.model, deployment.ranks
    as_fp8, num_slots = deployment.experts_as_fp8, deployment.num_slots
    fit = num_that_fit(model, ranks, plan.longest, device, experts_as_fp8=as_fp8)
    if fit is None or fit >= num_slots:
        return deployment
    fit = num_that_fit(
        model, ranks, plan.longest, device, experts_as_fp8=as_fp8, tables_on_host=True
    )
    if fit is not None and fit >= num_slots:
        return replace(deployment, tables_on_host=True)
    weights = rank_weight_bytes(model, ranks, experts_as_fp8=as_fp8)
    weights -= weight_bytes(model).tables / ranks
    raise ConfigError(
        f"{num_slots} requests of {plan.longest:,} tokens and the weights of 1 of {ranks} "
        f"ranks ({weights / 1e9:,.0f} GB without Engram tables) do not fit the free memory of this "
        f"GPU: {fit} requests fit; ask for fewer (--requests), a shorter --context or more ranks "
        "(--ep)"
    )
