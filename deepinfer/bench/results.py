"""Results of a benchmark.  Times in seconds, rates per second; ``None`` if unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from deepinfer.engine.limits.roofline import Limit


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRow:
    """The limits of one rank on a device with given peak rates.

    size   requests per rank (decode) or prompt tokens per rank (prefill)
    fits   whether weights and caches of such a rank fit on the device
    experts_as_fp8  experts' FP4 weights are stored and read as one byte each
    """

    phase: str
    size: int
    context: int
    ranks: int
    num_drafts: int
    limit: Limit
    weight_bytes: float
    cache_bytes: float
    fits: bool
    experts_as_fp8: bool = False

    @property
    def tokens_per_s_user(self) -> float | None:
        return self.limit.tokens_per_s / self.size if self.phase == "decode" else None

    def fitting(self, memory_bytes: float) -> int:
        """The largest ``size`` that fits, with caches proportional to it."""
        room = memory_bytes - self.weight_bytes
        return max(0, int(self.size * room / self.cache_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One measured row.  ``step_s``: raw times of a rank, the slowest of the ``present`` ones, with
    the exchange between them.  ``link_s``: the modeled exchange with absent ranks.
    ``num_drafts``: mean number of verified drafts; ``accepted_length``: mean tokens per request and
    step; ``energy_j``: joules per step and device; ``experts_as_fp8``: the format of the experts'
    FP4 weights, also in ``limit``.  ``host_table_bytes``: size of the pinned host memory that
    replaced the rank's Engram tables, which do not fit on the device."""

    phase: str
    name: str
    size: int
    context: int
    ranks: int
    num_drafts: float
    num_tokens: float
    step_s: tuple[float, ...]
    link_s: float = 0.0
    limit: Limit | None = None
    parts_s: Mapping[str, float] = field(default_factory=dict)
    accepted_length: float | None = None
    energy_j: float | None = None
    present: int = 1
    experts_as_fp8: bool = False
    host_table_bytes: float = 0.0

    @property
    def local_s(self) -> float:
        return median(self.step_s)

    @property
    def overlap_s(self) -> float:
        """A step in which exchange and computation overlap completely."""
        return max(self.local_s, self.link_s)

    @property
    def serial_s(self) -> float:
        return self.local_s + self.link_s

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.overlap_s

    @property
    def serial_tokens_per_s(self) -> float:
        return self.num_tokens / self.serial_s

    @property
    def tokens_per_s_user(self) -> float | None:
        return self.tokens_per_s / self.size if self.phase == "decode" else None

    @property
    def energy_per_token_j(self) -> float | None:
        return None if self.energy_j is None else self.energy_j / self.num_tokens

    @property
    def share_of_local_limit(self) -> float | None:
        """Share of what compute and memory allow, without the exchange."""
        return None if self.limit is None else self.limit.local_s / self.local_s

    @property
    def share_of_overlap_limit(self) -> float | None:
        return None if self.limit is None else self.limit.overlap_s / self.overlap_s

    @property
    def share_of_serial_limit(self) -> float | None:
        return None if self.limit is None else self.limit.serial_s / self.serial_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """A copy or a library GEMM on the same machine in the same run."""

    name: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """A kernel at one shape.  ``flop``: GEMM work at the ``rate`` of a ceiling; ``num_bytes``: the
    minimum to read and write."""

    family: str
    name: str
    seconds: tuple[float, ...]
    flop: float
    num_bytes: float
    rate: str

    @property
    def median_s(self) -> float:
        return median(self.seconds)

    def limit_s(self, ceilings: Sequence[Ceiling]) -> float:
        """The minimum time by the ceiling of its ``rate`` or of a copy, whichever is longer."""
        rates = {ceiling.name.partition(" ")[0]: ceiling.value for ceiling in ceilings}
        return max(self.flop / rates[self.rate], self.num_bytes / rates["copy,"])
