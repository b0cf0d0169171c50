"""Records of one table as changes of the rows with their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from conduit_dagster.change_marks import unchanged_fields
from conduit_dagster.connectors.postgres.column_mapping import ColumnLayout, document, key_document
from conduit_dagster.connectors.postgres.settings import PostgresDestinationSettings
from conduit_dagster.connectors.postgres.sqlstates import CellError
from conduit_dagster.connectors.postgres.staged_rows import Change
from conduit_dagster.record import Data, Document, Record


def with_key(document: Document, key: Data) -> Document:
    """Add the key's fields to the document: as in Conduit, they become columns, before equal fields of the payload."""
    named = key_document(key)
    return {**document, **named} if named else document


def with_keys(documents: list[Document], keys: Sequence[Data]) -> list[Document]:
    """Add the fields of the keys to their documents, as :func:`with_key` does."""
    return documents if set(map(type, keys)) == {type(None)} else list(map(with_key, documents, keys))


class KeyedRow(NamedTuple):
    """A record as a change of the row with its key."""

    change: Change
    values: Document
    key: tuple[str, ...]
    old: Document
    """Key of the row before the change, by column; empty if the key does not change."""
    lacks: tuple[str, ...]
    """Columns that a partial change omits."""


class KeyedRows:
    """Converter of the records of one table to changes by key."""

    def __init__(self, settings: PostgresDestinationSettings, layout: ColumnLayout) -> None:
        self._settings = settings
        self._layout = layout
        self._key = settings.key_columns

    def row(self, record: Record) -> KeyedRow | None:
        """Return the change by key of a record; None for a record that is a plain insert. Raises ``CellError`` for an
        update or delete without a key."""
        operation = record.operation
        after = None if operation == "delete" else document(record.after, self._settings.raw_column)
        key = self.key_of(record, after)
        if key is None:
            if operation in ("create", "snapshot"):
                return None
            wanted = ", ".join(self._key) or "a document in .Key, or the setting key"
            raise CellError("no_key", f"{operation} needs a key: {wanted}")
        names = tuple(key)
        if after is None:
            return KeyedRow("d", key, names, {}, ())
        whole = self._layout.gathered([with_key(after, record.key)])[0]
        values = {**self._layout.by_column(whole), **key}
        if operation != "update":
            is_create = operation == "create" and self._settings.on_conflict != "update"
            return KeyedRow("c" if is_create else "u", values, names, {}, ())
        return self._updated(record, values, key)

    def key_of(self, record: Record, after: Document | None) -> Document | None:
        """Return the key by column; None if the record has no complete key."""
        named = key_document(record.key)
        if not self._key:
            key = self._layout.by_column(named) if named else None
        else:
            parts = [part for part in (named, after, record.before) if isinstance(part, dict)]
            key = {name: _first(parts, self._layout.field_of(name)) for name in self._key}
        if key is None or None in key.values():
            return None
        for name in key:
            self._layout.named(name)
        return key

    def _updated(self, record: Record, values: Document, key: Document) -> KeyedRow:
        old = self._old_key(record.before, key)
        changes: tuple[Change, Change] = ("m", "q") if old else ("u", "p")
        lacks = self._left_out(record, values)
        return KeyedRow(changes[bool(lacks)], values, tuple(key), old, lacks)

    def _old_key(self, before: Data, key: Document) -> Document:
        """Return the previous key of the row, by column; empty if the record has none or it is unchanged."""
        if not isinstance(before, dict):
            return {}
        found = {name: before.get(self._layout.field_of(name)) for name in key}
        old = {name: key[name] if value is None else value for name, value in found.items()}
        return {} if old == key else old

    def _left_out(self, record: Record, values: Document) -> tuple[str, ...]:
        """Return the table's columns that the record omits because they did not change."""
        unchanged = unchanged_fields(record)
        if not unchanged:
            return ()
        renames = self._settings.renames
        columns = {field: renames.get(field, field) for field in unchanged}
        lacks = {field: name for field, name in columns.items() if name not in values}
        placed = tuple(name for field, name in lacks.items() if self._layout.takes(field))
        if len(placed) < len(lacks) and self._settings.unmapped == "json":
            # the JSON object of unmapped fields is replaced as a whole, so an omitted field would be lost
            fix = "add columns for them, or set REPLICA IDENTITY FULL on the source's table"
            message = f"the update left out unchanged values that have no column: {', '.join(lacks)}; {fix}"
            raise CellError("unchanged_unmapped", message)
        return placed


def _first(parts: list[Document], field: str) -> Any:
    return next((part[field] for part in parts if field in part), None)
