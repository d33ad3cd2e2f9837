"""``BenchPlan``: what ``deepinfer bench`` measures, for which deployment."""

from __future__ import annotations

from dataclasses import dataclass

from deepinfer.engine.checks import is_number, is_whole
from deepinfer.engine.config import check_fields
from deepinfer.engine.limits.device_profiles import DeviceProfile, device_profile
from deepinfer.engine.limits.links import Link, device_link, link
from deepinfer.engine.memory.expert_form import is_worth_fp8
from deepinfer.engine.model.config import ModelConfig
from deepinfer.errors import ConfigError

PHASES = ("decode", "prefill")
MODES = ("exact", "batch-invariant")
ROUTINGS = ("even", "skewed", "balanced")
LAUNCH_CONTEXT = 131_072
LAUNCH_ACCEPTANCE = 0.75
LAUNCH_REPLAY = 140
CHUNK_TOKENS = 8_192  # per prefill pass
_LARGEST = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """phases           what to measure
    requests         decode: requests per rank, one row each
    context          tokens of each request, or of each prompt in a prefill
    lengths          lengths of requests and prompts, in turn, instead of ``context``
    tokens           prefill: prompt tokens per rank, one row each
    drafts           drafts verified per request and step, one row each; None: as many as pay off
    acceptance       probability that a draft is accepted if those before it were
    decode_ranks     expert-parallel ranks for decode, one row each
    prefill_ranks    the same for prefill
    link             link of the exchange; None is the fabric of the device, or
    own_link         the link of this machine, if it was measured
    device_profile   device whose peak rates give the limits
    modes            additional prefill modes, one row each: exact runs every layer on every token,
                     batch-invariant saves rings for prefix hits
    routing          even: all experts get the same number of tokens; skewed: some get many, and
                     this rank the most in each layer; balanced: skewed after EPLB.  One row each
    replay_tokens    decoder tokens per prompt; None is one window
    expert_weights   format of the experts' FP4 weights, as in ``EngineConfig``; auto: per row
    output_projection  as in ``EngineConfig``: bf16 or fp8
    num_steps        steps per measurement, a quarter of them for ``modes``; the median counts
    seed             of random weights, tokens and routing

    Raises: ConfigError for a value out of range.
    """

    phases: tuple[str, ...] = PHASES
    requests: tuple[int, ...] = (8, 16, 60, 128, 256)
    context: int = LAUNCH_CONTEXT
    lengths: tuple[int, ...] = ()
    tokens: tuple[int, ...] = (4_096, 16_384, 65_536)
    drafts: tuple[int | None, ...] = (None, 5)
    acceptance: float = LAUNCH_ACCEPTANCE
    decode_ranks: tuple[int, ...] = (8,)
    prefill_ranks: tuple[int, ...] = (8,)
    link: str | None = None
    own_link: Link | None = None
    device_profile: str = "h200"
    modes: tuple[str, ...] = MODES
    routing: tuple[str, ...] = ("even",)
    replay_tokens: int | None = None
    expert_weights: str = "auto"
    output_projection: str = "bf16"
    num_steps: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in (("phases", PHASES), ("modes", MODES), ("routing", ROUTINGS)):
            for value in getattr(self, name):
                _check(value in known, name, value, " or ".join(known))
        for name in ("phases", "routing", "drafts", "requests", "tokens"):
            _check(bool(getattr(self, name)), name, (), "at least one")
        for name in ("context", "num_steps"):
            _check_size(name, getattr(self, name))
        for name in ("requests", "tokens", "lengths", "decode_ranks", "prefill_ranks"):
            for value in getattr(self, name):
                _check_size(name, value)
        for number in self.drafts:
            ok = number is None or is_whole(number, 0, 1024)
            _check(ok, "drafts", number, "0 to 1024, or auto")
        _check(is_number(self.acceptance, 0, 1), "acceptance", self.acceptance, "0 to 1")
        _check(is_whole(self.seed, 0, 2**63 - 1), "seed", self.seed, "0 to 2**63 - 1")
        for name in ("expert_weights", "output_projection"):
            check_fields({name: getattr(self, name)})
        self.profile()
        self.exchange(1)

    def contexts(self, num_requests: int) -> list[int]:
        """Context lengths of ``num_requests`` requests."""
        lengths = self.lengths or (self.context,)
        return [lengths[number % len(lengths)] for number in range(num_requests)]

    def prompts(self, num_tokens: int) -> list[int]:
        """Lengths of the prompts of a prefill: with equal lengths, as many as come closest to
        ``num_tokens`` in total, else as many as reach it."""
        if not self.lengths:
            length = min(num_tokens, self.context)
            return [length] * max(1, round(num_tokens / length))
        found: list[int] = []
        while sum(found) < num_tokens:
            found.append(self.lengths[len(found) % len(self.lengths)])
        return found

    def decodes_as_fp8(
        self, model: ModelConfig, ranks: int, requests: int, drafts: int | None
    ) -> bool:
        """Whether ranks that decode ``requests`` store experts as FP8 if there is room.  If as many
        drafts are verified as pay off, about one per request is assumed in large batches."""
        most = 1 if drafts is None else drafts
        return self._as_fp8(model, ranks * requests * (1 + most))

    def prefills_as_fp8(self, model: ModelConfig, ranks: int, tokens: int) -> bool:
        """The same for ranks that prefill."""
        return self._as_fp8(model, ranks * min(tokens, CHUNK_TOKENS))

    def _as_fp8(self, model: ModelConfig, num_tokens: int) -> bool:
        if self.expert_weights == "auto":
            return is_worth_fp8(model, num_tokens)
        return self.expert_weights == "fp8"

    @property
    def longest(self) -> int:
        return max(self.lengths, default=self.context)

    def profile(self) -> DeviceProfile:
        return device_profile(self.device_profile)

    def exchange(self, ranks: int) -> Link:
        """The link for the exchange of ``ranks``: within a node no network is needed."""
        fabric = self.own_link or device_link(self.profile())
        if self.link is None:
            return fabric
        chosen = link(self.link)
        return fabric if 1 < ranks <= chosen.ranks_per_node else chosen

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ConfigError if the plan exceeds what the model supports."""
        if self.longest > model.max_position_embeddings:
            raise ConfigError(
                f"context={self.longest}: the model's is {model.max_position_embeddings}"
            )
        drafts = max(number or 0 for number in self.drafts)
        if drafts > model.dspark_block_size:
            raise ConfigError(
                f"drafts={drafts}: the model drafts at most {model.dspark_block_size}"
            )
        experts = max(plan.n_routed_experts for plan in model.layers)
        for ranks in {*self.decode_ranks, *self.prefill_ranks}:
            if ranks > experts:
                raise ConfigError(f"ep={ranks}: the model has {experts} experts in a layer")
            try:
                self.exchange(ranks).num_receivers(ranks)
            except ConfigError as error:
                raise ConfigError(f"ep={ranks}: {error}") from error


def padded_experts(num_experts: int, num_ranks: int) -> int:
    """Experts per rank; if they do not divide evenly, the last ranks have empty ones."""
    return -(-num_experts // num_ranks)


def _check_size(name: str, value: int) -> None:
    _check(is_whole(value, 1, _LARGEST), name, value, f"1 to {_LARGEST}")


def _check(ok: bool, name: str, value: object, expected: str) -> None:
    if not ok:
        raise ConfigError(f"{name}={value!r}: expected {expected}")
