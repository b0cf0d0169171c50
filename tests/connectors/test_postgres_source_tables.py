"""Which rows belong to a table of the postgres source: children, partitions, awkward names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab.postgres_reading import PostgresReading, drained, records_of, travelled
from lab.support import Lab

from conduit_dagster.change_marks import unchanged_fields
from conduit_dagster.connectors.postgres.settings import TableName, table_name
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Limit


def shown(records: list[Record]) -> list[tuple[str, str, Any]]:
    return [(record.operation, record.collection, record.key) for record in records]


# -- children -----------------------------------------------------------------------------------------------------

FAMILY = """
    CREATE TABLE a (id int PRIMARY KEY, v int); CREATE TABLE b (PRIMARY KEY (id)) INHERITS (a);
    INSERT INTO a VALUES (1, 0), (2, 0); INSERT INTO b VALUES (2, 0), (3, 0)
"""


@pytest.mark.parametrize(("tables", "has_child"), [("a", False), ("a, b", True), ("b, a", True), ("*", True)])
def test_a_child_is_a_table_of_its_own(reading: PostgresReading, tables: str, has_child: bool) -> None:
    """As in PostgreSQL's own initial copy. Both may have rows of the same key."""
    reading.execute(FAMILY)
    source = reading.source(tables=tables)
    copied, position = drained(source)
    reading.execute("UPDATE a SET v = 1; INSERT INTO a VALUES (4, 0); INSERT INTO b VALUES (5, 0); TRUNCATE a")
    changed, _ = drained(source, position)
    rows = {"a": [1, 2], "b": [2, 3]} if has_child else {"a": [1, 2]}
    new = {"a": 4, "b": 5}
    for table, ids in rows.items():
        assert [one for one in shown(copied + changed) if one[1] == table] == [
            *[("snapshot", table, {"id": i}) for i in ids],
            *[("update", table, {"id": i}) for i in ids],
            ("create", table, {"id": new[table]}),
            ("delete", table, None),
        ]
    assert {record.collection for record in copied + changed} == set(rows)


def test_a_child_that_is_published_already_can_be_joined_by_its_parent(reading: PostgresReading) -> None:
    reading.execute(FAMILY)
    _, position = drained(reading.source(tables="b"))
    records, _ = drained(reading.source(tables="b, a"), position)
    assert shown(records) == [("snapshot", "a", {"id": 1}), ("snapshot", "a", {"id": 2})]


def test_polling_a_parent_leaves_its_children_out(reading: PostgresReading) -> None:
    reading.execute(FAMILY)
    copied, position = drained(reading.source(tables="a", cdcMode="long_polling"))
    reading.execute("INSERT INTO b VALUES (4, 0); INSERT INTO a VALUES (5, 0)")
    polled, _ = drained(reading.source(tables="a", cdcMode="long_polling"), position)
    assert shown(copied + polled) == [
        *[("snapshot", "a", {"id": i}) for i in (1, 2)],
        ("create", "a", {"id": 5}),
    ]


# -- names --------------------------------------------------------------------------------------------------------

NAMES = [
    ("s", "A b"), ("S.x", "t"), ("s.t", "u"), ("s", "t.u"), ('"s"', '"t"'), ('S"x', 'T"u'), ("s.", ".t"),
    (" s", "t "), ("public", "t.u"), ("public", '"t"'), ("s", "t,u"),
]  # fmt: skip


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.mark.parametrize(("schema", "table"), NAMES)
def test_any_name_of_a_schema_and_a_table_is_read(reading: PostgresReading, schema: str, table: str) -> None:
    """A copy that is interrupted, then changes; a destination takes the collection as the name of the same table."""
    name = f"{quoted(schema)}.{quoted(table)}"
    reading.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}; CREATE TABLE {name} (id int PRIMARY KEY)")
    reading.execute(f"INSERT INTO {name} VALUES (1), (2), (3); CREATE TABLE a (id int PRIMARY KEY)")
    settings: dict[str, Any] = {"tables": f"a, {name}", "onSchemaChange": "stop"}
    source = reading.source(**settings)
    half = travelled(source.latest(source.initial(), Limit(2, 10**9)))
    records = records_of(source, source.initial(), half)
    source.close()
    reading.execute(f"UPDATE {name} SET id = 4 WHERE id = 1; INSERT INTO {name} VALUES (5)")
    rest, position = drained(reading.source(**settings), half)
    reading.execute(f"TRUNCATE {name}")
    records += rest + drained(reading.source(**settings), position)[0]
    assert [(record.operation, record.key) for record in records] == [
        *[("snapshot", {"id": i}) for i in range(1, 6)],
        ("delete", {"id": 1}),
        ("delete", None),
    ]
    assert {table_name(record.collection or "", "public") for record in records} == {TableName(schema, table)}


