"""References to the fields of a record, in Conduit's syntax, such as ``.Payload.After.address.city``.

Creation and refusal of fields match Conduit's own output.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from conduit_dagster.record import OPERATIONS, Data, Document, Record
from conduit_dagster.reference_syntax import ReferenceSyntaxError, Root, read_reference, spell

__all__ = [
    "FieldError",
    "FieldExistsError",
    "Reference",
    "ReferenceSyntaxError",
    "UnresolvedReferenceError",
    "UnsuitableValueError",
    "kind_of",
]

_KINDS: Final[dict[type, str]] = {
    bytes: "raw data",
    str: "text",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "a document",
}


class FieldError(Exception):
    """Failure to reach or change a field of one record; becomes that record's nack."""

    code = "field.error"


class UnresolvedReferenceError(FieldError):
    """Raised for a path that leads through a value that is not a document."""

    code = "field.unresolved"


class UnsuitableValueError(FieldError):
    """Raised for a value that the field can't hold, or for a field that can't be changed at all."""

    code = "field.unsuitable"


class FieldExistsError(FieldError):
    """Raised for a new name that another field already has."""

    code = "field.exists"


@dataclass(frozen=True)
class Reference(ABC):
    """A field of a record.

    Reading never changes the record. Changing a field creates the documents on its path.
    """

    text: str
    root: Root
    path: tuple[str, ...]

    @property
    def holds_data(self) -> bool:
        """Whether it is a whole payload or key, which may be bytes; a field inside holds JSON values only."""
        return self.root in ("after", "before", "key") and not self.path

    @staticmethod
    @lru_cache(maxsize=4096)
    def parse(text: str) -> Reference:
        """Parse a reference. Raises :class:`ReferenceSyntaxError`."""
        root, path = read_reference(text)
        return _CLASSES[root](text, root, path)

    @abstractmethod
    def get(self, record: Record) -> Any:
        """Return the field's value, ``None`` if it is missing. Raises :class:`UnresolvedReferenceError`."""

    def set(self, record: Record, value: Any) -> None:
        """Set the field to ``value``, which the record owns from then on. Raises :class:`FieldError`."""
        raise self._fixed("set")

    def delete(self, record: Record) -> None:
        """Remove the field; a missing one is not an error. Raises :class:`FieldError`."""
        raise self._fixed("removed")

    def rename(self, record: Record, name: str) -> None:
        """Rename the field; a missing one becomes a null. Raises :class:`FieldError`."""
        raise self._fixed("renamed")

    def create_way(self, record: Record) -> None:  # noqa: B027  # a whole part of a record has no path to create
        """Create the missing documents on the field's path, as Conduit does for every field reference."""

    def _check_free(self, name: str, fields: Mapping[str, Any]) -> None:
        if name in fields:
            raise FieldExistsError(f"{self.text} cannot be renamed: a field {name!r} exists")

    def _fixed(self, change: str) -> UnsuitableValueError:
        return UnsuitableValueError(f"{self.text} cannot be {change}")


class _DataReference(Reference):
    """A field of the key or of a payload, or the whole key or payload."""

    def get(self, record: Record) -> Any:
        value = getattr(record, self.root)
        for name in self.path:
            if value is None:
                return None
            if not isinstance(value, dict):
                raise self._blocked(record)
            value = value.get(name)
        return value

    def set(self, record: Record, value: Any) -> None:
        if self.path:
            self.parent(record)[self.path[-1]] = value
        else:
            setattr(record, self.root, self._data(value))

    def delete(self, record: Record) -> None:
        if self.path:
            self.parent(record).pop(self.path[-1], None)
        else:
            setattr(record, self.root, None)

    def rename(self, record: Record, name: str) -> None:
        if not self.path:
            raise self._fixed("renamed")
        parent, old = self.parent(record), self.path[-1]
        self._check_free(name, parent)
        parent[name] = parent.get(old)
        parent.pop(old, None)

    def create_way(self, record: Record) -> None:
        if self.path:
            self.parent(record)

    def parent(self, record: Record) -> Document:
        """Return the document that holds the field. Missing or null values on the path become documents.

        Those inside the payload are replaced by copies: an author's code may have put one into many records.
        """
        document = getattr(record, self.root)
        if document is None:
            setattr(record, self.root, document := Document())
        for name in self.path[:-1]:
            if not isinstance(document, dict):
                break
            inner = document.get(name)
            if inner is None or type(inner) is dict:
                inner = document[name] = {} if inner is None else inner.copy()
            document = inner
        if not isinstance(document, dict):
            raise self._blocked(record)
        return document

    def _blocked(self, record: Record) -> UnresolvedReferenceError:
        depth, value = 0, getattr(record, self.root)
        while isinstance(value, dict):
            value = value[self.path[depth]]
            depth += 1
        place = spell(self.root, self.path[:depth])
        advice = "put json.decode before it" if isinstance(value, bytes | str) else "name the field itself"
        return UnresolvedReferenceError(f"{place} does not contain structured data but {kind_of(value)}: {advice}")

    def _data(self, value: Any) -> Data:
        if value is None or isinstance(value, dict | bytes):
            return value
        if isinstance(value, str):
            return value.encode()
        raise UnsuitableValueError(f"{self.text} takes a document, text or null, not {kind_of(value)}")


class _MetadataReference(Reference):
    """One entry of the metadata, or all of it. Changes replace the dict, because other records share it."""

    def get(self, record: Record) -> Any:
        return record.metadata.get(self.path[0]) if self.path else record.metadata

    def set(self, record: Record, value: Any) -> None:
        if value is None:
            self.delete(record)
        elif self.path:
            record.metadata = {**record.metadata, self.path[0]: self._text(value)}
        elif isinstance(value, dict):
            record.metadata = {str(k): self._text(v) for k, v in value.items()}
        else:
            raise UnsuitableValueError(f"{self.text} takes a document of texts, not {kind_of(value)}")

    def delete(self, record: Record) -> None:
        gone = self.path or record.metadata
        record.metadata = {k: v for k, v in record.metadata.items() if k not in gone}

    def rename(self, record: Record, name: str) -> None:
        if not self.path:
            raise self._fixed("renamed")
        self._check_free(name, record.metadata)
        renamed = {**record.metadata, name: record.metadata.get(self.path[0], "")}
        renamed.pop(self.path[0], None)
        record.metadata = renamed

    def _text(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        raise UnsuitableValueError(f"{self.text} takes text, not {kind_of(value)}: write str(...) around it")


class _OperationReference(Reference):
    def get(self, record: Record) -> Any:
        return record.operation

    def set(self, record: Record, value: Any) -> None:
        if value not in OPERATIONS:
            raise UnsuitableValueError(f"operation {value!r} is unknown: one of {', '.join(OPERATIONS)}")
        record.operation = value


class _PositionReference(Reference):
    def get(self, record: Record) -> Any:
        return str(record.position)


_CLASSES: Final[dict[Root, type[Reference]]] = {
    "after": _DataReference,
    "before": _DataReference,
    "key": _DataReference,
    "metadata": _MetadataReference,
    "operation": _OperationReference,
    "position": _PositionReference,
}


def kind_of(value: Any) -> str:
    """Return the kind of a value, as text for messages."""
    return "null" if value is None else _KINDS.get(type(value), type(value).__name__)
