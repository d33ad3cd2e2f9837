"""``InputRow``: a parsed line of the input, and its conversion to an error row."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from deepinfer.errors import RowError, json_name
from deepinfer.recipes.rows import row_id
from deepinfer_cli.strict_json import refuse_constant

_ERROR_ROW_FIELDS = {"line", "id", "error"}
_SHOWN_CHARACTERS = 1_000
_ARRAY = "if the file is one JSON array, make it one object a line: jq -c '.[]' FILE"
_SPREAD_OUT = "if an object goes over several lines, put it on one: jq -c . FILE"
_PLAIN_TEXT = "if each line is a prompt, make it an object: jq -Rc '{prompt: .}' FILE"
_STRING = "if each line is a prompt, make it an object: jq -c '{prompt: .}' FILE"
_TOO_DEEP = "the JSON is nested too deeply"


@dataclass(frozen=True, slots=True)
class InputRow:
    """One row.  Either ``fields`` or ``error`` is set.

    index: row number from 0, also for seeds.  line: line number of a text file, or row number of a
    table, from 1, for people.  raw: the original bytes (for a table, the row as JSON).
    has_json_text: the row is from a table, where JSON is often stored as text.
    """

    index: int
    line: int
    raw: bytes
    fields: Mapping[str, Any] | None
    error: RowError | None = None
    has_json_text: bool = False

    @property
    def row_id(self) -> str:
        """The row's ``custom_id`` or ``id``, else its line number."""
        return row_id(self.fields, self.line)


def fields_with_id(row: InputRow) -> Mapping[str, Any]:
    """The fields for the engine; a row without an id gets its line number."""
    assert row.fields is not None
    if row.fields.get("custom_id") is None and row.fields.get("id") is None:
        return {**row.fields, "id": row.row_id}
    return row.fields


# Fields that are never text.
_JSON_TEXT_FIELDS = ("messages", "tools", "response_format")


