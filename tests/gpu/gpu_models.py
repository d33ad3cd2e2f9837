"""Models, token ids and passes for the tests on a GPU: token ids only, no text, no recipes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from deepinfer.engine.cache.kv_cache import KVCache
from deepinfer.engine.checkpoint.weights import open_checkpoint
from deepinfer.engine.config import EngineConfig
from deepinfer.engine.engine import LLMEngine
from deepinfer.engine.execution.batch import DraftOutput, ForwardBatch, ForwardOutput
from deepinfer.engine.model.model import Model
from deepinfer.engine.types import Completion, Request, SamplingParams

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "embedded": ROOT / "recipes" / "tiny",
    "tiny-a": ROOT / "tests" / "goldens" / "tiny-a" / "checkpoint",
    "kdim-a": ROOT / "tests" / "goldens" / "kdim-a" / "checkpoint",
}
BLOCK_SIZE = 64


@cache
def token_data() -> dict[str, Tensor]:
    """``token_ids`` of 200 prompts and their greedy answers of 64 tokens, one after the other,
    ``prompt_lens`` [200], and the token map of each model (``map_NAME``)."""
    with np.load(Path(__file__).parent / "data" / "token_ids.npz") as arrays:
        return {name: torch.from_numpy(arrays[name].astype(np.int64)) for name in arrays.files}


def sequences(count: int) -> list[Tensor]:
    """The first prompts with their answers, as one CPU run of the embedded model gave them."""
    data = token_data()
    lens = (data["prompt_lens"] + 64).tolist()
    return list(torch.split(data["token_ids"], lens))[:count]


@cache
def load_model(name: str, device: str) -> Model:
    checkpoint = open_checkpoint(FOLDERS[name])
    tensors = {key: value.to(device) for key, value in checkpoint.load().items()}
    return Model(checkpoint.config, tensors, device=device, token_map=token_data()[f"map_{name}"])


class Passes:
    """Requests 0, 1, ... with fixed slots and blocks, run through a model pass by pass."""

    def __init__(
        self, model: Model, num_requests: int, most_tokens: int, decoder_start: int = 0
    ) -> None:
        self.model = model
        self.decoder_start = decoder_start
        self.device = model.device
        self.blocks_each = -(-most_tokens // BLOCK_SIZE)
        self.cache = KVCache.allocate(
            model.config,
            num_blocks=num_requests * self.blocks_each,
            block_size=BLOCK_SIZE,
            num_slots=num_requests,
            device=model.device,
        )
        self.num_done = [0] * num_requests

    def batch(self, parts: Sequence[tuple[int, Tensor]]) -> ForwardBatch:
        """The next tokens of some requests; logits of all that the decoder layers compute."""
        requests = np.array([request for request, _ in parts])
        zeros = np.zeros_like(requests)
        lens = [len(token_ids) for _, token_ids in parts]
        return ForwardBatch.of(
            token_ids=torch.cat([token_ids for _, token_ids in parts]),
            query_lens=lens,
            first=[self.num_done[request] for request, _ in parts],
            block_table=requests[:, None] * self.blocks_each + np.arange(self.blocks_each),
            state_slots=requests,
            encoder_start=zeros,
            decoder_start=zeros + self.decoder_start,
            write_start=zeros,
            logit_rows=range(max(0, self.decoder_start - self.num_done[parts[0][0]]), sum(lens)),
            device=self.device,
            image_token_id=self.model.config.image_token_id,
        )

    def run(self, parts: Sequence[tuple[int, Tensor]]) -> Tensor:
        """Logits [tokens, V] on the CPU."""
        return self.forward(parts).logits.cpu()

    def forward(self, parts: Sequence[tuple[int, Tensor]]) -> ForwardOutput:
        output = self.model.forward(self.batch(parts), self.cache)
        for request, token_ids in parts:
            self.num_done[request] += len(token_ids)
        return output

    def seed(self, output: ForwardOutput) -> None:
        """Show the draft stages what the newest ``forward`` of request 0 computed."""
        done = self.num_done[0]
        positions = torch.arange(done - len(output.main_rows), done, device=self.device)
        slots = torch.zeros_like(positions)
        self.model.seed_draft(output.main_hidden, positions, slots, [len(positions)], self.cache)

    def draft(self, anchor: Tensor, given: Tensor) -> DraftOutput:
        """A block after ``anchor`` [1] of request 0, its drawn tokens replaced by ``given``."""
        forced = iter(given.to(self.device))

        def numbers(value: int) -> Tensor:
            return torch.tensor([value], device=self.device)

        return self.model.draft(
            anchor.to(self.device), numbers(self.num_done[0]), numbers(0),
            numbers(self.decoder_start), self.cache,
            lambda logits, positions: next(forced)[None],
        )  # fmt: skip


def make_engine(name: str, device: str, *, captures: bool = True, **fields: object) -> LLMEngine:
    """An engine on one of the models; room for 1,600 blocks unless told otherwise."""
    values: dict[str, object] = {"num_blocks": 1600, "max_model_len": 1024, "device": device}
    config = EngineConfig(**(values | fields))  # type: ignore[arg-type]
    return LLMEngine(load_model(name, device), config, captures=captures)


def ask(engine: LLMEngine, requests: Sequence[Request]) -> dict[str, Completion]:
    """All completions by id."""
    for request in requests:
        engine.add_request(request)
    done: dict[str, Completion] = {}
    while engine.has_unfinished():
        done.update({completion.request_id: completion for completion in engine.step()})
    engine.check_integrity()
    return done


def greedy_requests(count: int, max_tokens: int = 64) -> list[Request]:
    """The first prompts, to be answered greedily past any end token."""
    lens = token_data()["prompt_lens"].tolist()
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return [
        Request(
            request_id=str(number),
            prompt_token_ids=tuple(sequence[: lens[number]].tolist()),
            sampling=sampling,
            seed=number,
        )
        for number, sequence in enumerate(sequences(count))
    ]
