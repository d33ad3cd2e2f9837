"""Checks that every keyword of a JSON Schema is enforced; others are refused by name.

``checked_schema`` returns the schema without annotations, ready to compile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NoReturn

import jsonschema.exceptions
import jsonschema.validators

from deepinfer.errors import RowError, nearest

from .endless import is_endless
from .schema_places import WITH_ONE_SCHEMA, WITH_SCHEMA_LIST, WITH_SCHEMA_MAP

MAX_DEPTH = 64

_WITH_PLAIN_VALUE = frozenset(
    {"type", "enum", "const", "pattern", "format", "minLength", "maxLength"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"required", "minProperties", "maxProperties", "minItems", "maxItems", "$ref", "$schema"}
)
_COUNTS = frozenset(
    {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
)
_MOST_INTEGER = 2**53
ENFORCED = WITH_ONE_SCHEMA | WITH_SCHEMA_LIST | WITH_SCHEMA_MAP | _WITH_PLAIN_VALUE

# They do not affect which values are valid.  ``discriminator`` only repeats its ``oneOf``.
ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "example", "deprecated", "readOnly"}
    | {"writeOnly", "$comment", "discriminator"}
)
_KNOWN_BUT_REFUSED = frozenset(
    {"not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"}
    | {"propertyNames", "dependentRequired", "dependentSchemas", "dependencies"}
    | {"unevaluatedItems", "unevaluatedProperties", "contentEncoding", "contentMediaType"}
    | {"contentSchema", "$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef"}
)
_DIALECT = re.compile(
    r"https?://json-schema\.org/(draft-0[467]|draft/2019-09|draft/2020-12)/schema#?"
)
FORMATS = frozenset(
    {"date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"}
)


def checked_schema(schema: Any) -> Any:
    """The schema with annotations removed; the order of keys is kept, since answers follow it.

    Raises: RowError ``unsupported_keyword`` with the keyword and its place, ``invalid_schema``, or
    ``constraint_too_complex`` when nested too deeply.
    """
    _check_depth(schema, 0)
    _check_dialect(schema)
    cleaned = _clean(schema, "#")
    _check_valid(schema)
    if is_endless(cleaned):
        raise RowError(
            "invalid_schema",
            "json_schema: no finite value matches, as a required part refers back to the whole; "
            "make it optional, or allow null beside it",
        )
    return cleaned


def _check_depth(value: Any, depth: int) -> None:
    if depth > 2 * MAX_DEPTH:  # a schema level is at most two JSON levels
        raise RowError("constraint_too_complex", f"json_schema: nested over {MAX_DEPTH} deep")
    if isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            _check_depth(inner, depth + 1)


def _check_dialect(schema: Any) -> None:
    dialect = schema.get("$schema") if isinstance(schema, Mapping) else None
    if dialect is not None and not (isinstance(dialect, str) and _DIALECT.fullmatch(dialect)):
        raise RowError(
            "unsupported_keyword",
            f"json_schema #/$schema: {dialect!r:.80} is not supported; "
            "use draft 2020-12, 2019-09, 7, 6 or 4",
        )


def _check_valid(schema: Any) -> None:
    draft = jsonschema.validators.validator_for(
        schema, default=jsonschema.validators.Draft202012Validator
    )
    try:
        draft.check_schema(schema)
    except jsonschema.exceptions.SchemaError as error:
        place = "/".join(["#", *map(str, error.absolute_path)])
        if (error.validator, error.validator_value) == ("format", "regex"):
            raise RowError("invalid_schema", f"json_schema {place}: {_fault(error)}") from error
        raise RowError("invalid_schema", f"json_schema {place}: {error.message[:300]}") from error


def _fault(error: jsonschema.exceptions.SchemaError) -> str:
    """What is wrong with a pattern, and where."""
    return f"the pattern {error.instance!r:.80} cannot be used: {error.cause or error.message}"


def _clean(schema: Any, place: str) -> Any:
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, Mapping):
        raise RowError(
            "invalid_schema", f"json_schema {place}: expected a schema, got {schema!r:.80}"
        )
    cleaned: dict[str, Any] = {}
    for keyword, value in schema.items():
        if _is_without_effect(keyword, value, place):
            continue
        if keyword not in ENFORCED or (keyword == "$schema" and place != "#"):
            _refuse(keyword, place)
        cleaned[keyword] = _clean_value(keyword, value, f"{place}/{keyword}")
    _check_references(cleaned, place)
    _check_counts(cleaned, place)
    return cleaned


def _clean_value(keyword: str, value: Any, place: str) -> Any:
    if keyword in WITH_SCHEMA_MAP and isinstance(value, Mapping):
        return {name: _clean(inner, f"{place}/{name}") for name, inner in value.items()}
    if keyword in WITH_SCHEMA_LIST and isinstance(value, list):
        return [_clean(inner, f"{place}/{index}") for index, inner in enumerate(value)]
    if keyword in WITH_ONE_SCHEMA:
        return _clean(value, place)
    if keyword == "format" and value not in FORMATS:
        raise RowError(
            "unsupported_keyword",
            f"json_schema {place}: format {value!r:.60} cannot be enforced; "
            f"the formats are {', '.join(sorted(FORMATS))}",
        )
    _check_numbers(value, place)
    if keyword in _COUNTS and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _check_numbers(value: Any, place: str) -> None:
    """Refuse numbers that are not 64-bit floats: masks would use the nearest one that is."""
    if isinstance(value, int) and abs(value) > _MOST_INTEGER and not _is_exact(value):
        raise RowError(
            "unsupported_keyword",
            f"json_schema {place}: the number {value!r:.40} cannot be enforced exactly; "
            "write it as a string, or take one that a 64-bit float holds",
        )
    if isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            _check_numbers(inner, place)


def _is_exact(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


def _is_without_effect(keyword: str, value: Any, place: str) -> bool:
    # The root's own name matters only to other documents; an inner $id would change the base URI.
    is_own_name = keyword == "$id" and place == "#"
    is_switched_off = (keyword, value) in (("uniqueItems", False), ("unevaluatedProperties", True))
    is_remark = keyword in ANNOTATIONS or keyword.startswith("x-")
    return is_own_name or is_switched_off or is_remark


def _check_references(schema: Mapping[str, Any], place: str) -> None:
    target = schema.get("$ref", "#")
    if not isinstance(target, str) or not (target == "#" or target.startswith("#/")):
        raise RowError(
            "unsupported_keyword",
            f"json_schema {place}/$ref: {target!r:.80} is outside of this schema; "
            "copy it under $defs and refer to it as #/$defs/NAME",
        )


def _check_counts(schema: Mapping[str, Any], place: str) -> None:
    """A model may repeat a name, which then counts once, so their number cannot be enforced."""
    at_least = schema.get("minProperties", 0)
    is_open = schema.get("additionalProperties", True) is not False or bool(
        schema.get("patternProperties")
    )
    if isinstance(at_least, int) and at_least > 1 and is_open:
        raise RowError(
            "unsupported_keyword",
            f"json_schema {place}/minProperties: more than 1 is enforced only with "
            "additionalProperties: false and no patternProperties",
        )


def _refuse(keyword: str, place: str) -> NoReturn:
    is_known = keyword in _KNOWN_BUT_REFUSED | ENFORCED
    hint = "" if is_known else nearest(keyword, sorted(ENFORCED | ANNOTATIONS))
    raise RowError(
        "unsupported_keyword",
        f"json_schema {place}: the keyword {keyword!r:.60} cannot be enforced{hint}",
    )