def test_a_star_leaves_out_a_schema_whose_name_begins_alike(reading: PostgresReading) -> None:
    reading.execute('CREATE TABLE t (id int PRIMARY KEY); CREATE SCHEMA "public.x"')
    reading.execute(f'CREATE TABLE "public.x".t (id int PRIMARY KEY); CREATE PUBLICATION {reading.name} FOR ALL TABLES')
    source = reading.source()
    _, position = drained(source)
    reading.execute('INSERT INTO "public.x".t VALUES (1); INSERT INTO t VALUES (2)')
    assert shown(drained(source, position)[0]) == [("create", "t", {"id": 2})]
    reading.execute(f"DROP PUBLICATION {reading.name}")


def test_unchanged_large_values_are_named_whatever_their_columns_are_called(reading: PostgresReading) -> None:
    names = ["a,b", '"q"', 'x"y', " s ", "plain"]
    columns = ", ".join(f"{quoted(name)} text" for name in names)
    reading.execute(f"CREATE TABLE a (id int PRIMARY KEY, n int, {columns})")
    for name in names:
        reading.execute(f"ALTER TABLE a ALTER {quoted(name)} SET STORAGE EXTERNAL")
    reading.execute("INSERT INTO a SELECT 1, 1, x, x, x, x, x FROM repeat('x', 3000) x")
    source = reading.source()
    _, position = drained(source)
    reading.execute("UPDATE a SET n = 2")
    (record,), _ = drained(source, position)
    assert record.after == {"id": 1, "n": 2} and unchanged_fields(record) == names


# -- what changes have ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"snapshotMode": "never"},
        {"snapshotMode": "initial_only"},
        {"cdcMode": "long_polling", "polling.column": "id"},
    ],
)
@pytest.mark.parametrize("key", ["g", "id, g"])
def test_a_key_with_a_generated_column_is_refused(reading: PostgresReading, key: str, settings: dict[str, Any]) -> None:
    """Changes lack it, so the rest of the key could be that of several rows."""
    generated = "g int GENERATED ALWAYS AS (id * 2) STORED"
    reading.execute(f"CREATE TABLE a (id int NOT NULL UNIQUE, {generated}, PRIMARY KEY ({key}))")
    for look in (lambda s: s.check(), lambda s: s.latest({}, Limit(1, 1))):
        with pytest.raises(FatalError, match=r"key of public\.a .*: g") as caught:
            look(reading.source(**settings))
        assert (caught.value.code, "REPLICA IDENTITY" in str(caught.value.fix)) == ("postgres.no_key", True)
    reading.execute("ALTER TABLE a REPLICA IDENTITY USING INDEX a_id_key; INSERT INTO a VALUES (1)")
    assert [record.after for record in drained(reading.source(**settings))[0]] in ([{"id": 1}], [])


def test_a_key_that_becomes_a_generated_column_is_refused_by_the_next_run(reading: PostgresReading) -> None:
    reading.execute("CREATE TABLE a (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED NOT NULL)")
    _, position = drained(reading.source())
    reading.execute("ALTER TABLE a DROP CONSTRAINT a_pkey, ADD PRIMARY KEY (g)")
    with pytest.raises(FatalError, match=r"key of public\.a"):
        drained(reading.source(), position)


