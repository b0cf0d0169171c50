"""Tables whose columns change while the postgres source reads their changes."""

from __future__ import annotations

import pytest
from lab.postgres_reading import PostgresReading, drained

from conduit_dagster.recovery.errors import FatalError

TABLE = "CREATE TABLE a (id bigint PRIMARY KEY, t text)"


def test_it_stops_before_changes_with_other_columns_if_it_is_told_to(reading: PostgresReading) -> None:
    reading.execute(TABLE)
    stops, goes_on = {"onSchemaChange": "stop"}, {"onSchemaChange": "continue"}
    _, position = drained(reading.source(**stops))
    reading.execute("INSERT INTO a VALUES (1, 'x')")
    before, position = drained(reading.source(**stops), position)
    assert [one.key for one in before] == [{"id": 1}]
    for change in ("ADD COLUMN n int", "RENAME t TO u", "ALTER n TYPE bigint", "DROP COLUMN n"):
        reading.execute(f"ALTER TABLE a {change}; INSERT INTO a VALUES ({abs(hash(change))}, 'x')")
        with pytest.raises(FatalError, match=r"a change of public\.a has other columns") as raised:
            drained(reading.source(**stops), position)
        assert raised.value.code == "postgres.schema_changed"
        after, position = drained(reading.source(**goes_on), position)
        assert len(after) == 1
        assert "shapes" not in position
        # from here on the new columns are expected
        found, position = drained(reading.source(**stops), position)
        assert found == [] and position["shapes"].keys() == {"public.a"}


def test_changes_older_than_the_setting_are_not_told_as_the_table_s_columns_of_now(reading: PostgresReading) -> None:
    """Set while changes wait that were made before the table got a column."""
    reading.execute(TABLE)
    _, position = drained(reading.source())
    reading.execute("INSERT INTO a VALUES (1); ALTER TABLE a ADD COLUMN later int")
    with pytest.raises(FatalError, match=r"a change of public\.a has other columns.*than when onSchemaChange was set"):
        drained(reading.source(onSchemaChange="stop"), position)


def test_tables_that_come_later_and_columns_that_are_not_sent_do_not_stop_it(reading: PostgresReading) -> None:
    reading.execute("CREATE TABLE a (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id + 1) STORED)")
    stops = {"onSchemaChange": "stop"}
    _, position = drained(reading.source(**stops))
    reading.execute("CREATE TABLE b (id int PRIMARY KEY, t text)")
    reading.execute("ALTER TABLE a DROP COLUMN g; INSERT INTO a VALUES (1); INSERT INTO b VALUES (1)")
    found, _ = drained(reading.source(**stops), position)
    assert sorted((one.collection, one.operation) for one in found) == [("a", "create"), ("b", "snapshot")]


def test_published_tables_that_it_may_not_see_do_not_stop_it(reading: PostgresReading) -> None:
    user = reading.name
    reading.execute(f"{TABLE}; CREATE SCHEMA hidden; CREATE TABLE hidden.x (id int PRIMARY KEY)")
    reading.execute(f"CREATE PUBLICATION {user} FOR ALL TABLES; CREATE ROLE {user} LOGIN REPLICATION PASSWORD 'secret'")
    reading.execute(f"GRANT USAGE ON SCHEMA public TO {user}; GRANT SELECT ON a TO {user}")
    url = f"postgresql://{user}:secret@{reading.url.partition('@')[2]}"
    source = reading.source(url=url, tables="a", onSchemaChange="stop")
    try:
        _, position = drained(source)
        assert "public.a" in position["shapes"]
    finally:
        source.close()
        reading.execute(f"DROP OWNED BY {user}; DROP ROLE {user}")


@pytest.mark.parametrize(
    ("change", "is_known"),
    [
        ("RENAME b TO e", True),
        ("RENAME b TO e, ADD f int", True),
        ("RENAME c TO e", True),
        ("RENAME b TO e, DROP c", False),
    ],
)
def test_the_key_of_a_whole_row_is_that_of_its_moment(reading: PostgresReading, change: str, is_known: bool) -> None:
    """With ``REPLICA IDENTITY FULL`` a change does not say which columns are the key. After a renaming it was the rest
    of it, so that a delete was that of every row with this rest."""
    reading.execute("CREATE TABLE a (a int, b int, c int, t text, PRIMARY KEY (b, a))")
    reading.execute("ALTER TABLE a REPLICA IDENTITY FULL")
    _, position = drained(reading.source())
    reading.execute("INSERT INTO a VALUES (1, 2, 3, 'x'); DELETE FROM a")
    for one in change.split(", "):
        reading.execute(f"ALTER TABLE a {one}")
    found, _ = drained(reading.source(), position)
    assert [one.key for one in found] == [{"a": 1, "b": 2} if is_known else None] * 2
