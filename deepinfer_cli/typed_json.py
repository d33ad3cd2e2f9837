"""Converts frozen dataclasses to JSON and back, and makes their JSON Schema.

Fields may be str, int, float, bool, ``object`` (any JSON), a dataclass, ``X | None``,
``Mapping[str, X]`` and ``tuple[X, ...]`` or ``Sequence[X]``; ``metadata["help"]`` describes them.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")

_TOO_LARGE = 1e30  # in reports; a seed has 64 bits
_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean"}


class WrongForm(ValueError):
    """The data does not fit the type; the message says where and why."""


def to_json(value: Any) -> Any:
    """``value`` in JSON's types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    return value


def from_json(kind: type[T], data: Any) -> T:
    """A ``kind`` from the result of ``to_json``.  Unknown keys, of later versions, are ignored.

    Raises: WrongForm.
    """
    made: T = _read(kind, data, "")
    return made


def json_schema(kind: type[Any], title: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of ``to_json(kind(...))``; inner dataclasses are in ``$defs``."""
    definitions: dict[str, Any] = {}
    top = _object_schema(kind, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **top,
        "$defs": dict(sorted(definitions.items())),
    }


@cache
def definitions(kind: type[Any], place: str = "") -> dict[str, str]:
    """The descriptions of all fields, by dotted path."""
    found = {}
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        name = f"{place}.{field.name}" if place else field.name
        if text := field.metadata.get("help"):
            found[name] = text
        if dataclasses.is_dataclass(inner := hints[field.name]) and isinstance(inner, type):
            found |= definitions(inner, name)
    return found


def _read(kind: Any, data: Any, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is object:
        return data
    if origin is types.UnionType:
        return None if data is None else _read(_present(arguments), data, where)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _read_object(kind, data, where)
    if origin is Mapping:
        _expect(isinstance(data, dict), where, "an object")
        return {key: _read(arguments[1], item, f"{where}.{key}") for key, item in data.items()}
    if origin in (tuple, Sequence):
        _expect(isinstance(data, list), where, "a list")
        items = enumerate(data)
        return tuple(_read(arguments[0], item, f"{where}[{place}]") for place, item in items)
    accepted = (int, float) if kind is float else kind
    ok = isinstance(data, accepted) and (kind is bool or not isinstance(data, bool))
    _expect(ok, where, f"a JSON {_NAMES[kind]}")
    if not isinstance(data, str):
        _expect(abs(data) < _TOO_LARGE, where, f"less than {_TOO_LARGE:g}")
    return data


def _read_object(kind: Any, data: Any, where: str) -> Any:
    _expect(isinstance(data, dict), where, "an object")
    hints = _types(kind)
    values = {}
    for field in dataclasses.fields(kind):
        place = f"{where}.{field.name}" if where else field.name
        if field.name in data:
            values[field.name] = _read(hints[field.name], data[field.name], place)
        else:
            has_default = (
                field.default is not dataclasses.MISSING
                or field.default_factory is not dataclasses.MISSING
            )
            _expect(has_default, place, "to be there")
    return kind(**values)


@cache
def _types(kind: type[Any]) -> dict[str, Any]:
    """The resolved types of the fields; cached, since a report has hundreds of objects."""
    return get_type_hints(kind)


def _expect(ok: bool, where: str, what: str) -> None:
    if not ok:
        raise WrongForm(f"{where or 'the top'}: expected {what}")


def _present(arguments: Sequence[Any]) -> Any:
    return next(item for item in arguments if item is not type(None))


def _object_schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = _types(kind)
    properties = {}
    for field in dataclasses.fields(kind):
        schema = _schema(hints[field.name], definitions)
        if text := field.metadata.get("help"):
            schema = {"description": text, **schema}
        properties[field.name] = schema
    return {"type": "object", "properties": properties, "required": list(properties)}


def _schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is object:
        return {}
    if origin is types.UnionType:
        return {"anyOf": [_schema(_present(arguments), definitions), {"type": "null"}]}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = {}  # in case it contains itself
            definitions[kind.__name__] = _object_schema(kind, definitions)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    if origin in (tuple, Sequence):
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    return {"type": _NAMES[kind]}