def test_a_copy_has_the_columns_and_rows_that_are_published(reading: PostgresReading) -> None:
    """As PostgreSQL's own initial copy, in one part or several."""
    if reading.execute("SHOW server_version_num")[0][0] < "150000":
        pytest.skip("publications of this server have neither column lists nor row filters")
    reading.execute("CREATE TABLE a (id int PRIMARY KEY, secret text, v int)")
    reading.execute("INSERT INTO a SELECT i, 's', i % 2 FROM generate_series(1, 6) i")
    reading.execute(f"CREATE PUBLICATION {reading.name} FOR TABLE a (v, id) WHERE (id > 1 AND v = 1 OR id = 6)")
    source = reading.source()
    copied, position = drained(source, limit=Limit(2, 10**9))
    reading.execute("INSERT INTO a VALUES (7, 's', 1), (8, 's', 0)")
    changed, _ = drained(source, position)
    assert [record.after for record in copied + changed] == [
        {"id": 3, "v": 1},
        {"id": 5, "v": 1},
        {"id": 6, "v": 0},
        {"id": 7, "v": 1},
    ]


@pytest.mark.parametrize("publication", ["", "CREATE PUBLICATION {} FOR ALL TABLES"], ids=["ours", "all tables"])
def test_all_tables_are_those_of_the_user(reading: PostgresReading, publication: str) -> None:
    """Of a destination and of the state store in the same schema: each delivery of them would make another one."""
    reading.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE conduit_deliveries (id int PRIMARY KEY)")
    reading.execute("CREATE TABLE conduit_steps (id int PRIMARY KEY); INSERT INTO conduit_deliveries VALUES (0)")
    reading.execute(publication.format(reading.name))
    source = reading.source()
    copied, position = drained(source)
    reading.execute("INSERT INTO conduit_deliveries VALUES (1); INSERT INTO conduit_steps VALUES (1)")
    reading.execute("INSERT INTO a VALUES (1)")
    assert shown(copied + drained(source, position)[0]) == [("create", "a", {"id": 1})]


# -- what can't be read -----------------------------------------------------------------------------------------------

DIVIDED = """
    CREATE TABLE a (id int PRIMARY KEY) PARTITION BY RANGE (id);
    CREATE TABLE b PARTITION OF a FOR VALUES FROM (0) TO (9)
"""
UNFIT = {
    "CREATE VIEW a AS SELECT 1 AS id": "no_table",
    "CREATE MATERIALIZED VIEW a AS SELECT 1 AS id": "no_table",
    "CREATE SEQUENCE a": "no_table",
    "CREATE TABLE b (id int); CREATE INDEX a ON b (id)": "no_table",
    "CREATE TYPE a AS (id int)": "no_table",
    "CREATE UNLOGGED TABLE a (id int PRIMARY KEY)": "no_table",
    "CREATE TABLE a (id int)": "no_key",
    "CREATE TABLE a (id int PRIMARY KEY DEFERRABLE)": "no_key",
    "CREATE TABLE a (id int PRIMARY KEY); ALTER TABLE a REPLICA IDENTITY NOTHING": "no_key",
    "CREATE TABLE a (id int PRIMARY KEY, k int NOT NULL); CREATE UNIQUE INDEX k ON a (k);"
    " ALTER TABLE a REPLICA IDENTITY USING INDEX k; DROP INDEX k": "no_key",
    DIVIDED: "named_twice",
    f"{DIVIDED}; CREATE UNLOGGED TABLE c PARTITION OF a DEFAULT": "no_table",
    f"{DIVIDED}; ALTER TABLE b REPLICA IDENTITY NOTHING": "no_key",
    # updates of the key would come without the old one
    f"{DIVIDED}; ALTER TABLE a ADD k int NOT NULL; CREATE UNIQUE INDEX k ON b (k);"
    " ALTER TABLE b REPLICA IDENTITY USING INDEX k": "no_key",
}


@pytest.mark.parametrize("statement", list(UNFIT))
def test_what_is_unfit_is_named_and_nothing_is_published(reading: PostgresReading, statement: str) -> None:
    """PostgreSQL would refuse updates of a published table without a replica identity."""
    reading.execute(statement)
    tables = "a, b" if statement is DIVIDED else "a"
    for look in (lambda s: s.check(), lambda s: s.latest({}, Limit(1, 1))):
        with pytest.raises(FatalError, match=r"public\.a") as caught:
            look(reading.source(tables=tables))
        assert caught.value.code == f"postgres.{UNFIT[statement]}" and caught.value.fix
    for made in ("pg_publication WHERE pubname", "pg_replication_slots WHERE slot_name"):
        assert reading.execute(f"SELECT count(*) FROM {made} = %s", reading.name) == [(0,)]


