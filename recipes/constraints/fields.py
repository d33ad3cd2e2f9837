"""The fields of a row that state a constraint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from deepinfer.errors import RowError

from .spec import ConstraintSpec, any_json_object, grammar, json_schema, regex

CONSTRAINT_FIELDS = ("regex", "grammar", "response_format")


def field_constraint(
    fields: Mapping[str, Any], names: Iterable[str] = CONSTRAINT_FIELDS
) -> ConstraintSpec | None:
    """The constraint stated by the fields ``names`` of a row; None if there is none.

    Raises: RowError if a field is invalid, or if there is more than one constraint.
    """
    given = {name: _READERS[name](fields[name]) for name in names if fields.get(name) is not None}
    specs = {name: spec for name, spec in given.items() if spec is not None}
    if len(specs) > 1:
        raise RowError(
            "invalid_value", f"{' and '.join(specs)}: only one constraint is allowed; keep one"
        )
    return next(iter(specs.values()), None)


def schema_format(spec: ConstraintSpec) -> dict[str, Any]:
    """The ``response_format`` field for a constraint of kind ``json_schema``."""
    schema = {"name": "answer", "schema": json.loads(spec.text)}
    return {"type": "json_schema", "json_schema": schema}


def _response_format(wanted: Any) -> ConstraintSpec | None:
    """The field as in the official API; the name of the type alone is accepted if it suffices."""
    fields = wanted if isinstance(wanted, Mapping) else {"type": wanted}
    match fields.get("type"):
        case None | "text":
            return None
        case "json_object":
            return any_json_object()
        case "json_schema":
            inner = fields.get("json_schema")
            if not isinstance(inner, Mapping) or "schema" not in inner:
                raise RowError("missing_field", "response_format: json_schema.schema is missing")
            return json_schema(inner["schema"])
        case "regex":
            if "regex" not in fields:
                raise RowError("missing_field", "response_format: regex is missing")
            return regex(fields["regex"])
        case kind:
            raise RowError(
                "invalid_value",
                "response_format: expected json_object, json_schema, regex or text, "
                f"got {str(kind)[:40]!r}",
            )


_READERS: Mapping[str, Callable[[Any], ConstraintSpec | None]] = {
    "regex": regex,
    "grammar": grammar,
    "response_format": _response_format,
}
