"""Decode steps padded to the sizes of graphs give the bits of steps of exact size."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import pytest
import torch

from deepinfer.engine.cache.kv_cache import KVCache
from deepinfer.engine.execution.bound_model import BoundModel
from deepinfer.engine.execution.decode_step import DecodeStep
from deepinfer.engine.execution.graphs import GraphCache, Result
from deepinfer.engine.execution.slot_table import SlotTable
from deepinfer.engine.sampling.sampler import Sampler
from deepinfer.engine.scheduling.request_state import RequestState
from deepinfer.engine.speculation.draft_backlog import DraftBacklog
from deepinfer.engine.types import Request, SamplingParams
from deepinfer.errors import EngineError
from deepinfer.kernels.testing import assert_bitwise_equal

BLOCK_SIZE, NUM_SLOTS, MOST_TOKENS = 8, 7, 96


class Padding(GraphCache):
    """Sizes and places as for graphs, but the function runs every time."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.is_enabled = True
        self.newest: object = None

    def run(self, key: Hashable, function: Callable[[], Result], turn: object = None) -> Result:
        self.newest = result = function()
        return result


class Steps:
    """Requests of different lengths, prefilled, then decoded with given drafts."""

    def __init__(self, model, graphs: GraphCache) -> None:
        config = model.config
        blocks_each = MOST_TOKENS // BLOCK_SIZE
        self.cache = KVCache.allocate(
            config, num_blocks=NUM_SLOTS * blocks_each, block_size=BLOCK_SIZE, num_slots=NUM_SLOTS
        )
        table = SlotTable(NUM_SLOTS, MOST_TOKENS, BLOCK_SIZE, "cpu", config.image_token_id)
        backlog = DraftBacklog(NUM_SLOTS, config.sliding_window, "cpu")
        bound = BoundModel(model, self.cache, backlog=backlog)
        self.step = DecodeStep(
            bound,
            table,
            Sampler(NUM_SLOTS, "cpu"),
            num_drafts=config.dspark_block_size,
            graphs=graphs,
        )
        generator = torch.Generator().manual_seed(3)
        self.states = []
        for slot in range(NUM_SLOTS):
            length = 3 + 9 * slot
            ids = torch.randint(3, config.vocab_size - 60, (length,), generator=generator).tolist()
            state = RequestState(
                request=Request(
                    request_id=str(slot), prompt_token_ids=tuple(ids), seed=slot,
                    sampling=SamplingParams(temperature=float(slot % 2)),
                ),
                arrival=slot, arrived_s=0.0, token_ids=ids, num_prompt_tokens=length,
                max_output_tokens=50, decoder_start=0, stop_token_ids=frozenset(), slot=slot,
                blocks=list(range(slot * blocks_each, (slot + 1) * blocks_each)),
            )  # fmt: skip
            table.assign(state)
            self.states.append(state)
        self.step.sampler.assign(self.states)
        lens = [len(state.token_ids) for state in self.states]
        flat = [token for state in self.states for token in state.token_ids]
        bound.forward(
            table.batch(self.states, [0] * NUM_SLOTS, flat, lens, torch.tensor([]).numpy())
        )
        for state, length in zip(self.states, lens, strict=True):
            state.num_computed_tokens = length

    def run(self, slots: list[int], drafts: list[list[int]] | None) -> torch.Tensor:
        """Logits of a step whose newest tokens are 5 plus the slot; the requests go on by one."""
        states = [self.states[slot] for slot in slots]
        for state in states:
            state.token_ids.append(5 + state.slot)
        self.step.note_newest(states, [5 + slot for slot in slots])
        first = [state.next_position for state in states]
        logits = self.step.run(states, first, drafts).logits.clone()
        for state in states:
            state.num_computed_tokens += 1
        return logits


@pytest.mark.parametrize("slots", [[0, 1, 2, 3, 4, 5, 6], [6, 2, 0], [3]])
def test_padded_steps_are_the_same(model, slots: list[int]) -> None:
    most = model.config.dspark_block_size
    exact, padded = Steps(model, GraphCache("cpu")), Steps(model, Padding())
    shapes: list[list[list[int]] | None] = [
        None,
        [[7] * (slot % (most + 1)) for slot in slots],  # of all lengths: tokens are padded too
        None,
        [[9, 11] for _ in slots],
    ]
    for drafts in shapes:
        assert_bitwise_equal(padded.run(slots, drafts), exact.run(slots, drafts))
        draft, expected = (
            steps.step.draft([steps.states[slot] for slot in slots], most)
            for steps in (padded, exact)
        )
        assert_bitwise_equal(draft.token_ids, expected.token_ids)
        assert_bitwise_equal(draft.logits, expected.logits)
        assert_bitwise_equal(draft.confidence, expected.confidence)
    for ring, other in zip(
        [padded.cache.window, padded.cache.history, *padded.cache.main.values()],
        [exact.cache.window, exact.cache.history, *exact.cache.main.values()],
        strict=True,
    ):
        assert torch.equal(ring, other)


def test_a_graph_keeps_only_what_is_read_after_it(model) -> None:
    """Beside logits, whose memory all share: what the draft stages have not seen yet."""
    graphs = Padding()
    steps = Steps(model, graphs)
    for drafts, is_kept in ((None, True), ([[7], [7]], False)):
        steps.run([1, 4], drafts)
        logits, hidden = graphs.newest
        assert logits.data_ptr() == steps.step._kept["logits"].data_ptr()
        assert (hidden is not None) == is_kept


def test_more_than_the_plan_has_room_for_is_refused(model) -> None:
    steps = Steps(model, Padding())
    states = [*steps.states, steps.states[0]]
    with pytest.raises(
        EngineError, match=r"8 requests and 8 tokens exceeds this engine's limit of 7"
    ):
        steps.step.run(states, [state.next_position for state in states])
