"""Shared code of ``avro.encode`` and ``avro.decode``: the registry and Confluent's wire format."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import fastavro
from fastavro.types import Schema as Parsed
from pydantic import Field as Describe
from pydantic import model_validator
from typing_extensions import override

from conduit_dagster.config.findings import refuse
from conduit_dagster.field_reference import Reference
from conduit_dagster.lazy_property import lazy_property
from conduit_dagster.processors.common.base64_text import decode_base64
from conduit_dagster.processors.common.conduit_settings import ConduitSettings
from conduit_dagster.processors.common.setting_kinds import DataField
from conduit_dagster.record import Data
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.schemas.confluent_registry import Access, ConfluentRegistry
from conduit_dagster.schemas.schema_registry import (
    FolderRegistry,
    Schema,
    SchemaRegistry,
    UnknownSchemaError,
)
from conduit_dagster.sdk import ProcessError, Processor, ProcessorContext, Record
from conduit_dagster.sdk.processor import StepError

MAGIC: Final = b"\x00"
ID_BYTES: Final = 4
_FOLDER: Final = ".conduit/schemas"
_FILES: Final = ("tls.ca.cert", "tls.client.cert", "tls.client.key")


class AvroSettings(ConduitSettings):
    """Settings of both processors."""

    field: DataField = Describe(
        default=".Payload.After", description="The field: a payload, the key, or a field in one of them."
    )
    url: str = Describe(
        default="",
        description="The schema registry: the `http` or `https` URL of one that speaks Confluent's API, or the URL of "
        f"a folder that all tasks can open. Without it, the folder `{_FOLDER}` of the project (ours).",
    )
    username: str = Describe(default="", alias="auth.basic.username", description="The login for the registry.")
    password: str = Describe(default="", alias="auth.basic.password", description="Its password.")
    ca: str = Describe(
        default="",
        alias="tls.ca.cert",
        description="A file with the certificates that the registry's certificate is verified against; a relative path "
        "starts at the project.",
    )
    certificate: str = Describe(
        default="", alias="tls.client.cert", description="A file with the client's certificate."
    )
    key: str = Describe(default="", alias="tls.client.key", description="A file with its key.")

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
        self._parsed: dict[int, Parsed] = {}

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
        """Registry of the schemas, queried only once per schema."""
        settings = self._common
        url = settings.url or _FOLDER
        if not url.startswith(("http://", "https://")):
            return FolderRegistry(url)
        access = Access(settings.username, settings.password, settings.ca, settings.certificate, settings.key)
        return ConfluentRegistry(url, access)

    def schema(self, number: int) -> Parsed:
        """Return the schema with this ID. Raises :class:`ProcessError` if it does not exist."""
        if number not in self._parsed:
            self._parsed[number] = parsed(asking(self.registry.by_id, number).text)
        return self._parsed[number]

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

    Raises :class:`ProcessError` for an unknown schema; a request that the registry refuses stops the step.
    """
    try:
        return ask(*arguments)
    except UnknownSchemaError as error:
        raise ProcessError(str(error), code="avro.unknown_schema") from None
    except FatalError as error:
        raise StepError(error.message, code=error.code, place=error.place, fix=error.fix) from None


def parsed(text: str) -> Parsed:
    """Parse a schema. Raises :class:`ProcessError` if the text is invalid."""
    try:
        return fastavro.parse_schema(json.loads(text))
    except Exception as error:  # an invalid schema may fail in any way
        raise ProcessError(f"the schema can't be used: {error}", code="avro.bad_schema") from error


def raw_bytes(value: Any) -> bytes | None:
    """Return the bytes of a field: raw data, or Base64 text within a document; None for any other value."""
    if isinstance(value, bytes):
        return value
    try:
        return decode_base64(value) if isinstance(value, str) else None
    except ValueError:
        return None