class RepeatedKeyError(ValueError):
    """An object has a duplicate key."""


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object; of duplicate keys one would be lost silently."""
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = first_repeated(name for name, _ in pairs)
        raise RepeatedKeyError(f"the key {twice[:40]!r} is there twice; keep one")
    return found


def first_repeated(names: Iterable[str]) -> str:
    """The first name that occurs more than once."""
    return next(name for name, count in Counter(names).items() if count > 1)


_DECODER = json.JSONDecoder(parse_constant=refuse_constant, object_pairs_hook=unique_keys)


def parse_json(raw: bytes) -> Any:
    """Strict UTF-8, strict JSON.  Raises: RowError ``invalid_utf8`` or ``invalid_json``."""
    try:
        return _DECODER.decode(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RowError(
            "invalid_utf8", f"byte {error.start + 1} of the line is not UTF-8; convert the file"
        ) from None
    except RecursionError:
        raise RowError("invalid_json", _TOO_DEEP) from None
    except json.JSONDecodeError as error:
        what = error.msg.lower().removesuffix(" at")
        message = f"not JSON: {what} at character {error.pos + 1}{_hint(raw)}"
        raise RowError("invalid_json", message) from None
    except ValueError as error:
        is_long = "integer string conversion" in str(error)
        reason = "a number has thousands of digits" if is_long else str(error)
        raise RowError("invalid_json", reason) from None


def _hint(raw: bytes) -> str:
    """A hint about what a line that is not JSON may be."""
    begin = raw.strip()[:1]
    if begin == b"[":
        return f"; {_ARRAY}"
    if begin not in b'{}]",':
        return f"; {_PLAIN_TEXT}"
    return f"; {_SPREAD_OUT}" if raw.strip() == b"{" else ""


def too_long_row(index: int, line: int, raw: bytes, size: int, limit: int) -> InputRow:
    """The error row for a line over the limit; ``raw`` is its beginning."""
    message = f"the row has {size:,} bytes, the limit is {limit:,} (--max-row-bytes)"
    if raw.lstrip()[:1] == b"[":
        message += f"; {_ARRAY}"
    return InputRow(index, line, raw, None, RowError("line_too_long", message))


def make_row(index: int, line: int, raw: bytes) -> InputRow:
    """The row of a line of JSON.  A row of an errors file is replaced by the row inside it."""
    try:
        value = parse_json(raw)
        if isinstance(value, dict) and value.keys() >= _ERROR_ROW_FIELDS:
            return _row_of_error_row(index, line, raw, value)
        return InputRow(index, line, raw, _expect_object(value))
    except RowError as error:
        return InputRow(index, line, raw, None, error)
    except RecursionError:
        return InputRow(index, line, raw, None, RowError("invalid_json", _TOO_DEEP))


def _expect_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        kind = type(value)
        message = f'a row must be a JSON object such as {{"prompt": "Hi"}}, not {json_name(value)}'
        hint = _ARRAY if kind is list else _STRING if kind is str else ""
        raise RowError("invalid_type", f"{message}; {hint}" if hint else message)
    return value


def _row_of_error_row(index: int, line: int, raw: bytes, value: dict[str, Any]) -> InputRow:
    """The original row inside a row of an errors file, from ``input*``."""
    if "input_base64" in value:
        try:
            inner = base64.b64decode(value["input_base64"], validate=True)
        except (ValueError, TypeError):
            raise RowError(
                "invalid_value", "input_base64 of this error row is not base64"
            ) from None
    elif "input_text" in value:
        inner = str(value["input_text"]).encode("utf-8", "surrogatepass")
    elif isinstance(value.get("input"), dict):
        fields = value["input"]
        try:
            inner = encode_json(fields)
        except ValueError:
            raise RowError("invalid_json", "a number in this row is too large") from None
        if "id" not in fields and "custom_id" not in fields:
            fields = {**fields, "id": value["id"]}
        return InputRow(index, line, inner, fields, has_json_text=True)
    else:
        return InputRow(index, line, raw, value)
    row = make_row(index, line, inner)
    return InputRow(index, line, inner, row.fields, row.error, has_json_text=True)


def read_json_text(row: InputRow) -> InputRow:
    """The row with JSON text from tables parsed, after columns were mapped to fields.  Other text
    is left for the recipe to report.  An object with a duplicate key is an error."""
    if row.fields is None or not row.has_json_text:
        return row
    fields = dict(row.fields)
    for name in _JSON_TEXT_FIELDS:
        if isinstance(text := fields.get(name), str):
            try:
                fields[name] = json.loads(text, object_pairs_hook=unique_keys)
            except RepeatedKeyError as error:
                wrong = RowError("invalid_json", f"{name}: {error}")
                return replace(row, fields=None, error=wrong)
            except (ValueError, RecursionError):
                continue
    return replace(row, fields=fields)


def fields_of_column(column: str, mapping: Mapping[str, str]) -> set[str]:
    """The fields that a table's column becomes; ``mapping``: field to column."""
    return {field for field, source in mapping.items() if source == column} or {column}


def map_fields(row: InputRow, mapping: Mapping[str, str]) -> InputRow:
    """Rename columns to fields according to ``mapping`` (field to column)."""
    if row.fields is None or not mapping:
        return row
    missing = [column for column in mapping.values() if column not in row.fields]
    if missing:
        have = ", ".join(list(row.fields)[:10]) or "nothing"
        error = RowError(
            "missing_field",
            f"no {missing[0]!r} here (an empty cell counts as absent); the row has {have}",
        )
        return replace(row, fields=None, error=error)
    taken = set(mapping.values())
    fields = {name: value for name, value in row.fields.items() if name not in taken}
    fields |= {name: row.fields[column] for name, column in mapping.items()}
    return replace(row, fields=fields)


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def encode_json(value: Any) -> bytes:
    """One line of strict JSON in UTF-8; only lone surrogates are escaped."""
    text = _ENCODER.encode(value)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False).encode("ascii")


def error_row(row: InputRow, error: RowError) -> bytes:
    """The line of the errors file: position, error, and the original row."""
    head = encode_json(
        {
            "line": row.line,
            "row": row.index,
            "id": row.row_id,
            "error": {"kind": error.kind, "message": str(error)},
        }
    )
    return head[:-1] + b", " + _untouched(row) + b"}"


def _untouched(row: InputRow) -> bytes:
    if row.fields is not None or (row.error and row.error.kind == "missing_field"):
        return b'"input": ' + row.raw.strip()
    if row.error and row.error.kind == "line_too_long":
        start = row.raw[:_SHOWN_CHARACTERS].decode("utf-8", "replace")
        return b'"input_start": ' + encode_json(start)
    try:
        return b'"input_text": ' + encode_json(row.raw.decode("utf-8"))
    except UnicodeDecodeError:
        return b'"input_base64": "' + base64.b64encode(row.raw) + b'"'
