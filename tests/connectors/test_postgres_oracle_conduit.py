"""Conduit's own connector reads the same tables: it tells the same rows and changes as the postgres source.

Compared are tables with one key column and types that its plugin protocol carries as they are; what else differs is
translated by the functions here, which say why. Its binary is built from Go and is not part of this project:
``go build github.com/conduitio/conduit-connector-postgres/cmd/connector``, version 0.14.2.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from lab.conduit_connector import (
    PLAIN_RECORDS,
    VARIABLE,
    ConduitConnector,
    collection_of,
    document_of,
    operation_of,
    postgres_connector,
)
from lab.postgres_history import PostgresHistory, Table
from lab.postgres_reading import PostgresReading, drained
from lab.random_values import LITERALS, large, words

from conduit_dagster.record import Record

pytestmark = pytest.mark.slow

_SETTINGS = {**PLAIN_RECORDS, "sdk.batch.size": "1000", "sdk.batch.delay": "50ms"}
_KINDS = {
    "t": "text",
    "n": "integer",
    "s": "smallint",
    "f": "double precision",
    "b": "boolean",
    "v": "varchar(40)",
}


class Told(NamedTuple):
    """What both report of a record."""

    operation: str
    collection: str
    key: Any
    before: Any
    after: Any


def tables() -> list[Table]:
    """With every identity that a table can have."""
    literals = {name: LITERALS[kind] for name, kind in _KINDS.items()}
    columns = ", ".join(f"{name} {kind}" for name, kind in _KINDS.items())
    big = {"t": words, "n": LITERALS["integer"], "big": large}
    return [
        Table("public.basic", f"(id int PRIMARY KEY, {columns})", literals, is_changed=False),
        Table(
            "public.whole", f"(id int PRIMARY KEY, {columns})", literals, "ALTER TABLE {0} REPLICA IDENTITY FULL",
            is_changed=False,
        ),
        Table(
            "public.large", "(id int PRIMARY KEY, t text, n int, big text)", big,
            "ALTER TABLE {0} ALTER big SET STORAGE EXTERNAL", is_changed=False,
        ),
    ]  # fmt: skip


def numbers_as_doubles(document: Any) -> Any:
    """All numbers of its protocol are doubles: those above 2^53 are rounded there, and exact here."""
    if document is None:
        return None
    return {
        name: float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
        for name, value in document.items()
    }


def not_finite_as_text(document: Any) -> Any:
    """NaN and infinities are numbers in its protocol; ours are text, because JSON has no such numbers."""
    if document is None:
        return None
    return {
        name: {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(repr(value), value)
        for name, value in document.items()
    }


def only_the_key(document: Any, is_row: bool) -> Any:
    """Without ``REPLICA IDENTITY FULL`` the server sends only the old key; it fills the other columns with null."""
    return document if document is None or is_row else {"id": document["id"]}


def untouched_as_null(record: Record, theirs: Any) -> Any:
    """It tells null for a large value that an update did not touch, as if it were gone.

    Ours leaves it out, or takes it from the row before where that came whole.
    """
    if record.after is None or theirs is None:
        return record.after
    left_out = [name for name in record.metadata.get("postgres.unchanged_toast", "").split(",") if name]
    before: Any = record.before or {}
    assert isinstance(record.after, dict)
    after = {**dict.fromkeys(left_out), **record.after}
    return {
        name: None if name == "big" and theirs[name] is None and before.get(name) == value else value
        for name, value in after.items()
    }


def without_truncates(records: list[Record]) -> list[Record]:
    """It leaves them out."""
    return [record for record in records if "postgres.truncate" not in record.metadata]


def theirs_of(record: Any, is_row: bool) -> Told:
    """Their record, in short."""
    before = only_the_key(not_finite_as_text(document_of(record.payload.before)), is_row)
    after = not_finite_as_text(document_of(record.payload.after))
    return Told(operation_of(record), collection_of(record), document_of(record.key), before, after)


def ours_of(record: Record, theirs: Told) -> Told:
    """Our record, in short, as it is beside theirs."""
    key, before, after = map(numbers_as_doubles, (record.key, record.before, untouched_as_null(record, theirs.after)))
    return Told(record.operation, str(record.collection), key, before, after)


@pytest.fixture
def binary() -> Path:
    """The connector."""
    found = postgres_connector()
    if found is None:
        pytest.skip(f"no conduit-connector-postgres: build it with Go, and name the binary with {VARIABLE}")
    return found


def test_rows_and_a_random_history_are_told_the_same(reading: PostgresReading, tmp_path: Path, binary: Path) -> None:
    with PostgresHistory(reading.url, 1, tables()) as history:
        history.create()
        history.run(150)
        names = [table.name.removeprefix("public.") for table in history.tables]
        source = reading.source(tables=",".join(names))
        copied, position = drained(source)
        slot = {"logrepl.slotName": f"{reading.name}_c", "logrepl.publicationName": f"{reading.name}_c"}
        config = {**_SETTINGS, **slot, "url": reading.url, "tables": ",".join(names)}
        try:
            with ConduitConnector(binary, tmp_path, config) as connector:
                rows = [theirs_of(record, True) for record in connector.take(len(copied))]
                history.run(300)
                changed = without_truncates(drained(source, position)[0])
                xids = [(f"public.{one.collection}", int(one.metadata["postgres.xid"])) for one in changed]
                found = connector.take(len(changed))
                theirs = [theirs_of(one, history.sends_rows(*xid)) for one, xid in zip(found, xids, strict=True)]
        finally:
            _drop(reading, f"{reading.name}_c")
    rows.sort(key=_place)
    copied.sort(key=lambda record: (record.collection, repr(numbers_as_doubles(record.key))))
    for place, (their, our) in enumerate(zip(rows + theirs, copied + changed, strict=True)):
        assert their == ours_of(our, their), place


def _place(told: Told) -> tuple[str, str]:
    return told.collection, repr(told.key)


def _drop(reading: PostgresReading, name: str) -> None:
    end = "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE slot_name = %s"
    reading.execute(f"{end} AND active_pid IS NOT NULL", name)
    reading.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", name)
    reading.execute(f"DROP PUBLICATION IF EXISTS {name}")
