"""Whether a constraint can be enforced, found out before there is a model or a vocabulary."""

from __future__ import annotations

from .grammar import to_grammar
from .limits import ConstraintLimits
from .spec import TOOL_KINDS, ConstraintSpec
from .trial import Trial


def check_compiles(spec: ConstraintSpec) -> None:
    """Try ``spec``, which is not of tool calls, as its compilation will: in a process of its own.

    Raises: RowError that says what is wrong and where.
    """
    assert spec.kind not in TOOL_KINDS  # which need the marker of a vocabulary
    trial = Trial(ConstraintLimits())
    try:
        trial.check(spec.kind, to_grammar(spec, marker="", marker_id=0))
    finally:
        trial.release()
