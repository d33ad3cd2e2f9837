"""Resource limits of one constraint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintLimits:
    """Limits of one constraint; a row whose constraint exceeds one is refused.

    The fuel values limit the work inside llguidance; time and memory of the trial limit what fuel
    does not (for example, intersections of many patterns).
    """

    compile_timeout_s: float = 5.0
    trial_memory_bytes: int = 2 * 2**30
    lexer_fuel: int = 1_000_000
    step_lexer_fuel: int = 200_000
    step_items: int = 50_000
    items_in_row: int = 2_000
    lexer_states: int = 100_000
    grammar_size: int = 200_000

    def for_llguidance(self) -> dict[str, Any]:
        """The fuel values as arguments of ``llguidance.LLParserLimits``."""
        return {
            "initial_lexer_fuel": self.lexer_fuel,
            "step_lexer_fuel": self.step_lexer_fuel,
            "step_max_items": self.step_items,
            "max_items_in_row": self.items_in_row,
            "max_lexer_states": self.lexer_states,
            "max_grammar_size": self.grammar_size,
            "verbose_errors": False,
        }
