"""Debezium reads the same database: it tells the same rows and changes, in the same order, as the postgres source.

Both have slots and publications of their own. What differs on purpose is translated by the functions of
``lab.debezium_values`` and ``lab.debezium_records``, which say why.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from lab.choice import in_matrix
from lab.debezium import Debezium, Event
from lab.debezium_records import TheirChange, changes, compare
from lab.maven_jars import NoJarsError
from lab.postgres_history import PostgresHistory
from lab.postgres_reading import PostgresReading, drained

from conduit_dagster.record import Record
from conduit_dagster.sdk import Limit

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

_EDGES = {
    "smallint": "-32768", "bigint": "9223372036854775807", "oid": "4294967295", "real": "'NaN'",
    "float8": "'-Infinity'",
    "numeric": "'NaN'", "numeric(40,20)": "12345678901234567890.5", "money": "'-1234.56'", "text": "''", "name": "'n'",
    '"char"': "'x'", "varchar": "'é 😀'", "char(4)": "'ab'", "citext": "'Ab'", "bytea": "''", "date": "'infinity'",
    "timestamp": "'-infinity'", "timestamp(3)": "'1969-12-31 23:59:59.9996'", "timestamptz": "'infinity'",
    "timestamptz(0)": "'0001-01-01 00:00:00+00'", "time": "'24:00'", "timetz": "'00:30:00.5+15'",
    "interval": "'-1 year 2 mons -3 days 04:05:06.7'", "uuid": "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'",
    "json": """'{"b":1,"b":[1.50,null]}'""", "jsonb": "'null'", "xml": "'<a>é</a>'", "hstore": """'a=>1,"b c"=>NULL'""",
    "ltree": "'a.b'", "inet": "'::1/64'", "cidr": "'10.0.0.0/8'", "macaddr": "'08:00:2b:01:02:03'",
    "macaddr8": "'08:00:2b:01:02:03:04:05'", "bit": "B'1'", "bit(70)": "(B'1' || repeat('0', 69)::bit(69))::bit(70)",
    "point": "'(1.5,-2)'", "int8range": "'[1,)'", "numrange": "'empty'", "tsrange": "'[2024-01-01,2024-01-02)'",
    "tstzrange": "'[2024-01-01 00:00+02,)'", "daterange": "'[2024-01-01,2024-01-01]'", "tsvector": "'a:1 b:2'",
    "mood": "'so so'", "amount": "5", "words": "'{a,NULL}'", "two": "ROW(1, 'a b')", "floatrange": "'[1.5,2]'",
    "smallint[]": "'{-1,NULL}'", "bigint[]": "'{9223372036854775807}'", "boolean[]": "'{t,f,NULL}'",
    "real[]": "'{1.5}'",
    "float8[]": "'{0.1,1e22}'", "numeric[]": "'{1.50,-0.001}'", "text[]": """'{"a,b","c\\"d",NULL,"NULL",""}'""",
    "varchar[]": "'{}'", "uuid[]": "'{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}'", "date[]": "'{2024-02-29}'",
    "timestamp[]": "'{2024-02-29 12:00:00.5}'", "timestamptz[]": "'{2024-02-29 12:00:00+02}'",
    "jsonb[]": "array['1'::jsonb]",
    "inet[]": "'{10.0.0.1}'", "mood[]": "'{ok,so so}'", "int4range[]": "array['[1,5)'::int4range]",
}  # fmt: skip
"""Types, and a value of each that is easily told wrong."""
_NOT_COPIED = r"public\\.keyless,public\\.parts\\d"
"""Rows without a key can't be copied here; and Debezium copies each partition once more, as a table of its own."""
_EXTENSIONS = ("citext", "hstore", "ltree")
_TYPES = """
    CREATE TYPE mood AS ENUM ('ok', 'so so'); CREATE DOMAIN amount AS int; CREATE DOMAIN words AS text[];
    CREATE TYPE two AS (a int, b text); CREATE TYPE floatrange AS RANGE (subtype = float8);
"""


