"""``RowPreparer``: turns a row into prompt ids and effective sampling, or raises its error."""

from __future__ import annotations

from typing import Any

from deepinfer.engine.types import SamplingParams
from deepinfer.recipes.constraints.spec import ConstraintSpec
from deepinfer.recipes.encoding import RowEncoder
from deepinfer.recipes.stopping import StopChecker
from deepinfer.recipes.tokenizer import Tokenizer
from deepinfer.recipes.types import Thinking

from .assemble import RowInFlight
from .effective_sampling import effective_sampling
from .seeds import sample_seed


class RowPreparer:
    """Prepares rows for one model.  Plans and runs both use it, so that they agree.

    ``max_model_len`` bounds prompt plus answer; ``seed`` is that of the run.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, max_model_len: int, vocab_size: int, seed: int
    ) -> None:
        self._tokenizer = tokenizer
        self._encoder = RowEncoder(tokenizer, max_model_len=max_model_len, vocab_size=vocab_size)
        self._max_model_len = max_model_len
        self._seed = seed

    def prepare(
        self,
        number: int,
        row: Any,
        defaults: SamplingParams,
        *,
        raw: bool = False,
        thinking: Thinking | None = None,
        constraint: ConstraintSpec | None = None,
    ) -> RowInFlight:
        """Row ``number`` of the input, ready for the engine once its constraint is compiled.

        ``defaults``, ``raw``, ``thinking`` and ``constraint`` apply unless the row overrides them.
        Raises: RowError, and no other error, whatever the row contains.
        """
        encoded = self._encoder.encode(
            number, row, raw=raw, thinking=thinking, constraint=constraint
        )
        sampling, notes = effective_sampling(encoded, defaults, max_model_len=self._max_model_len)
        self._encoder.check_token_ids("logit_bias", sampling.logit_bias)
        self._encoder.check_token_ids("stop_token_ids", sampling.stop_token_ids)
        stops, form = sampling.stop, encoded.answer_format
        return RowInFlight(
            number=number,
            encoded=encoded,
            sampling=sampling,
            notes={**encoded.notes, **notes},
            seeds=tuple(
                sample_seed(sampling.seed, run_seed=self._seed, row=number, sample=index)
                for index in range(sampling.n)
            ),
            stop_checkers=tuple(
                StopChecker(self._tokenizer, stops, form) if stops else None
                for _ in range(sampling.n)
            ),
        )
