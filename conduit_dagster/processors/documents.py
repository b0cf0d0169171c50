"""What Transporter's functions have in common: they look at the document in ``.Payload.After``, at its first level."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from conduit_dagster.processors.base import ProcessError
from conduit_dagster.processors.settings import refused
from conduit_dagster.record import Document, Record


def names_in(text: str) -> list[str]:
    """The names in a comma-separated list."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _some(text: str) -> str:
    if not names_in(text):
        raise refused("value", "the list of fields is empty", "write their names: name,count")
    return text


FieldNames = Annotated[str, AfterValidator(_some)]


def document_of(record: Record) -> Document | None:
    """The record's document; None where it has no payload. Raises :class:`ProcessError` for raw data."""
    after = record.after
    if isinstance(after, bytes):
        message = ".Payload.After does not contain structured data but raw data: put json.decode before"
        raise ProcessError(message, code="field.unresolved")
    return after