@contextmanager
def debezium(reading: PostgresReading, folder: Path, tables: str, excluded: str = "") -> Generator[Debezium]:
    """An engine on existing tables; skip the test if it is not available."""
    try:
        made = Debezium(reading.url, folder, **_SETTINGS, **{"table.exclude.list": excluded})
    except NoJarsError as error:
        pytest.skip(f"no Debezium: {error}")
    reading.execute(f"CREATE PUBLICATION {made.name} FOR TABLE {tables} WITH (publish_via_partition_root = true)")
    with made:
        yield made
    reading.execute(f"DROP PUBLICATION {made.name}")


def is_mark(event: Event) -> bool:
    """Return whether it is the last one wanted."""
    return event.table == "public.marks"


def is_edge(event: Event) -> bool:
    """Return whether it is about the table with a column of each type."""
    return event.table == "public.edges"


def require_same(theirs: Sequence[TheirChange], ours: Sequence[Record], history: PostgresHistory) -> None:
    """Fail with the first differences."""
    found = compare(theirs, ours, history.sends_rows)
    assert not found, "\n".join(found[:20])


@in_matrix
def test_a_random_history_is_told_the_same(reading: PostgresReading, tmp_path: Path) -> None:
    """Ours in many small steps, long after everything happened; theirs in one go, while it happens."""
    with PostgresHistory(reading.url, 1) as history:
        history.create()
        reading.execute("CREATE TABLE marks (id int PRIMARY KEY); INSERT INTO marks VALUES (1)")
        names = ", ".join([table.name for table in history.tables] + ["marks"])
        source = reading.source(tables=names, snapshotMode="never")
        _, position = drained(source)
        with debezium(reading, tmp_path, names) as engine:
            # its copy has one row: everything behind it comes as changes
            engine.until(is_mark)
            history.run(600)
            reading.execute("INSERT INTO marks VALUES (2)")
            theirs = list(changes(engine.until(is_mark)))
        ours, _ = drained(source, position, Limit(100, 4_000))
    assert {change.operation for change in theirs} == {"create", "update", "delete"}
    assert {change.table for change in theirs} == {table.name.replace('"', "") for table in history.tables} | {
        "public.marks"
    }
    require_same(theirs, ours, history)


def test_rows_and_the_changes_behind_them_are_told_the_same(reading: PostgresReading, tmp_path: Path) -> None:
    """With every type, and tables whose columns have come and gone."""
    _create_edges(reading)
    with PostgresHistory(reading.url, 2) as history:
        history.create()
        history.run(300)
        history.identities.append((0, "public.edges", False))
        names = ", ".join([table.name for table in history.tables if table.name != "public.keyless"] + ["edges"])
        rows = sum(reading.execute(f"SELECT count(*) FROM {name}")[0][0] for name in names.split(", "))
        with debezium(reading, tmp_path, names, excluded=_NOT_COPIED) as engine:
            copied = list(changes(engine.take(rows)))
            source = reading.source(tables=names)
            ours, position = drained(source)
            require_same(sorted(copied, key=_place_of_theirs), sorted(ours, key=_place_of_ours), history)
            history.run(100)
            reading.execute("UPDATE edges SET id = id + 10; TRUNCATE edges")
            changed = list(changes(engine.until(lambda event: event.payload["op"] == "t" and is_edge(event))))
    require_same(changed, drained(source, position)[0], history)


def _create_edges(reading: PostgresReading) -> None:
    """A row with a value of each type, and one without any."""
    known = {name for (name,) in reading.execute("SELECT name FROM pg_available_extensions")}
    for extension in _EXTENSIONS:
        if extension in known:
            reading.execute(f"CREATE EXTENSION {extension}")
    reading.execute(_TYPES)
    kinds = [kind for kind in _EDGES if kind not in _EXTENSIONS or kind in known]
    columns = ", ".join(f"c{place} {kind}" for place, kind in enumerate(kinds))
    values = ", ".join(f"({_EDGES[kind]})::{kind}" for kind in kinds)
    reading.execute(f"CREATE TABLE edges (id int PRIMARY KEY, {columns})")
    reading.execute(f"INSERT INTO edges VALUES (1, {values}); INSERT INTO edges (id) VALUES (2)")


def _place_of_theirs(change: TheirChange) -> tuple[str, str]:
    return change.table.removeprefix("public."), repr(sorted((change.key or {}).items()))


def _place_of_ours(record: Record) -> tuple[str, str]:
    assert isinstance(record.key, dict)
    return record.collection or "", repr(sorted(record.key.items()))
