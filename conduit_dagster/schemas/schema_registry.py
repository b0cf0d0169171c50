"""Schema registries: their interface, the one in a folder that every task can open, and schemas of documents."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from conduit_dagster import storage
from conduit_dagster.recovery.errors import TransientError

_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_NULLABLE_TEXT: Final = ["null", "string"]
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class NoSchemaError(Exception):
    """Raised for a document that Avro has no schema for."""


def inferred(document: dict[str, Any]) -> dict[str, Any]:
    """Return a record schema with the fields sorted by name, so that the same fields give the same schema.

    Integers are ``long``, other numbers ``double``; a null becomes a nullable string, since its type is unknown.
    Documents in a list share one schema: fields missing in some of them are nullable.

    Raises :class:`NoSchemaError` for a name that Avro does not allow, or an integer beyond 64 bits.
    """
    return _record([document], "record")


def _record(documents: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    names = sorted({key for document in documents for key in document})
    return {"type": "record", "name": name, "fields": [_field(documents, name, key) for key in names]}


def _field(documents: Sequence[dict[str, Any]], path: str, name: str) -> dict[str, Any]:
    if not _NAME.fullmatch(name):
        raise NoSchemaError(f"Avro takes no field named {name!r}: letters, digits and _")
    values = [document[name] for document in documents if name in document]
    kind, missing = _type(values, f"{path}_{name}"), len(values) < len(documents)
    if missing and not (isinstance(kind, list) and "null" in kind):
        kind = ["null", *kind] if isinstance(kind, list) else ["null", kind]
    return {"name": name, "type": kind, **({"default": None} if missing else {})}


def _type(values: Sequence[Any], path: str) -> Any:
    """Return the common type of all values: a union if they differ."""
    kinds: list[Any] = []
    documents = [value for value in values if isinstance(value, dict)]
    lists = [value for value in values if isinstance(value, list)]
    if documents:
        kinds.append(_record(documents, path))
    if lists:
        items = [item for one in lists for item in one]
        kinds.append({"type": "array", "items": _type(items, path) if items else _NULLABLE_TEXT})
    for value in values:
        if not isinstance(value, dict | list) and (kind := _simple(value)) not in kinds:
            kinds.append(kind)
    if "double" in kinds and "long" in kinds:
        kinds.remove("long")
    if kinds == ["null"]:
        return _NULLABLE_TEXT
    kinds.sort(key=lambda kind: kind != "null")
    return kinds[0] if len(kinds) == 1 else kinds


def _simple(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        if not _LEAST <= value <= _MOST:
            raise NoSchemaError(f"Avro takes no number beyond 64 bits: {value}")
        return "long"
    return "double" if isinstance(value, float) else "string"


class Schema(NamedTuple):
    """A registered schema."""

    id: int
    """Number in the registry: the same text has the same number."""
    text: str


class UnknownSchemaError(Exception):
    """Raised if the registry does not have the schema."""


class RefusedSchemaError(Exception):
    """Raised if the registry does not take a schema: it is invalid, or incompatible with the subject's earlier ones."""


class SchemaRegistry(Protocol):
    """Store of schemas by id and subject. Each method raises ``TransientError`` if the registry is unreachable."""

    def by_id(self, number: int) -> Schema:
        """Return the schema with this number. Raises :class:`UnknownSchemaError`."""
        ...

    def by_subject(self, subject: str, version: int) -> Schema:
        """Return a version (counted from 1) of a subject's schema. Raises :class:`UnknownSchemaError`."""
        ...

    def register(self, subject: str, text: str) -> Schema:
        """Return the schema under this subject, registering it as the newest version if it is new.

        Raises :class:`RefusedSchemaError`.
        """
        ...


class FolderRegistry:
    """Registry in a folder. Safe for concurrent tasks on a disk, and on an object store with put-if-absent."""

    def __init__(self, url: str) -> None:
        self._url = url

    def by_id(self, number: int) -> Schema:
        """Return the schema with this number. Raises :class:`UnknownSchemaError`."""
        text = self._read("ids", f"{number:010d}")
        if text is None:
            raise UnknownSchemaError(f"the registry has no schema {number}")
        return Schema(number, text)

    def by_subject(self, subject: str, version: int) -> Schema:
        """Return a version of a subject's schema. Raises :class:`UnknownSchemaError`."""
        number = self._read(*_subject(subject), f"{version:010d}")
        if number is None:
            raise UnknownSchemaError(f"the registry has no version {version} of {subject}")
        return self.by_id(number)

    def register(self, subject: str, text: str) -> Schema:
        """Return the schema under this subject, registering it as the newest version if it is new."""
        schema = Schema(self._number(text), text)
        folder = _subject(subject)
        for version in self._numbers(*folder):
            if self._read(*folder, f"{version:010d}") == schema.id:
                return schema
        self._append(schema.id, *folder)
        return schema

    def _number(self, text: str) -> int:
        name = hashlib.sha256(text.encode()).hexdigest()
        if (known := self._read("texts", name)) is not None:
            return known
        number = self._append(text, "ids")
        # if two tasks register a new schema at once, one number wins; the other is never used
        return number if self._make(number, "texts", name) else self._read("texts", name)

    # -- files --------------------------------------------------------------------------------------------------

    def _append(self, value: Any, *folder: str) -> int:
        number = max(self._numbers(*folder), default=0) + 1
        while not self._make(value, *folder, f"{number:010d}"):
            number += 1
        return number

    def _numbers(self, *folder: str) -> list[int]:
        try:
            names = storage.files(storage.join(self._url, *folder))
        except OSError as error:
            raise _unreachable(self._url, error) from error
        return sorted(int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdecimal())

    def _read(self, *names: str) -> Any:
        try:
            with storage.open_read(f"{storage.join(self._url, *names)}.json") as file:
                return msgspec.json.decode(file.read())
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise _unreachable(self._url, error) from error

    def _make(self, value: Any, *names: str) -> bool:
        """Create the file atomically with its content; return False if it exists."""
        url, data = f"{storage.join(self._url, *names)}.json", msgspec.json.encode(value)
        try:
            storage.make_folder(url.rpartition("/")[0])
            return storage.put_new(url, data)
        except OSError as error:
            raise _unreachable(self._url, error) from error


def _subject(name: str) -> tuple[str, str]:
    return "subjects", storage.safe_name(name)


def _unreachable(url: str, error: Exception) -> TransientError:
    return TransientError(
        f"the schema registry can't be used: {error}", code="schemas.unreachable", place=url, fix="check the folder"
    )
