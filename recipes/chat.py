"""Chat requests through the official ``deepseek-recipe`` wheel: from a request body to prompt ids,
answer format and constraint.

The wheel renders and encodes in one step, so user text can never become a control token.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from deepseek_recipe import (
    ChatCompletionRequest,
    ConversationRequest,
    ConversionError,
    ConversionOptions,
    DeepseekV41Encoding,
    ParsingOptions,
    ThinkingInitialStage,
)

from deepinfer.errors import RowError

from .constraints.keywords import checked_schema
from .constraints.official import check_is_kept, official_constraint
from .constraints.spec import ConstraintSpec
from .types import AnswerFormat, ThinkingStage

MODEL_NAME = "DeepSeek-V4.1-Flash"

_OPTIONS = ConversionOptions()
_STAGES: tuple[tuple[ThinkingInitialStage, ThinkingStage], ...] = (
    (ThinkingInitialStage.ReasoningStart, "reasoning_start"),
    (ThinkingInitialStage.ReasoningContinuation, "reasoning_continuation"),
    (ThinkingInitialStage.ContentContinuation, "content_continuation"),
)
_CALL_AFTER_THINKING = "Thinking mode does not support this tool_choice"
T = TypeVar("T")


def convert(body: Mapping[str, Any]) -> ConversationRequest:
    """Validate a chat body as the official API does.  Raises: RowError with the API's message."""
    try:
        # Passed as text: the wheel's JSON reader guards against deep nesting and odd values.
        text = json.dumps({**body, "model": MODEL_NAME}, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        message = f"{_unwritable(body)}: not a JSON value: {str(error)[:200]}"
        raise RowError("invalid_value", message) from error
    if "\\ud" in text:
        _check_surrogates(body)
    try:
        request = _converted(text)
    except RowError as error:
        if str(error).startswith("Invalid json schema"):
            _check_schema(body)
        raise _with_field(error, body) from error
    if any(message.image_sources for message in request.conversation.messages):
        raise RowError("unsupported", "images are not supported; send text only")
    return request


def encode(encoding: DeepseekV41Encoding, request: ConversationRequest) -> tuple[int, ...]:
    """Prompt ids of a converted request; ``encoding`` has the model's tokenizer attached."""
    return tuple(guarded(lambda: encoding.encode(request.conversation)))


def answer_format(options: ParsingOptions) -> AnswerFormat:
    """How to parse the answer to this prompt, as plain data."""
    stage = options.thinking_initial_stage
    return AnswerFormat(
        is_chat=True,
        thinking_stage=next((name for ours, name in _STAGES if ours == stage), None),
        has_tools=options.parse_tool_calls,
        starts_in_tool_calls=options.starts_in_tool_calls,
        is_json=options.parse_json_output,
    )


def parsing_options(form: AnswerFormat) -> ParsingOptions:
    """``form`` as the options of the wheel's streaming parser."""
    return ParsingOptions(
        parse_tool_calls=form.has_tools,
        starts_in_tool_calls=form.starts_in_tool_calls,
        parse_json_output=form.is_json,
        thinking_initial_stage=next(
            (s for s, name in _STAGES if name == form.thinking_stage), None
        ),
    )


def constraint(request: ConversationRequest, body: Mapping[str, Any]) -> ConstraintSpec | None:
    """The constraint that ``body``, converted to ``request``, asks for.  Raises: RowError."""
    wanted = request.inference_options.output_constraint
    check_is_kept(None if wanted is None else wanted.kind, body)
    return None if wanted is None else official_constraint(wanted.kind, wanted.schema, body)


@lru_cache(maxsize=256)
def thinking_sampling(temperature: float, top_p: float) -> tuple[float, float]:
    """The temperature and top_p that the recipe uses in thinking mode.

    It fixes the temperature and sets a lower limit for top_p, whatever was requested.
    """
    message = {"role": "user", "content": "?"}
    thinking = {"type": "enabled"}
    asked = convert({"messages": [message], "thinking": thinking, "top_p": top_p})
    used = asked.inference_options
    return tuple(  # type: ignore[return-value]
        own if abs(own - value) < 1e-6 else round(value, 6)  # the wheel holds 32-bit floats
        for own, value in ((temperature, used.temperature), (top_p, used.top_p))
    )


def guarded(call: Callable[[], T]) -> T:
    """Call into the wheel; any failure, even a Rust panic, becomes a RowError."""
    try:
        return call()
    except ConversionError as error:
        raise RowError("invalid_value", _first_line(error)) from error
    except ValueError as error:
        raise RowError(_kind_of(str(error)), _first_line(error)) from error
    except Exception as error:
        raise RowError("unsupported", _first_line(error)) from error
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise RowError("unsupported", f"the recipe failed on this row: {error}") from error


def _converted(text: str) -> ConversationRequest:
    return guarded(lambda: ChatCompletionRequest(text).convert(_OPTIONS))


def _with_field(error: RowError, body: Mapping[str, Any]) -> RowError:
    """``error`` that begins with the field at fault, which the API's message does not name: the
    first one that alone fails in the same way."""
    message = str(error).removeprefix("invalid request body: ").removeprefix(".messages")
    if message == _CALL_AFTER_THINKING:
        advice = 'set "thinking": "off" in the row, or give --thinking off'
        return RowError(error.kind, f"tool_choice: {message}; {advice}")
    for name, value in body.items():
        alone = {"messages": [{"role": "user", "content": "?"}], name: value, "model": MODEL_NAME}
        try:
            _converted(json.dumps(alone))
        except RowError as other:
            if str(other) == str(error):
                separator = "" if message.startswith("[") else ": "
                return RowError(error.kind, f"{name}{separator}{message}")
    return error


def _unwritable(body: Mapping[str, Any]) -> str:
    """The first field whose value JSON cannot hold."""
    for name, value in body.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            return name
    return "the row"


def _check_surrogates(body: Mapping[str, Any]) -> None:
    """Refuse lone surrogates, which Python and JSON accept in text but the wheel does not."""
    try:
        json.dumps(body, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])[1:-1]
        message = f"a lone surrogate ({half}) is not valid Unicode text; correct or remove it"
        raise RowError("invalid_value", message) from None


def _check_schema(body: Mapping[str, Any]) -> None:
    """Raises: RowError that names the place in the schema, as the official message does not."""
    form = body.get("response_format")
    asked = form.get("json_schema") if isinstance(form, Mapping) else None
    if isinstance(asked, Mapping) and "schema" in asked:
        checked_schema(asked["schema"])


def _kind_of(message: str) -> str:
    if "missing field" in message:
        return "missing_field"
    return "invalid_type" if "invalid type" in message else "invalid_value"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:500]
