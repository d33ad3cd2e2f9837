"""Checks that a constraint can be enforced, before a model is loaded."""

from __future__ import annotations

from .grammar import to_grammar
from .limits import ConstraintLimits
from .spec import TOOL_KINDS, ConstraintSpec
from .trial import Trial


def check_compiles(spec: ConstraintSpec) -> None:
    """Compile ``spec`` in a child process, as a run does; not for constraints of tool calls.

    Raises: RowError that says what is wrong and where.
    """
    assert spec.kind not in TOOL_KINDS  # these need a vocabulary's marker token
    trial = Trial(ConstraintLimits())
    try:
        trial.check(spec.kind, to_grammar(spec, marker="", marker_id=0))
    finally:
        trial.release()
