"""Assembles a row's output from the engine's completions: parsing, stop strings, usage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from deepinfer.engine.types import Completion, SamplingParams
from deepinfer.outputs import RequestOutput, Sample, ToolCall, Usage
from deepinfer.recipes.constraints.validate import Verdict, judge
from deepinfer.recipes.parsing import AnswerParser
from deepinfer.recipes.stopping import StopChecker
from deepinfer.recipes.types import Answer, EncodedRow


@dataclass(slots=True)
class RowInFlight:
    """A row whose samples are being generated; there will be a completion for each seed."""

    number: int
    encoded: EncodedRow
    sampling: SamplingParams
    notes: dict[str, str]
    seeds: tuple[int, ...]
    stop_checkers: tuple[StopChecker | None, ...]
    completions: dict[int, Completion] = field(default_factory=dict)

    @property
    def is_finished(self) -> bool:
        return len(self.completions) == len(self.seeds)


class OutputAssembler:
    """Builds outputs for one model; ``eos_id`` is not part of an answer's text."""

    def __init__(self, parser: AnswerParser, eos_id: int) -> None:
        self._parser = parser
        self._eos_id = eos_id

    def output(self, row: RowInFlight) -> RequestOutput:
        """The output of a finished row: its samples, or the engine's error."""
        completions = [row.completions[index] for index in range(len(row.seeds))]
        failed = next((c for c in completions if c.finish_reason == "error"), None)
        if failed is not None:
            message = failed.error or "the engine gave up on this row"
            kind = failed.error_kind or "engine_error"
            return error_output(row.number, row.encoded.row_id, kind, message)
        answers = [self._answer(row, index, c) for index, c in enumerate(completions)]
        return RequestOutput(
            row=row.number,
            request_id=row.encoded.row_id,
            kind=row.encoded.kind,
            prompt_token_ids=row.encoded.prompt_token_ids,
            samples=tuple(
                self._sample(row, index, completion, answer)
                for index, (completion, answer) in enumerate(zip(completions, answers, strict=True))
            ),
            usage=_usage(row, completions, answers),
            sampling=row.sampling,
            notes=row.notes,
        )

    def _answer(self, row: RowInFlight, index: int, completion: Completion) -> Answer:
        token_ids = completion.output_token_ids
        checker = row.stop_checkers[index]
        num_cut_chars = 0
        if checker is not None and isinstance(completion.stop_reason, str):
            num_cut_chars = checker.num_cut_chars
        elif completion.finish_reason == "stop" and token_ids:
            ends = token_ids[-1] in (self._eos_id, completion.stop_reason)
            token_ids = token_ids[:-1] if ends else token_ids
        return self._parser.parse(token_ids, row.encoded.answer_format, num_cut_chars=num_cut_chars)

    def _sample(
        self, row: RowInFlight, index: int, completion: Completion, answer: Answer
    ) -> Sample:
        ends_in_calls = completion.finish_reason == "stop" and answer.tool_calls
        if answer.is_tool_call_unfinished:
            ends_in_calls = ()
        finish_reason = "tool_calls" if ends_in_calls else completion.finish_reason
        return Sample(
            text=answer.content,
            reasoning=answer.reasoning,
            tool_calls=tuple(
                ToolCall(
                    id=f"call_{row.encoded.row_id}_{index}_{place}",
                    name=call.name,
                    arguments=call.arguments,
                )
                for place, call in enumerate(answer.tool_calls)
            ),
            token_ids=completion.output_token_ids,
            finish_reason=finish_reason,
            stop_reason=completion.stop_reason,
            seed=row.seeds[index],
            logprobs=completion.logprobs,
            warnings=_warnings(answer),
            constraint=self._verdict(row.encoded, completion, answer),
            timing=completion.timing,
            num_preemptions=completion.num_preemptions,
            num_draft_tokens=completion.num_draft_tokens,
            num_accepted_tokens=completion.num_accepted_tokens,
        )

    def _verdict(self, row: EncodedRow, completion: Completion, answer: Answer) -> Verdict | None:
        """Validate the answer; one that a stop string or token has cut off is incomplete."""
        if row.constraint is None:
            return None
        if completion.stop_reason not in (None, self._eos_id):
            return "incomplete"
        return judge(row.constraint, answer, completion.finish_reason)


def error_output(number: int, row_id: str, kind: str, message: str) -> RequestOutput:
    """The output of a row that has no answer."""
    return RequestOutput(row=number, request_id=row_id, error_kind=kind, error=message)


def _warnings(answer: Answer) -> tuple[str, ...]:
    unfinished = {
        "unfinished_reasoning": answer.is_reasoning_unfinished,
        "unfinished_tool_call": answer.is_tool_call_unfinished,
    }
    return tuple(word for word, holds in unfinished.items() if holds)


def _usage(row: RowInFlight, completions: Sequence[Completion], answers: Sequence[Answer]) -> Usage:
    return Usage(
        prompt_tokens=len(row.encoded.prompt_token_ids),
        cached_tokens=completions[0].num_cached_tokens,
        completion_tokens=sum(len(c.output_token_ids) for c in completions),
        reasoning_tokens=sum(answer.num_reasoning_tokens for answer in answers),
    )
