"""The residual streams between two blocks.

T tokens, S streams, d width.  Finishing a block and entering the next one is a single pass over the
streams (``advance_streams``), so a block returns its last output separately until the next block is
known.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from deepinfer.kernels.hyper_connection import HyperMix, expand_streams
from deepinfer.kernels.moe import PairOutputs
from deepinfer.kernels.norm import NormedRows


@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """Streams [T, S, d] bf16 and the coefficients ``pre`` [T, S] f32 of their next collapse."""

    streams: Tensor
    pre: Tensor

    def settle(self) -> Settled:
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """Streams [T, S, d] bf16 into which the output [T, d] of a block's MoE is not mixed yet."""

    streams: Tensor
    output: Tensor | PairOutputs
    mix: HyperMix

    def settle(self) -> Settled:
        """Merge the output into the streams."""
        return Settled(expand_streams(self.streams, self.output, self.mix), self.mix.pre)


Residual = Settled | Pending


@dataclass(frozen=True, slots=True, eq=False)
class Entered:
    """A block's start: streams [T, S, d] bf16, the mixing coefficients around its attention, and
    attention's normalized input [T, d]."""

    streams: Tensor
    mix: HyperMix
    rows: NormedRows

    def at(self, kept: Tensor) -> Entered:
        """The same for the tokens ``kept`` [K] i64 only."""
        mix = HyperMix(*(part[kept] for part in self.mix))
        return Entered(self.streams[kept], mix, self.rows.at(kept))
