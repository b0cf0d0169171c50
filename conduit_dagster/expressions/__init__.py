"""Conditions and values: Python expressions and Go templates, compiled to functions of one record.

They come from pipeline files and run in the workers, so they can access nothing but the record, and neither block nor
grow without bound.
"""

from __future__ import annotations

from conduit_dagster.expressions.compiled import (
    Clock,
    Compiled,
    EvaluationError,
    ExpressionError,
    expression_fields,
    reads_key,
    template_fields,
)
from conduit_dagster.expressions.gotemplate.go_values import BOOLEANS, format_go
from conduit_dagster.expressions.gotemplate.template_compiler import template_condition, template_text
from conduit_dagster.expressions.python.expression_compiler import python_condition, python_value

__all__ = [
    "BOOLEANS",
    "Clock",
    "Compiled",
    "EvaluationError",
    "ExpressionError",
    "compile_condition",
    "compile_expression",
    "compile_template",
    "expression_fields",
    "format_go",
    "reads_key",
    "template_fields",
]


def compile_condition(text: str, clock: Clock) -> Compiled:
    """Compile a condition to a function that returns a bool.

    The text is a Go template if it contains ``{{`` or is one of Go's booleans (``true``), otherwise a Python
    expression. Raises :class:`ExpressionError`. The compiled function raises for a record that the condition does not
    fit.
    """
    return template_condition(text) if "{{" in text or text in BOOLEANS else python_condition(text, clock)


def compile_expression(text: str, clock: Clock) -> Compiled:
    """Compile a Python expression to a function that returns its value in a form that JSON can hold.

    Raises :class:`ExpressionError`. The value may be a part of the record itself, not a copy.
    """
    return python_value(text, clock)


def compile_template(text: str) -> Compiled:
    """Compile a Go template to a function that returns its output; text without ``{{`` is returned unchanged."""
    return template_text(text)