def test_a_partition_with_an_identity_that_has_the_key_is_read(reading: PostgresReading) -> None:
    reading.execute(f"{DIVIDED}; ALTER TABLE b REPLICA IDENTITY FULL; CREATE TABLE c PARTITION OF a DEFAULT")
    source = reading.source(tables="a")
    _, position = drained(source)
    reading.execute("INSERT INTO a VALUES (1); UPDATE a SET id = 10; DELETE FROM a")
    records, _ = drained(source, position)
    assert [(record.operation, record.key) for record in records] == [
        ("create", {"id": 1}),
        ("delete", {"id": 1}),
        ("create", {"id": 10}),
        ("delete", {"id": 10}),
    ]


@pytest.mark.parametrize("change", ["DELETE FROM a", "UPDATE a SET k = 3"])
def test_a_partition_that_is_added_with_another_identity_ends_the_run(reading: PostgresReading, change: str) -> None:
    """The key was null in the record, so that the row stayed at the destination."""
    reading.execute(f"{DIVIDED}; ALTER TABLE a ADD k int NOT NULL")
    source = reading.source(tables="a")
    _, position = drained(source)
    reading.execute("CREATE TABLE c PARTITION OF a DEFAULT; CREATE UNIQUE INDEX k ON c (k)")
    reading.execute(f"ALTER TABLE c REPLICA IDENTITY USING INDEX k; INSERT INTO a VALUES (10, 1); {change}")
    with pytest.raises(FatalError, match=r"which row.*\(id\)") as caught:
        drained(source, position)
    assert caught.value.code == "postgres.no_key"


@pytest.mark.parametrize("publication", ["", "FOR TABLE a", "FOR ALL TABLES"])
def test_a_partition_is_read_instead_of_its_table(reading: PostgresReading, publication: str) -> None:
    """The publication sent its changes as those of the table, which is not read any more."""
    reading.execute(f"{DIVIDED}; INSERT INTO a VALUES (1)")
    if publication:
        reading.execute(f"CREATE PUBLICATION {reading.name} {publication} WITH (publish_via_partition_root = true)")
    found, position = drained(reading.source(tables="a"))
    if publication:
        with pytest.raises(FatalError, match=r"changes of public\.b as those of the whole table") as caught:
            drained(reading.source(tables="b"), position)
        assert caught.value.code == "postgres.publication" and caught.value.fix
        return
    for number, tables in ((2, "b"), (3, "b"), (4, "a")):
        source = reading.source(tables=tables)
        records, position = drained(source, position)
        reading.execute(f"INSERT INTO a VALUES ({number})")
        more, position = drained(source, position)
        source.close()
        found += records + more
    told = [("a", 1), ("b", 1), ("b", 2), ("b", 3), ("a", 1), ("a", 2), ("a", 3), ("a", 4)]
    assert [(collection, key["id"]) for _, collection, key in shown(found)] == told


@pytest.mark.parametrize(
    ("identity", "is_told"),
    [
        ("ALTER TABLE b ADD PRIMARY KEY (id)", False),
        ("ALTER TABLE b REPLICA IDENTITY FULL", False),
        ("ALTER TABLE a REPLICA IDENTITY FULL; ALTER TABLE b REPLICA IDENTITY FULL", True),
        ("ALTER TABLE a REPLICA IDENTITY FULL; ALTER TABLE b ADD PRIMARY KEY (id)", False),
    ],
)
def test_updates_of_a_partition_say_which_row_they_change(
    reading: PostgresReading, identity: str, is_told: bool
) -> None:
    """PostgreSQL takes them, although their table has no key: they came without one, and without a row before."""
    reading.execute(DIVIDED.replace("PRIMARY KEY", "") + ";" + identity)
    source = reading.source(tables="a", snapshotMode="never")
    if not is_told:
        with pytest.raises(FatalError, match=r"has no key.*: b") as caught:
            source.latest({}, Limit(1, 1))
        assert caught.value.code == "postgres.no_key"
        return
    _, position = drained(source)
    reading.execute("INSERT INTO a VALUES (1); UPDATE a SET id = 2; DELETE FROM a")
    assert [one.before for one in drained(source, position)[0]] == [None, {"id": 1}, {"id": 2}]


