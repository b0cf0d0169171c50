"""A case: a configuration of a model and what the explorer has to find in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from model.explore import Model, Result, explore


@dataclass(frozen=True)
class Case:
    """One line of a run of the checker."""

    group: str
    """before: the protocol as it was; rules: with all its rules; mutants: with one rule missing."""
    name: str
    model: Model[Any]
    expected: str = ""
    """How the violation begins; empty where none may be found."""
    is_short: bool = True
    """Part of the short form, which has to end within a minute on one core."""

    def run(self, max_states: int = 2_000_000, max_seconds: float = 300.0) -> Result:
        """Explore the model."""
        return explore(self.model, max_states, max_seconds)

    def problem(self, result: Result) -> str:
        """Return what is not as expected; empty when all is well."""
        if not self.expected:
            return result.violation or ("" if result.complete else "not explored to the end")
        if not result.violation:
            return f"expected a violation: {self.expected}"
        return "" if result.violation.startswith(self.expected) else f"expected another violation: {self.expected}"
