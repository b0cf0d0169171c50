"""Settings of the built-in processors: base class and types.

Values are validated when the file is checked, and keep the text as written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, model_validator

from conduit_dagster.config.findings import refuse
from conduit_dagster.expressions import Clock, EvaluationError, ExpressionError, compile_expression, compile_template
from conduit_dagster.field_reference import Reference, ReferenceSyntaxError
from conduit_dagster.sdk import ProcessorSettings


class ConduitSettings(ProcessorSettings):
    """Settings parsed as in Conduit: blanks around keys and values are trimmed, an empty value means the default.

    Settings with a pattern as name, such as ``headers.*``, may be empty.
    """

    @model_validator(mode="before")
    @classmethod
    def _sanitized(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        trimmed = {key.strip(): value.strip() if isinstance(value, str) else value for key, value in given.items()}
        declared = {field.alias or name for name, field in cls.model_fields.items()}
        return {key: value for key, value in trimmed.items() if value != "" or key not in declared}


_LIST_ITEM = re.compile(r"""(?:\["(?:[^"\\]|\\.)*"\]|\['(?:[^'\\]|\\.)*'\]|:\s*"(?:[^"\\]|\\.)*"|[^,])+""")


def reference(text: str, start: int = 0) -> Reference:
    """Parse the reference ``text``, which begins at column ``start`` of its setting. Raises a finding."""
    try:
        return Reference.parse(text)
    except ReferenceSyntaxError as error:
        raise refuse(error.message, code="reference", fix=error.fix, column=start + error.column) from None


def failure(error: Exception) -> str:
    """Return the nack message for a record on which an expression or template fails."""
    return str(error) if isinstance(error, EvaluationError) else f"{type(error).__name__}: {error}"


def list_items(text: str) -> Iterator[tuple[int, str]]:
    """Yield the start and text of each item of a comma-separated list; a comma in ``["…"]`` does not separate."""
    for match in _LIST_ITEM.finditer(text):
        item = match[0]
        if item.strip():
            yield match.start() + len(item) - len(item.lstrip()), item.strip()


def _field(text: str) -> str:
    return reference(text.strip()).text


def _changeable(text: str) -> str:
    text = _field(text)
    if reference(text).root == "position":
        raise refuse(
            ".Position cannot be changed",
            code="reference",
            fix="a position belongs to its source: take a field",
            column=0,
        )
    return text


def _data_field(text: str) -> str:
    text = _field(text)
    if reference(text).root not in ("after", "before", "key"):
        fix = "refer to .Key, .Payload.Before or .Payload.After, or to a field in one of them"
        raise refuse(f"{text} holds no data", code="reference", fix=fix, column=0)
    return text


def _template(text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise refuse("the text holds half a character (a lone surrogate)", fix="write the whole character")
    try:
        compile_template(text)
    except ExpressionError as error:
        raise refuse(error.message, code="expression", fix=error.fix, column=error.column) from None
    return text


def _expression(text: str) -> str:
    try:
        compile_expression(text, Clock())
    except ExpressionError as error:
        raise refuse(error.message, code="expression", fix=error.fix, column=error.column) from None
    return text


Field = Annotated[str, AfterValidator(_field)]
"""A reference to any part of a record."""
ChangeableField = Annotated[str, AfterValidator(_changeable)]
"""A reference to any part of a record except the position."""
DataField = Annotated[str, AfterValidator(_data_field)]
"""A reference into the key or a payload."""
Template = Annotated[str, AfterValidator(_template)]
"""A literal, or a Go template."""
Expression = Annotated[str, AfterValidator(_expression)]
"""A Python expression over the record."""
