"""One decode step on the device: newest tokens and drafts in, logits out, in fixed shapes.

Requests and tokens are padded to a few sizes, so that few CUDA graphs serve every step.  Padding
repeats the last request and the last token: both compute and store the same as the original, which
changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepinfer.engine.sampling.sampler import Sampler
from deepinfer.engine.scheduling.request_state import RequestState
from deepinfer.errors import EngineError

from .batch import DraftOutput, ForwardBatch
from .bound_model import BoundModel
from .graphs import GraphCache
from .padded_sizes import padded_size
from .slot_table import SlotTable
from .staging import StagedInts, send
from .step_tokens import NEWEST, ChosenDrafts, known_drafts, padded
from .turns import turn_of

_FEW_TOKENS, _PIECE_KEYS = 16, 128


def pieces_for(most_tokens: int) -> int | None:
    """``ForwardBatch.piece_keys`` for steps of at most ``most_tokens`` on a GPU.

    Very few queries leave most of the 132 SMs idle unless their keys are split; from 48 queries on,
    combining the pieces took longer than the split saved.  One value for all steps of an engine,
    because the bits depend on it.
    """
    return _PIECE_KEYS if most_tokens <= _FEW_TOKENS else None


@dataclass(frozen=True, slots=True)
class StepOutput:
    """logits [T, V] f32 after the T tokens of a step, valid until the next step; slots [T] i64 and
    positions [T] i64 of the tokens to be sampled from them."""

    logits: Tensor
    slots: Tensor
    positions: Tensor


class DecodeStep:
    """Steps over one model, cache and slot table, with at most ``num_drafts`` drafts per request.
    ``piece_keys`` as in ``ForwardBatch``; ``keeps_draft_logits``: return drafts with the logits
    that they were sampled from.

    newest [num_slots] i64 on the device: the last token of each slot's request, sampled but not yet
    run through the model.
    """

    def __init__(
        self,
        model: BoundModel,
        table: SlotTable,
        sampler: Sampler,
        *,
        num_drafts: int = 0,
        graphs: GraphCache | None = None,
        piece_keys: int | None = None,
        keeps_draft_logits: bool = True,
    ) -> None:
        self.model = model
        self.vocab_size = model.model.config.vocab_size
        self.table = table
        self.sampler = sampler
        self.graphs = GraphCache(table.device) if graphs is None else graphs
        num_slots = len(table.blocks)
        self.newest = torch.zeros(num_slots, dtype=torch.int64, device=table.device)
        self.num_drafts = num_drafts
        self.piece_keys = piece_keys
        self._keeps_draft_logits = keeps_draft_logits
        self._most_requests = padded_size(num_slots)
        self._most_tokens = padded_size(num_slots * (1 + num_drafts))
        self._staged = StagedInts(
            5 * (self._most_requests + 1) + 4 * (self._most_tokens + 1), table.device
        )
        self._kept: dict[str, Tensor] = {}

    def run(
        self,
        states: Sequence[RequestState],
        first: Sequence[int],
        drafts: Sequence[Sequence[int]] | ChosenDrafts | None = None,
    ) -> StepOutput:
        """Logits after each request's newest token, whose position is in ``first``, and after each
        of its drafts, request by request.  Waits for the device only if it selected the drafts and
        steps are not graphs, for their numbers."""
        self.table.send_new_blocks(states)
        slots = np.array([state.slot for state in states])
        requests = np.stack([slots, np.asarray(first), *self.table.starts(slots)])
        tokens: NDArray[np.int64] | Tensor
        if isinstance(drafts, ChosenDrafts):
            tokens, lens = drafts.tokens, drafts.most_lens
            if not self.graphs.is_enabled:
                lens = drafts.lens.cpu().numpy()
        else:
            tokens, lens = known_drafts(first, drafts)
        num_tokens, is_plain = tokens.shape[1], drafts is None
        self._check_size(len(states), num_tokens)
        query_lens, context_lens = lens.tolist(), (requests[1] + lens).tolist()
        has_images = self._may_have_images(states, tokens[0])
        if self.graphs.is_enabled:
            # As many requests as tokens, which costs nothing and needs fewer graphs.
            tokens = padded(tokens, padded_size(num_tokens))
            requests = padded(requests, min(self._most_requests, tokens.shape[1]))
            query_lens = [1 if is_plain else 1 + self.num_drafts] * requests.shape[1]
            context_lens = [self.table.context_bound(max(context_lens))] * requests.shape[1]
        sent = self._staged.send(*requests, *tokens)
        with turn_of(self.model.model, tokens.shape[1]) as turn:
            logits, hidden = self.graphs.run(
                ("step", tuple(tokens.shape), is_plain, context_lens[0]),
                lambda: self._step(
                    sent, tuple(query_lens), tuple(context_lens), has_images, is_plain
                ),
                turn,
            )
        token_slots, at = sent[0][sent[7][:num_tokens]], sent[6][:num_tokens].clone()
        if hidden is None:
            self.model.note(sent[0])
        else:
            self.model.note_plain(hidden[:num_tokens], at, token_slots)
        return StepOutput(logits[:num_tokens], token_slots, at + 1)

    def draft(
        self, states: Sequence[RequestState], depth: int, num_new: Tensor | None = None
    ) -> DraftOutput:
        """``depth`` drafts after each request's newest token, sampled with the noise of their
        positions; ``num_new`` [R] i64: tokens that only the device knows yet."""
        rows = [(s.slot, s.num_computed_tokens, s.decoder_start) for s in states]
        requests = np.array(rows).T
        if self.graphs.is_enabled:
            requests = padded(requests, padded_size(len(states)))
        self.model.catch_up()
        sent = self._staged.send(*requests)
        if num_new is not None:
            sent[1] += padded(num_new[None], requests.shape[1])[0]
        num_tokens = requests.shape[1] * self.model.model.config.dspark_block_size
        with turn_of(self.model.model, num_tokens, is_draft=True) as turn:
            output = self.graphs.run(
                ("draft", requests.shape, depth), lambda: self._draft(depth, *sent), turn
            )
        count = len(states)
        return DraftOutput(
            token_ids=output.token_ids[:count],
            logits=None if output.logits is None else output.logits[:count],
            confidence=output.confidence[:count],
        )

    def note_newest(self, states: Sequence[RequestState], token_ids: Sequence[int]) -> None:
        """Set tokens that the host chose as the newest of their requests."""
        slots, ids = send([[state.slot for state in states], token_ids], self.table.device)
        self.newest[slots] = ids

    def _step(
        self,
        inputs: Sequence[Tensor],
        query_lens: tuple[int, ...],
        context_lens: tuple[int, ...],
        may_have_images: bool,
        is_plain: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Logits, and the input of the draft stages unless they have consumed it here: a graph
        keeps the memory of everything it returns."""
        slots, first, encoder_start, decoder_start, write_start = inputs[:5]
        token_ids, positions, rows, places = inputs[5:]
        num_blocks = -(-max(context_lens) // self.table.block_size)
        batch = ForwardBatch(
            token_ids=torch.where(token_ids == NEWEST, self.newest[slots[rows]], token_ids),
            positions=positions,
            request_rows=rows,
            places=places,
            query_lens=query_lens,
            context_lens=context_lens,
            decoder_lens=query_lens,
            block_table=self.table.blocks[:, :num_blocks][slots],
            state_slots=slots,
            first=first,
            encoder_start=encoder_start,
            decoder_start=decoder_start,
            write_start=write_start,
            logit_rows=places,
            may_have_images=may_have_images,
            piece_keys=self.piece_keys,
            logits_out=self._place("logits", (len(places), self.vocab_size), self._most_tokens),
        )
        output = self.model.forward(batch, is_plain=is_plain)
        is_unread = is_plain and self.model.backlog is not None
        logits = self._keep("logits", output.logits, self._most_tokens)
        return logits, output.main_hidden if is_unread else None

    def _draft(self, depth: int, slots: Tensor, positions: Tensor, starts: Tensor) -> DraftOutput:
        anchors = self.newest[slots]
        output = self.model.draft(
            anchors, positions, slots, starts, self.sampler.draw, depth, self._keeps_draft_logits
        )
        most, logits = (self._most_requests, self.num_drafts), output.logits
        return DraftOutput(
            token_ids=self._keep("draft token_ids", output.token_ids, *most),
            logits=None if logits is None else self._keep("draft logits", logits, *most),
            confidence=self._keep("draft confidence", output.confidence, *most),
        )

    def _check_size(self, num_requests: int, num_tokens: int) -> None:
        most = len(self.newest)
        if num_requests > most or num_tokens > most * (1 + self.num_drafts):
            raise EngineError(
                f"a decode step of {num_requests} requests and {num_tokens} tokens exceeds this "
                f"engine's limit of {most} requests with {self.num_drafts} drafts each; "
                "raise max_num_seqs"
            )

    def _may_have_images(
        self, states: Sequence[RequestState], token_ids: NDArray[np.int64] | Tensor
    ) -> bool:
        """Whether a token may belong to an image; a graph must be correct for any tokens."""
        image = self.table.image_token_id
        if image is None or self.graphs.is_enabled:
            return image is not None
        is_known = not any(state.num_in_flight for state in states)
        return (
            not is_known
            or bool((token_ids == image).any())
            or any(state.token_ids[-1] == image for state in states)
        )

    def _keep(self, name: str, value: Tensor, *most: int) -> Tensor:
        """A copy of a result outside the graphs' memory pool; ``most``: its maximum sizes."""
        place = self._place(name, value.shape, *most, dtype=value.dtype)
        if place is None or place.data_ptr() == value.data_ptr():
            return value
        return place.copy_(value)

    def _place(
        self, name: str, shape: Sequence[int], *most: int, dtype: torch.dtype = torch.float32
    ) -> Tensor | None:
        """The buffer for that copy; None if steps are not graphs."""
        if not self.graphs.is_enabled:
            return None
        if name not in self._kept:  # never during a capture: every key first runs without one
            sizes = *most, *shape[len(most) :]
            self._kept[name] = torch.empty(sizes, dtype=dtype, device=self.table.device)
        return self._kept[name][tuple(map(slice, shape))]
