"""What bounded replay costs by itself: the decoder layers on the last tokens of a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import median

from deepinfer.engine.execution.prefill import PrefillWorker
from deepinfer.engine.scheduling.schedule import PrefillBatch, PrefillChunk

from .rank_model import RankModel
from .timed import repeat_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTimes:
    """The last ``replay_tokens`` of a prompt of ``prompt_len`` tokens as one pass: seconds with the
    decoder layers, and with the encoder alone."""

    prompt_len: int
    replay_tokens: int
    whole_s: tuple[float, ...]
    encoder_s: tuple[float, ...]

    @property
    def decoder_s(self) -> float:
        """The median of the differences: both kinds took turns."""
        pairs = zip(self.whole_s, self.encoder_s, strict=True)
        return median(whole - encoder for whole, encoder in pairs)


def replay_times(
    rank: RankModel, prompt_len: int, replay_tokens: int, num_steps: int
) -> ReplayTimes:
    """Raises: ConfigError if the caches have no room for such a prompt."""
    worker = PrefillWorker(rank.worker(0, prompt_len + 1))
    # One token more, so that this pass is not the last one: it ends where the decoder begins.
    start, end = prompt_len - replay_tokens, prompt_len
    [with_decoder] = rank.prompts([prompt_len], replay_tokens)
    [without] = rank.prompts([prompt_len + 1], 1)
    calls = []
    for state in (with_decoder, without):
        chunk = PrefillChunk(state=state, start=start, end=end, is_first=True)
        calls.append(partial(worker.run, PrefillBatch(chunks=[chunk])))
    for call in calls:
        repeat_s(call, 0, rank.device)
    seconds: list[list[float]] = [[], []]
    for _ in range(num_steps):
        for call, found in zip(calls, seconds, strict=True):
            found += repeat_s(call, 1, rank.device, 0)
    return ReplayTimes(
        prompt_len=prompt_len,
        replay_tokens=replay_tokens,
        whole_s=tuple(seconds[0]),
        encoder_s=tuple(seconds[1]),
    )