@pytest.mark.parametrize("of_all", [False, True], ids=["of the table", "of all partitions"])
def test_the_row_before_is_whole_or_the_key(reading: PostgresReading, of_all: bool) -> None:
    """A partition's old row is sent as its own identity says, with null for all that is not in that: a large value that
    was not touched became null."""
    reading.execute(f"{DIVIDED}; ALTER TABLE a ADD v text; ALTER TABLE a ALTER v SET STORAGE EXTERNAL")
    reading.execute("ALTER TABLE a REPLICA IDENTITY FULL")
    if of_all:
        reading.execute("ALTER TABLE b REPLICA IDENTITY FULL")
    source, large = reading.source(tables="a"), "x" * 5000
    _, position = drained(source)
    reading.execute(f"INSERT INTO a VALUES (1, '{large}'); UPDATE a SET id = 2; DELETE FROM a")
    _, update, delete = drained(source, position)[0]
    whole = {"v": large} if of_all else {}
    assert (update.before, update.after, delete.before) == ({"id": 1, **whole}, {"id": 2, **whole}, {"id": 2, **whole})
    assert update.metadata.get("postgres.unchanged_toast") == (None if of_all else "v")


def test_an_unlogged_table_can_be_copied_and_polled(reading: PostgresReading) -> None:
    reading.execute("CREATE UNLOGGED TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1)")
    for settings in ({"snapshotMode": "initial_only"}, {"cdcMode": "long_polling"}):
        records, _ = drained(reading.source("p", True, tables="a", **settings))
        assert shown(records) == [("snapshot", "a", {"id": 1})]


def test_a_publication_that_sends_partitions_says_how_to_send_the_whole(reading: PostgresReading) -> None:
    reading.execute(f"{DIVIDED}; CREATE PUBLICATION {reading.name} FOR TABLE a")
    with pytest.raises(FatalError) as caught:
        reading.source(tables="a").check()
    assert caught.value.code == "postgres.publication" and caught.value.fix
    reading.execute(caught.value.fix)
    source = reading.source(tables="a")
    _, position = drained(source)
    reading.execute("INSERT INTO a VALUES (1)")
    assert shown(drained(source, position)[0]) == [("create", "a", {"id": 1})]


# -- what its own pipeline writes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reads", "writes", "warned"),
    [
        ({"tables": "*"}, {}, "the tables of h:5432/d are"),
        ({"tables": "a"}, {"table": "a"}, "the table public.a of h:5432/d is"),
        ({"tables": "*"}, {"table": "b"}, "the table public.b of h:5432/d is"),
        ({"tables": "s.a"}, {"schema": "w"}, "the tables of h:5432/d are"),
        ({"tables": "a, conduit_deliveries"}, {"table": "b"}, "the table public.conduit_deliveries of h:5432/d is"),
        ({"tables": "a"}, {"table": "b"}, ""),
        ({"tables": "*"}, {"schema": "w"}, ""),
        ({"tables": "*"}, {"url": "postgresql://u@h/e"}, ""),
        ({"tables": "*"}, {"table": "copy_of_{{ .Metadata.x }}"}, ""),
        ({"tables": "*", "snapshotMode": "initial_only"}, {}, ""),
    ],
)
def test_a_source_of_the_tables_that_its_pipeline_writes_is_warned_of(
    tmp_path: Path, reads: dict[str, str], writes: dict[str, str], warned: str
) -> None:
    """Each row that is written would be a change to write."""
    lab, url = Lab(tmp_path), {"url": "postgresql://u@h/d"}
    nodes = [("in", "source", reads), ("out", "destination", writes)]
    lab.pipeline(
        connectors=[
            {"id": name, "type": kind, "plugin": "postgres", "settings": {**url, **settings}}
            for name, kind, settings in nodes
        ]
    )
    found = [(one.code, one.severity, one.message.partition(" written")[0]) for one in lab.catalogue().findings]
    assert found == ([("source.own_output", "warning", warned)] if warned else [])
