"""What one request wants done to its logits: penalties, bias, no end before ``min_tokens``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from deepinfer.engine.types import SamplingParams
from deepinfer.kernels.sampling import apply_penalties


class LogitRules:
    """Rules and token counts of one request; most requests have none (``LogitRules.of``)."""

    def __init__(
        self,
        sampling: SamplingParams,
        prompt_token_ids: Sequence[int],
        end_token_ids: Sequence[int],
        vocab_size: int,
        device: str,
    ) -> None:
        self.sampling = sampling
        self.num_output_tokens = 0
        self._end_token_ids = torch.tensor(sorted(end_token_ids), dtype=torch.int64, device=device)
        bias = sorted(sampling.logit_bias.items())
        self._bias_ids = torch.tensor([i for i, _ in bias], dtype=torch.int64, device=device)
        self._bias = torch.tensor([b for _, b in bias], dtype=torch.float32, device=device)
        self._counts: Tensor | None = None
        if _has_penalties(sampling):
            self._counts = torch.zeros(vocab_size, dtype=torch.int32, device=device)
            self._prompt_mask = torch.zeros(vocab_size, dtype=torch.bool, device=device)
            self._prompt_mask[torch.tensor(prompt_token_ids, device=device)] = True
            self._penalties = torch.tensor(
                [
                    sampling.presence_penalty,
                    sampling.frequency_penalty,
                    sampling.repetition_penalty,
                ],
                device=device,
            )

    @classmethod
    def of(
        cls,
        sampling: SamplingParams,
        prompt_token_ids: Sequence[int],
        end_token_ids: Sequence[int],
        vocab_size: int,
        device: str,
    ) -> LogitRules | None:
        """The rules of a request, or None when it has none."""
        if sampling.min_tokens or sampling.logit_bias or _has_penalties(sampling):
            return cls(sampling, prompt_token_ids, end_token_ids, vocab_size, device)
        return None

    def push(self, token_id: int) -> None:
        """Count one more output token."""
        self.num_output_tokens += 1
        if self._counts is not None:
            self._counts[token_id] += 1

    def adjust(self, logits: Tensor, draft_token_ids: Sequence[int] = ()) -> Tensor:
        """Adjusted logits [n, V] f32 of n consecutive positions, where position j is reached by
        accepting the first j drafts: counts are those as of each position."""
        n = len(logits)
        logits = logits.float()
        if self._counts is not None:
            counts = self._counts.repeat(n, 1)
            for j, token_id in enumerate(draft_token_ids[: n - 1]):
                counts[j + 1 :, token_id] += 1
            presence, frequency, repetition = (p.expand(n) for p in self._penalties)
            mask = self._prompt_mask.expand(n, -1)
            logits = apply_penalties(logits, counts, mask, presence, frequency, repetition)
        else:
            logits = logits.clone()
        logits[:, self._bias_ids] += self._bias
        num_barred = max(0, min(n, self.sampling.min_tokens - self.num_output_tokens))
        # Advanced indexing with a slice keeps both: the first rows, at the ending tokens.
        logits[:num_barred, self._end_token_ids] = -torch.inf
        return logits


def _has_penalties(sampling: SamplingParams) -> bool:
    return bool(
        sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.repetition_penalty != 1.0
    )
