"""The Avro processors: the schema registry, and Confluent's wire format."""

from __future__ import annotations

import base64
import json
import math
import time
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeVar

import fastavro
from fastavro.types import Schema as Parsed
from pydantic import Field, model_validator
from typing_extensions import override

from conduit_dagster.config.findings import refuse
from conduit_dagster.field_reference import Reference
from conduit_dagster.lazy_property import lazy_property
from conduit_dagster.processors.common.conversions import decode_base64
from conduit_dagster.processors.common.setting_kinds import ConduitSettings, DataField
from conduit_dagster.record import Data
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.schemas.confluent_registry import Access, ConfluentRegistry
from conduit_dagster.schemas.schema_registry import (
    FolderRegistry,
    RefusedSchemaError,
    Schema,
    SchemaRegistry,
    UnknownSchemaError,
)
from conduit_dagster.sdk import ProcessError, Processor, ProcessorContext, Record
from conduit_dagster.sdk.processor import StepError

MAGIC: Final = b"\x00"
ID_BYTES: Final = 4
_FOLDER: Final = ".conduit/schemas"
_AGAIN: Final = 1.0
"""Seconds after which a registry is asked again for a schema that it did not have, or did not take."""
_MOST_REFUSED: Final = 1_000
_FoundT = TypeVar("_FoundT")
_FILES: Final = ("tls.ca.cert", "tls.client.cert", "tls.client.key")


class AvroSettings(ConduitSettings):
    """Settings of both processors."""

    field: DataField = ".Payload.After"
    """The field: a payload, the key, or a field in one of them."""
    url: str = Field(
        default="",
        description="The schema registry: the `http` or `https` URL of one that speaks Confluent's API, or the URL of "
        f"a folder that all tasks can open. Without it, the folder `{_FOLDER}` of the project (ours).",
    )
    username: str = Field("", alias="auth.basic.username")
    """The login for the registry."""
    password: str = Field("", alias="auth.basic.password")
    """Its password."""
    ca: str = Field("", alias="tls.ca.cert")
    """A file with the certificates that the registry's certificate is verified against; a relative path starts at the
    project.
    """
    certificate: str = Field("", alias="tls.client.cert")
    """A file with the client's certificate."""
    key: str = Field("", alias="tls.client.key")
    """A file with its key."""

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if bool(self.username) != bool(self.password):
            raise refuse("a username and a password belong together", fix="give both, or none")
        if bool(self.certificate) != bool(self.key):
            raise refuse("tls.client.cert and tls.client.key belong together", fix="give both, or none")
        return self


class AvroProcessor(Processor):
    """A processor with a schema registry."""

    shares_records: ClassVar[bool] = True

    def __init__(self, settings: AvroSettings, context: ProcessorContext) -> None:
        super().__init__(settings, context)
        self._common = settings
        self.field = Reference.parse(settings.field)
        self._refused: dict[Hashable, tuple[float, str, str]] = {}

    @classmethod
    @override
    def travelling(cls, settings: Mapping[str, str], root: str) -> dict[str, str]:
        url = settings.get("url") or _FOLDER
        files = {name: str(Path(root, settings[name])) for name in _FILES if settings.get(name)}
        return {**settings, "url": url if "://" in url else str(Path(root, url)), **files}

    @property
    @override
    def reads_key(self) -> bool:
        return self.field.root == "key"

    @lazy_property
    def registry(self) -> SchemaRegistry:
        """Registry of the schemas, queried only once per schema, through :meth:`remembering`."""
        settings = self._common
        url = settings.url or _FOLDER
        if not url.startswith(("http://", "https://")):
            return FolderRegistry(url)
        access = Access(settings.username, settings.password, settings.ca, settings.certificate, settings.key)
        return ConfluentRegistry(url, access)

    def remembering(self, key: Hashable, ask: Callable[[], _FoundT]) -> _FoundT:
        """Return ``ask()``. For a second, its :class:`ProcessError` is raised again in its place.

        All records of a block may need a schema that the registry does not have.
        """
        since, message, code = self._refused.get(key, (-math.inf, "", ""))
        if time.monotonic() - since < _AGAIN:
            raise ProcessError(message, code=code)
        try:
            return ask()
        except ProcessError as error:
            if len(self._refused) >= _MOST_REFUSED:
                self._refused.clear()
            self._refused[key] = (time.monotonic(), str(error), error.code)
            raise

    def value(self, record: Record) -> Any:
        """Return the field's value. Raises ``FieldError``."""
        self.field.create_way(record)
        return self.field.get(record)

    def put(self, record: Record, value: Data) -> None:
        """Set the field to a document or bytes; bytes within a document become Base64 text."""
        if isinstance(value, bytes) and not self.field.holds_data:
            self.field.set(record, base64.b64encode(value).decode())
        else:
            self.field.set(record, value)


def asking(ask: Callable[..., Schema], *arguments: Any) -> Schema:
    """Return the registry's answer.

    Raises :class:`ProcessError` for an unknown schema and for one that the registry does not take; any other request
    that it refuses, such as one with a wrong login, stops the step.
    """
    try:
        return ask(*arguments)
    except UnknownSchemaError as error:
        raise ProcessError(str(error), code="avro.unknown_schema") from None
    except RefusedSchemaError as error:
        raise ProcessError(str(error), code="avro.refused_schema") from None
    except FatalError as error:
        raise StepError(error.message, code=error.code, place=error.place, fix=error.fix) from None


def parsed(text: str) -> Parsed:
    """Parse a schema. Raises :class:`ProcessError` if the text is invalid."""
    try:
        return fastavro.parse_schema(json.loads(text))
    except Exception as error:  # an invalid schema may fail in any way
        raise ProcessError(f"the schema can't be used: {error}", code="avro.bad_schema") from error


def contains_itself(schema: Any, around: frozenset[str] = frozenset()) -> bool:
    """Return whether a parsed schema refers to a record within itself: its data may be nested to any depth.

    ``around``: the names of the records that contain it.
    """
    if isinstance(schema, list):
        return any(contains_itself(branch, around) for branch in schema)
    if not isinstance(schema, dict):
        return schema in around
    if "fields" in schema:
        inside = around | {schema["name"]}
        return any(contains_itself(field["type"], inside) for field in schema["fields"])
    return any(contains_itself(schema[key], around) for key in ("type", "items", "values") if key in schema)


def raw_bytes(value: Any) -> bytes | None:
    """Return the bytes of a field: raw data, or Base64 text within a document; None for any other value."""
    if isinstance(value, bytes):
        return value
    try:
        return decode_base64(value) if isinstance(value, str) else None
    except ValueError:
        return None
