"""Shared code of Transporter's functions: they read only the top level of the document in ``.Payload.After``."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, ConfigDict
from typing_extensions import override

from conduit_dagster.config.findings import refuse
from conduit_dagster.config.scalars import comma_separated
from conduit_dagster.processors.common.in_place import InPlaceProcessor
from conduit_dagster.record import Document, Record
from conduit_dagster.sdk import ProcessError, ProcessorSettings


def _some(text: str) -> str:
    if not comma_separated(text):
        raise refuse("the list of fields is empty", fix="write their names: name,count")
    return text


FieldNames = Annotated[str, AfterValidator(_some)]


def document_of(record: Record) -> Document | None:
    """Return the record's document; None if it has no payload. Raises :class:`ProcessError` for raw data."""
    after = record.after
    if isinstance(after, bytes):
        message = ".Payload.After does not contain structured data but raw data: put json.decode before it"
        raise ProcessError(message, code="field.unresolved")
    return after


class DocumentProcessor(InPlaceProcessor):
    """A processor that changes the record's document; a record without a payload passes unchanged."""

    keyless: ClassVar[bool] = True

    @override
    def change(self, record: Record) -> None:
        document = document_of(record)
        if document is not None:
            record.after = self.changed(document)

    @abstractmethod
    def changed(self, document: Document) -> Document:
        """Return the document, changed in place or replaced."""


class MapSettings(ProcessorSettings):
    """Settings whose keys are ``PREFIX.NAME``, one per name."""

    model_config = ConfigDict(extra="allow")
    prefix: ClassVar[str]

    @override
    def model_post_init(self, context: Any, /) -> None:
        if not self.names:
            raise refuse(f"there is no setting {self.prefix}NAME", fix=f"{self.prefix}old: new")

    @property
    def names(self) -> dict[str, str]:
        """Old names to new names, in the order of the file."""
        return self.below(self.prefix)
