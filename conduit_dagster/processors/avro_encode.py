"""``avro.encode``: encode a document as Avro, with its schema in a registry."""

from __future__ import annotations

import io
import json
from collections.abc import Hashable
from typing import Any, Final, Literal, Self, cast

import fastavro
from fastavro.types import Schema as Parsed
from fastavro.validation import ValidationError, validate
from pydantic import Field, model_validator
from typing_extensions import override

from conduit_dagster.config.findings import refuse
from conduit_dagster.field_reference import kind_of
from conduit_dagster.processors.common.avro import ID_BYTES, MAGIC, AvroProcessor, AvroSettings, asking, parsed
from conduit_dagster.processors.common.avro_lossless import Fits, lossless
from conduit_dagster.processors.common.avro_texts import form_of, with_texts
from conduit_dagster.processors.common.unwrapping import document_in
from conduit_dagster.record import Document
from conduit_dagster.schemas.schema_registry import NoSchemaError, inferred
from conduit_dagster.sdk import Example, ProcessError, ProcessorContext, Record

_INVALID: Final = "avro.encode.invalid"


class AvroEncodeSettings(AvroSettings):
    """Settings of ``avro.encode``."""

    strategy: Literal["preRegistered", "autoRegister"] = Field(alias="schema.strategy")
    """`preRegistered`: the schema is in the registry. `autoRegister`: it is read off each record and registered, for
    development.
    """
    subject: str = Field("", alias="schema.preRegistered.subject")
    """The schema's subject."""
    version: int | None = Field(None, ge=1, alias="schema.preRegistered.version")
    """The schema's version."""
    auto_subject: str = Field("", alias="schema.autoRegister.subject")
    """The subject to register schemas under."""

    @model_validator(mode="after")
    def _of_the_strategy(self) -> Self:
        if self.strategy == "autoRegister" and not self.auto_subject:
            raise refuse("schema.autoRegister.subject is missing", fix="name the subject to register under")
        if self.strategy == "preRegistered" and not (self.subject and self.version):
            message = "schema.preRegistered.subject or schema.preRegistered.version is missing"
            raise refuse(message, fix="name both")
        return self


class AvroEncode(AvroProcessor):
    """Encode a document as Avro: a zero byte, the schema's ID in four bytes, and the data.

    A payload or the key becomes raw data, a field within a document Base64 text. A document that does not fit the
    schema is nacked, and so is any other value; null stays null. As in Conduit, fields that the schema does not have
    are left out. An integer that `float` or `double` can't hold exactly is nacked, and so is a text that is no UUID
    where the schema wants one; a fraction is rounded to `float`. Of several records in a union a document is the one
    that has most of its fields, and it is nacked if it does not fit that one.
    With `autoRegister` fields are ordered by name, integers are `long`, and a null is a nullable string: records of one
    shape may give different schemas. A record whose schema the registry does not take, such as one that is incompatible
    with the subject's earlier ones, is nacked.

    Text fits a time, a decimal or bytes in the form that ``avro.decode`` gives: ``2024-01-02``, ``03:04:05.006``,
    ``2024-01-02T03:04:05.006Z`` (local ones without a zone), ``12.34``, Base64. A text with more digits than the type
    has is nacked. Next to a string or an enum in a union, text is one of these.

    Without an external registry the schemas are files of the project. An unreachable registry is an outage: the step is
    repeated.
    """

    name = "avro.encode"
    Settings = AvroEncodeSettings
    settings: AvroEncodeSettings
    examples = (
        Example(
            "A payload that is not a document",
            {"schema.strategy": "autoRegister", "schema.autoRegister.subject": "orders"},
            Record("1", {}, b"hello"),
            _INVALID,
        ),
    )

    def __init__(self, settings: AvroEncodeSettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        self._known: dict[Hashable, tuple[int, Parsed, Fits]] = {}

    @override
    def process(self, record: Record) -> Record:
        if self.value(record) is None:
            return record
        document = document_in(record, self.field, _INVALID)
        number, schema, is_lossless = self._schema_of(document)
        data = io.BytesIO()
        data.write(MAGIC + number.to_bytes(ID_BYTES, "big"))
        if not is_lossless(document):
            raise self._misfit(number, _of_another_type(document, schema) or _inexact(document, is_lossless))
        try:
            fastavro.schemaless_writer(data, schema, document)
        except Exception as error:  # fastavro raises many types of errors for data that does not fit
            raise self._misfit(number, _of_another_type(document, schema) or str(error)) from error
        self.put(record, data.getvalue())
        return record

    def _misfit(self, number: int, why: str) -> ProcessError:
        return ProcessError(f"{self.settings.field} does not fit schema {number}: {why}", code=_INVALID)

    def _schema_of(self, document: Document) -> tuple[int, Parsed, Fits]:
        if self.settings.strategy == "preRegistered":
            return self._asked_once("")
        shape = _flat_shape(document)
        if shape is None:
            return self._asked_once(self._inferred(document))
        if shape not in self._known:
            self._known[shape] = self._asked_once(self._inferred(document))
        return self._known[shape]

    def _asked_once(self, text: str) -> tuple[int, Parsed, Fits]:
        if text not in self._known:
            self._known[text] = self.remembering(text, lambda: self._asked(text))
        return self._known[text]

    def _asked(self, text: str) -> tuple[int, Parsed, Fits]:
        settings, registry = self.settings, self.registry
        if text:
            found = asking(registry.register, settings.auto_subject, text)
        else:
            found = asking(registry.by_subject, settings.subject, settings.version or 1)
        schema = with_texts(parsed(found.text))
        return found.id, fastavro.parse_schema(schema), lossless(schema)

    def _inferred(self, document: Document) -> str:
        try:
            schema: dict[str, Any] = inferred(document)
        except NoSchemaError as error:
            raise ProcessError(f"{self.settings.field}: {error}", code=_INVALID) from None
        return json.dumps(schema, separators=(",", ":"))


_FLAT: Final = frozenset({str, int, float, bool, type(None)})


def _flat_shape(document: Document) -> Hashable | None:
    """Return what determines the inferred schema of a document without lists and documents; None for any other."""
    types = tuple(map(type, document.values()))
    return (tuple(document), types) if _FLAT.issuperset(types) else None


def _of_another_type(document: Document, schema: Any) -> str:
    """Return which value is of another type than its schema's; empty if fastavro finds none."""
    try:
        validate(document, schema)
    except ValidationError as invalid:
        errors = cast("list[Any]", invalid.errors)
        place, value = errors[0].field, errors[0].datum
        types = " or ".join(form_of(error.schema) for error in errors if error.field == place)
        return f"{place.removeprefix(schema['name'] + '.')} is {kind_of(value)}, not {types}"
    except Exception:  # noqa: BLE001  # the writer's own error tells more
        return ""
    return ""


def _inexact(document: Document, is_lossless: Fits) -> str:
    name = next((name for name, value in document.items() if not is_lossless({name: value})), "the document")
    rules = "it is beyond its type's range or digits, no UUID, or none of the records of a union"
    return f"a value in {name} would be changed: {rules}"
