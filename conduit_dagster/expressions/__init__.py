"""Conditions and values: Python expressions and Go templates, compiled to functions of one record.

They come from pipeline files and run in the workers, so they can reach the record and nothing else, and
neither block nor grow without bound.
"""

from __future__ import annotations

from conduit_dagster.expressions.compiled import Clock, Compiled, EvaluationError, ExpressionError, reads_key
from conduit_dagster.expressions.gotemplate.compile import template_condition, template_text
from conduit_dagster.expressions.gotemplate.values import format_go
from conduit_dagster.expressions.python.compile import python_condition, python_value

__all__ = [
    "Clock",
    "Compiled",
    "EvaluationError",
    "ExpressionError",
    "compile_condition",
    "compile_expression",
    "compile_template",
    "format_go",
    "reads_key",
]


def compile_condition(text: str, clock: Clock) -> Compiled:
    """A function that gives a bool: a Go template where the text holds ``{{``, else a Python expression.

    Raises :class:`ExpressionError`. What it returns raises for a record that the condition does not fit.
    """
    return template_condition(text) if "{{" in text else python_condition(text, clock)


def compile_expression(text: str, clock: Clock) -> Compiled:
    """A function that gives the value of a Python expression, as JSON can hold it.

    Raises :class:`ExpressionError`. The value may be a part of the record itself, not a copy.
    """
    return python_value(text, clock)


def compile_template(text: str) -> Compiled:
    """A function that gives the text of a Go template; text without ``{{`` is its own result."""
    return template_text(text)
