"""The Avro processors: the schema registry, Confluent's wire format, and values that fastavro would change.

fastavro writes some values differently: 5.5 as the long 5, 2**60 + 1 rounded, any text as a UUID.
"""

from __future__ import annotations

import base64
import json
import math
import time
import uuid
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
from conduit_dagster.whole_numbers import is_exact

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


Fits = Callable[[Any], bool]
_MOST_FLOAT: Final = 3.4028235677973366e38
_MOST_DOUBLE: Final = 1 << 1023


def lossless(schema: Any, names: dict[str, Fits]) -> Fits:
    """Return a check that a value is written unchanged. Values that fastavro itself refuses may pass.

    ``names`` collects the checks of named types, which a schema may refer to.
    """
    if isinstance(schema, list):
        return _union(schema, names)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return lossless(kind, names)
    if kind == "record":
        return _record(schema, names)
    if kind == "array":
        return _list(lossless(schema["items"], names))
    if kind == "map":
        return _map(lossless(schema["values"], names))
    if kind == "string" and isinstance(schema, dict) and schema.get("logicalType") == "uuid":
        return _uuid
    return _SIMPLE.get(kind) or (lambda value: names.get(kind, _any)(value))


def _union(branches: list[Any], names: dict[str, Fits]) -> Fits:
    """Return a check by the branch that fastavro takes; it refuses by itself what fits no branch."""
    checks = [(_kind(branch), lossless(branch, names)) for branch in branches]
    numbers = [(_TAKES[kind], check) for kind, check in checks if kind in _TAKES]
    lists = [check for kind, check in checks if kind == "array"]
    # a kind in ``names`` is a record that was defined before
    documents = [check for kind, check in checks if kind in ("record", "map") or kind in names]
    texts = [check for kind, check in checks if kind in _TEXTS] if any(check is _uuid for _, check in checks) else []
    if not numbers and not lists and not documents and not texts:
        return _any
    of_type = {dict: documents, list: lists, str: texts}

    def fits(value: Any) -> bool:
        if type(value) in (int, float):
            return next((check(value) for takes, check in numbers if takes(value)), True)
        inner = of_type.get(type(value))
        return not inner or any(check(value) for check in inner)

    return fits


def _kind(schema: Any) -> Any:
    return _kind(schema["type"]) if isinstance(schema, dict) else schema


class _TypeCheck(frozenset[type]):
    """Check of the value's type alone. Records and lists test set membership directly, which is faster."""

    def __call__(self, value: Any) -> bool:
        return type(value) in self


def _record(schema: Any, names: dict[str, Fits]) -> Fits:
    types: list[tuple[str, _TypeCheck]] = []
    checks: list[tuple[str, Fits]] = []

    def fits(value: Any) -> bool:
        if type(value) is not dict:
            return True
        for name, accepted in types:
            if name in value and type(value[name]) not in accepted:
                return False
        for name, check in checks:  # noqa: SIM110  # all() is slower, and this runs for every record
            if name in value and not check(value[name]):
                return False
        return True

    names[schema["name"]] = fits  # before its fields, which may refer to it
    for field in schema["fields"]:
        check = lossless(field["type"], names)
        if isinstance(check, _TypeCheck):
            types.append((field["name"], check))
        elif check is not _any:
            checks.append((field["name"], check))
    return fits


def _list(item: Fits) -> Fits:
    # fastavro would write text as the list of its characters, and an empty document as an empty list
    if item is _any:
        return _TypeCheck({list})
    if isinstance(item, _TypeCheck):
        return lambda value: type(value) is list and item.issuperset(map(type, value))
    return lambda value: type(value) is list and all(map(item, value))


def _map(inner: Fits) -> Fits:
    if inner is _any:
        return _TypeCheck({dict})
    return lambda value: type(value) is dict and all(map(inner, value.values()))


def _any(_: Any) -> bool:
    return True


def _uuid(value: Any) -> bool:
    if type(value) is not str:
        return False
    try:
        uuid.UUID(value)
    except ValueError:
        return False
    return True


def _int(value: Any) -> bool:
    # fastavro writes more than 32 bits, but only for a long
    return -(1 << 31) <= value < 1 << 31 if type(value) is int else type(value) is str


def _float(value: Any) -> bool:
    if type(value) not in (int, float) or not abs(value) < _MOST_FLOAT:
        return False
    return type(value) is float or is_exact(value, 24)


def _double(value: Any) -> bool:
    if type(value) is float:
        return True
    if type(value) is not int:
        return False
    return abs(value) < _MOST_DOUBLE and is_exact(value, 53)


_TAKES: Final[dict[Any, Fits]] = {
    "int": lambda value: type(value) is int and -(1 << 31) <= value < 1 << 31,
    "long": lambda value: type(value) is int and -(1 << 63) <= value < 1 << 63,
    "float": _any,
    "double": _any,
}
"""Which numbers fastavro writes by a branch of a union; it takes the first branch that fits."""
_TEXTS: Final = frozenset({"string", "bytes", "enum", "fixed", "int", "long"})
"""Types that fastavro may write a text as."""
_SIMPLE: Final[dict[str, Fits]] = {
    "int": _int,
    "long": _TypeCheck({int, str}),  # text may be a date or time, which fastavro parses; it refuses any other
    "boolean": _TypeCheck({bool}),
    "float": _float,
    "double": _double,
    "null": _TypeCheck({type(None)}),
    **dict.fromkeys(("string", "bytes", "enum", "fixed"), _any),
}
