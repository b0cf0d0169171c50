"""Mapping of document fields to columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from conduit_dagster.connectors.postgres.catalog import Column, Table, TableLookup
from conduit_dagster.connectors.postgres.settings import NAME_BYTES, PostgresDestinationSettings, TableName
from conduit_dagster.connectors.postgres.sqlstates import CellError
from conduit_dagster.lazy_records import payloads_of
from conduit_dagster.record import Data, Document, Record

_decode = msgspec.json.Decoder(dict[str, Any]).decode


def documents(records: list[Record], raw_column: str) -> list[Document]:
    """Return the payloads as documents. Raises ``CellError`` for a payload that is not one."""
    found = payloads_of(records)
    if set(map(type, found)) == {dict}:
        return found  # pyright: ignore[reportReturnType]  # just checked
    return [document(data, raw_column) for data in found]


def document(data: Data, raw_column: str) -> Document:
    """Return a payload as a document. Raw data becomes the value of ``raw_column``; without that setting it is parsed
    as JSON, as in Conduit."""
    if isinstance(data, dict):
        return data
    if data is None:
        raise CellError("no_payload", "the record has no payload to make a row of")
    if raw_column:
        return {raw_column: data}
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        message = "the raw payload is not a JSON object: decode it, or name a column for it with the setting raw-column"
        raise CellError("raw_payload", message) from None


def key_document(key: Data) -> Document | None:
    """Return the key if it is a document or JSON text of one; None for any other key."""
    if isinstance(key, dict):
        return key or None
    if not key or not key.lstrip().startswith(b"{"):
        return None
    try:
        return _decode(key) or None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


_SHAPES = 10_000
"""Maximum number of cached shapes: records may have arbitrary fields."""


class DocumentShape(NamedTuple):
    """Fields of a document with their columns, and fields without a column."""

    fields: tuple[str, ...]
    columns: tuple[Column, ...]
    unmapped: tuple[str, ...]
    is_plain: bool
    """Whether each field has a column of its own name."""


class ColumnLayout:
    """Column layout of one table, for one writer."""

    def __init__(self, settings: PostgresDestinationSettings, lookup: TableLookup, name: TableName) -> None:
        self._settings = settings
        self._lookup = lookup
        self._renames = settings.renames
        self._fields = {column: field for field, column in self._renames.items()}
        self._shapes: dict[tuple[str, ...], DocumentShape] = {}
        self._is_fresh = False
        self.table: Table = lookup.get(name)

    def shape(self, fields: tuple[str, ...]) -> DocumentShape:
        """Return the shape of documents with these fields. Raises ``CellError`` for fields without a column, unless
        ``unmapped`` allows them."""
        found = self._shapes.get(fields)
        if found is None:
            if len(self._shapes) >= _SHAPES:
                self._shapes.clear()
            found = self._shapes[fields] = self._new_shape(fields)
        return found

    def renew(self) -> bool:
        """Refresh the table from the database, at most once, and return whether it changed.

        No record may be refused because of a stale cached table.
        """
        if self._is_fresh:
            return False
        before, self._is_fresh = self.table, True
        self.table = self._lookup.get(before.name, fresh=True)
        self._shapes.clear()
        return self.table != before

    def _new_shape(self, fields: tuple[str, ...]) -> DocumentShape:
        pairs = [(field, self._column(field)) for field in fields]
        found = [(field, column) for field, column in pairs if column is not None]
        unmapped = tuple(field for field, column in pairs if column is None)
        if unmapped and self._settings.unmapped == "error":
            raise self._no_column(unmapped)
        columns = tuple(column for _, column in found)
        if len({column.name for column in columns}) < len(columns):
            raise CellError("two_fields", "two fields go into one column: see the setting mapping")
        if not columns and not unmapped:
            raise CellError("no_fields", "the record has no field to make a row of")
        is_plain = all(field == column.name for field, column in found) and not unmapped
        return DocumentShape(tuple(field for field, _ in found), columns, unmapped, is_plain)

    def _column(self, field: str) -> Column | None:
        name = self._renames.get(field, field)
        if not self.table.exists:
            return _open_column(name)
        column = self.table.columns.get(name)
        if column is None and self.renew():
            return self._column(field)
        return None if column is None or column.generated else column

    def takes(self, field: str) -> bool:
        """Return whether the field has a column of its own."""
        return self._column(field) is not None

    def _no_column(self, fields: Sequence[str]) -> CellError:
        columns = self.table.columns
        names = ", ".join(
            f"{field} (a generated one)" if self._renames.get(field, field) in columns else field
            for field in fields[:5]
        )
        return CellError("unmapped", f"the table {self.table.name} has no column for {names}: see mapping, unmapped")

    def gathered(self, documents: list[Document]) -> list[Document]:
        """Return the documents; with ``unmapped: json``, their unmapped fields are collected as one object in its
        column."""
        if self._settings.unmapped != "json" or not self.table.exists:
            return documents
        return [self._gather(document) for document in documents]

    def _gather(self, document: Document) -> Document:
        shape = self.shape(tuple(document))
        if not shape.unmapped:
            return document
        if self._settings.unmapped_column in (column.name for column in shape.columns):
            raise CellError("two_fields", "unmapped fields and a field of the record go into one column: see mapping")
        made = {field: document[field] for field in shape.fields}
        made[self._settings.unmapped_column] = {field: document[field] for field in shape.unmapped}
        if self._column(self._settings.unmapped_column) is None:
            raise self._no_column([self._settings.unmapped_column])
        return made

    def by_column(self, document: Document) -> Document:
        """Return the document's values by column instead of field; the document itself where both are the same."""
        shape = self.shape(tuple(document))
        if shape.is_plain:
            return document
        columns = zip(shape.columns, shape.fields, strict=True)
        return {column.name: document[field] for column, field in columns}

    def field_of(self, column: str) -> str:
        """Return the field that goes into a column."""
        return self._fields.get(column, column)

    def named(self, name: str) -> Column:
        """Return the column of that name. Raises ``CellError`` if there is none."""
        column = _open_column(name) if not self.table.exists else self.table.columns.get(name)
        if column is None:
            raise self._no_column([name])
        return column


_SYSTEM = frozenset({"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"})


def _open_column(name: str) -> Column:
    if why := _misfit(name):
        raise CellError("column_name", f"no column can be called {name[:NAME_BYTES]!r}: {why}; see the setting mapping")
    return Column(name, "open", "text", known=False)


def _misfit(name: str) -> str:
    """Return why no column can have this name; empty if one can."""
    if name in _SYSTEM:
        return "each table has a system column of that name"
    if not name or "\0" in name:
        return "it holds a NUL" if name else "it is empty"
    size = len(name.encode())
    return f"it is {size} bytes long, and {NAME_BYTES} are the most" if size > NAME_BYTES else ""
