"""Debezium reads the same database: it tells the same rows and changes, in the same order, as the postgres source.

Both have slots and publications of their own. What differs on purpose is translated by the functions of
``lab.debezium_values`` and ``lab.debezium_records``, which say why.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lab.debezium import Debezium, Event
from lab.debezium_records import changes, compare
from lab.maven_jars import NoJarsError
from lab.postgres_history import PostgresHistory
from lab.postgres_reading import PostgresReading, drained

pytestmark = pytest.mark.slow

_SETTINGS = {
    "decimal.handling.mode": "string",
    "interval.handling.mode": "string",
    "include.unknown.datatypes": "true",
    "skipped.operations": "none",
    "tombstones.on.delete": "false",
    "datatype.propagate.source.type": ".+",
    "converter.replace.null.with.default": "false",
    "poll.interval.ms": "20",
}
"""Beside its defaults: numbers, intervals and nulls that lose nothing, and every operation."""


@contextmanager
def debezium(reading: PostgresReading, folder: Path, tables: str) -> Iterator[Debezium]:
    """An engine on tables that are there; skips the test where it can't be had."""
    try:
        made = Debezium(reading.url, folder, **_SETTINGS)
    except NoJarsError as error:
        pytest.skip(f"no Debezium: {error}")
    reading.execute(f"CREATE PUBLICATION {made.name} FOR TABLE {tables} WITH (publish_via_partition_root = true)")
    with made:
        yield made
    reading.execute(f"DROP PUBLICATION {made.name}")


def test_a_random_history_is_told_the_same(reading: PostgresReading, tmp_path: Path) -> None:
    with PostgresHistory(reading.url, 1) as history:
        history.create()
        reading.execute("CREATE TABLE marks (id int PRIMARY KEY); INSERT INTO marks VALUES (1)")
        names = ", ".join([table.name for table in history.tables] + ["marks"])
        source = reading.source(tables=names, snapshotMode="never")
        _, position = drained(source)
        with debezium(reading, tmp_path, names) as engine:
            # its copy has one row: all that happens behind it is told as changes
            engine.until(lambda event: event.table == "public.marks")
            history.run(400)
            reading.execute("INSERT INTO marks VALUES (2)")
            theirs = engine.until(lambda event: event.table == "public.marks")
    ours, _ = drained(source, position)
    found = compare(list(changes(theirs)), ours, history.sends_rows)
    assert not found, "\n".join(found[:20])
