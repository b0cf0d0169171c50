"""Interrupted copies of tables, and what the stream then leaves out: nothing twice, nothing lost."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import psycopg
import pytest
from lab.postgres_reading import ALL_KEYS, PostgresReading, drained, records_of, told, travelled
from lab.waiting import wait_until

from conduit_dagster.connectors.postgres.source import PostgresSource
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.sdk import Limit, Position

TABLE = "CREATE TABLE a (id bigint PRIMARY KEY, v int NOT NULL)"
WIDE = 10**9


def half_copied(reading: PostgresReading) -> Position:
    """Rows 1 to 5 of ten are copied, by a run that ended."""
    reading.execute(f"{TABLE}; INSERT INTO a SELECT i, 0 FROM generate_series(1, 10) i")
    source = reading.source()
    end = source.latest(source.initial(), Limit(5, WIDE))
    assert [one.key for one in records_of(source, source.initial(), end)] == [{"id": i} for i in range(1, 6)]
    source.close()
    return travelled(end)


def rest(source: PostgresSource, position: Position) -> list[tuple[Any, ...]]:
    """The following changes, in short."""
    return [told(record) for record in drained(source, position)[0]]


def test_what_a_later_copy_shows_is_not_told_again(reading: PostgresReading) -> None:
    position = half_copied(reading)
    reading.execute(
        "UPDATE a SET v = 1 WHERE id IN (2, 8); DELETE FROM a WHERE id IN (3, 9); INSERT INTO a VALUES (11, 7)"
    )
    assert rest(reading.source(), position) == [
        *[("snapshot", "a", {"id": i}, None, {"id": i, "v": v}) for i, v in ((6, 0), (7, 0), (8, 1), (10, 0), (11, 7))],
        ("update", "a", {"id": 2}, None, {"id": 2, "v": 1}),
        ("delete", "a", {"id": 3}, {"id": 3}, None),
    ]


def test_a_row_that_moves_between_the_parts_is_neither_lost_nor_doubled(reading: PostgresReading) -> None:
    """Row 4 becomes 12, which the second part shows: it is deleted from the first part. Row 8 becomes 0: created."""
    position = half_copied(reading)
    reading.execute("UPDATE a SET id = 12, v = 4 WHERE id = 4; UPDATE a SET id = 0, v = 8 WHERE id = 8")
    assert rest(reading.source(), position) == [
        *[("snapshot", "a", {"id": i}, None, {"id": i, "v": v}) for i, v in ((6, 0), (7, 0), (9, 0), (10, 0), (12, 4))],
        ("delete", "a", {"id": 4}, {"id": 4}, None),
        ("create", "a", {"id": 0}, None, {"id": 0, "v": 8}),
    ]


def test_a_copy_does_not_go_on_in_the_order_of_another_type(reading: PostgresReading) -> None:
    """As text, 10 lies before 5: it would never come."""
    position = half_copied(reading)
    reading.execute("ALTER TABLE a ALTER id TYPE text")
    with pytest.raises(FatalError) as raised:
        rest(reading.source(), position)
    assert raised.value.code == "postgres.order_changed"


def test_a_copy_goes_on_with_a_wider_key(reading: PostgresReading) -> None:
    reading.execute(
        "CREATE TABLE a (id int, t varchar(9), PRIMARY KEY (t, id)); INSERT INTO a VALUES (1, 'a'), (2, 'b')"
    )
    source = reading.source()
    position = travelled(source.latest(source.initial(), Limit(1, WIDE)))
    source.close()
    reading.execute("ALTER TABLE a ALTER id TYPE bigint, ALTER t TYPE text")
    assert [key for _, _, key, *_ in rest(reading.source(), position)] == [{"t": "b", "id": 2}]


def test_changes_from_before_a_key_got_another_type_are_compared_as_they_were(reading: PostgresReading) -> None:
    """As text, 2 lies behind the first part, which ends with 10."""
    reading.execute(f"{TABLE}; INSERT INTO a SELECT i, 0 FROM generate_series(1, 20) i")
    source = reading.source()
    position = travelled(source.latest(source.initial(), Limit(10, WIDE)))
    source.close()
    reading.execute("UPDATE a SET v = 1 WHERE id IN (2, 12)")
    source = reading.source()
    copied = travelled(source.latest(position, Limit(100, WIDE)))
    assert len(records_of(source, position, copied)) == 10
    source.ack(copied, 1)
    reading.execute("ALTER TABLE a ALTER id TYPE text")
    assert rest(source, copied) == [("update", "a", {"id": 2}, None, {"id": 2, "v": 1})]


def test_parts_of_a_copy_are_told_apart_by_the_order_of_the_key(reading: PostgresReading) -> None:
    """Which is not that of the table's columns."""
    reading.execute("CREATE TABLE a (x int, y int, v int, PRIMARY KEY (y, x))")
    reading.execute("INSERT INTO a SELECT 10 - i, i, 0 FROM generate_series(1, 9) i")
    source = reading.source()
    end = source.latest(source.initial(), Limit(5, WIDE))
    assert [(one.key or {})["y"] for one in records_of(source, source.initial(), end)] == [1, 2, 3, 4, 5]  # type: ignore[index, call-overload]
    source.close()
    reading.execute("UPDATE a SET v = y")
    assert rest(reading.source(), travelled(end)) == [
        *[("snapshot", "a", {"y": y, "x": 10 - y}, None, {"x": 10 - y, "y": y, "v": y}) for y in range(6, 10)],
        *[("update", "a", {"y": y, "x": 10 - y}, None, {"x": 10 - y, "y": y, "v": y}) for y in range(1, 6)],
    ]


@pytest.mark.parametrize("again", ["", "; CREATE TABLE a (k text PRIMARY KEY)"])
@pytest.mark.parametrize(("identity", "told_again"), [("DEFAULT", []), ("FULL", [10])])
def test_a_table_that_was_dropped_behind_its_copy_holds_nothing_up(
    reading: PostgresReading, identity: str, told_again: list[int], again: str
) -> None:
    """The stream has its key's types. With a full identity no column is the key any more: all changes are reported."""
    position = half_copied(reading)
    reading.execute(f"CREATE TABLE b (id int PRIMARY KEY); ALTER TABLE a REPLICA IDENTITY {identity}")
    reading.execute("UPDATE a SET v = 1 WHERE id IN (2, 10)")
    source = reading.source()
    end = source.latest(position, Limit(100, WIDE))
    assert [one.key for one in records_of(source, position, end)] == [{"id": i} for i in range(6, 11)]
    source.ack(travelled(end), 1)
    reading.execute(f"DROP TABLE a{again}; INSERT INTO b VALUES (1)")
    assert [(operation, after) for operation, _, _, _, after in rest(source, travelled(end))] == [
        *[("update", {"id": i, "v": 1}) for i in (2, *told_again)],
        ("create", {"id": 1}),
    ]


def test_a_transaction_that_was_open_when_the_copy_began_is_told(reading: PostgresReading) -> None:
    """Even if a later one, which the copy shows, was committed before it."""
    position = half_copied(reading)
    with closing(psycopg.connect(reading.url)) as early:
        early.execute("INSERT INTO a VALUES (20, 1)")
        reading.execute("INSERT INTO a VALUES (21, 2)")
        source = reading.source()
        end = source.latest(position, Limit(100, WIDE))
        assert [one.key for one in records_of(source, position, end)] == [{"id": i} for i in (6, 7, 8, 9, 10, 21)]
        early.commit()
    assert rest(source, travelled(end)) == [("create", "a", {"id": 20}, None, {"id": 20, "v": 1})]


def test_what_happens_while_tables_are_copied_follows(reading: PostgresReading) -> None:
    reading.execute(f"{TABLE}; INSERT INTO a SELECT i, 0 FROM generate_series(1, 4) i")
    source = reading.source()
    end = source.latest(source.initial(), Limit(2, WIDE))
    reading.execute("UPDATE a SET v = 1; INSERT INTO a VALUES (5, 1)")
    found = records_of(source, source.initial(), end)
    more, _ = drained(source, travelled(end))
    assert [(one.operation, one.key, (one.after or {})["v"]) for one in found + more] == [  # type: ignore[index]
        *[("snapshot", {"id": i}, 0) for i in range(1, 5)],
        *[("update", {"id": i}, 1) for i in range(1, 5)],
        ("create", {"id": 5}, 1),
    ]


def test_all_tables_are_copied_at_one_moment(reading: PostgresReading) -> None:
    """However many steps it takes: a row that moves from one table to another is seen in one of them."""
    reading.execute(f"{TABLE}; CREATE TABLE b (LIKE a INCLUDING ALL); INSERT INTO a VALUES (1, 1), (2, 2)")
    source = reading.source()
    end = source.latest(source.initial(), Limit(1, WIDE))
    found = records_of(source, source.initial(), end)
    reading.execute("BEGIN; INSERT INTO b SELECT * FROM a WHERE id = 2; DELETE FROM a WHERE id = 2; COMMIT")
    more, _ = drained(source, travelled(end), Limit(1, WIDE))
    assert [(one.operation, one.collection, one.key) for one in found + more] == [
        ("snapshot", "a", {"id": 1}),
        ("snapshot", "a", {"id": 2}),
        ("create", "b", {"id": 2}),
        ("delete", "a", {"id": 2}),
    ]


def test_a_table_that_is_added_later_is_copied_then(reading: PostgresReading) -> None:
    reading.execute(f"{TABLE}; CREATE TABLE b (LIKE a INCLUDING ALL); INSERT INTO a VALUES (1, 1)")
    source = reading.source(tables="a")
    _, position = drained(source)
    source.close()
    reading.execute("INSERT INTO b VALUES (1, 1); INSERT INTO a VALUES (2, 2)")
    source = reading.source(tables="a, b")
    found, position = drained(source, position)
    reading.execute("UPDATE b SET v = 3")
    found += drained(source, position)[0]
    assert [(one.operation, one.collection, one.key) for one in found] == [
        ("snapshot", "b", {"id": 1}),
        ("create", "a", {"id": 2}),
        ("update", "b", {"id": 1}),
    ]


def test_a_table_that_is_created_later_is_copied_at_the_next_start(reading: PostgresReading) -> None:
    reading.execute(f"{TABLE}; INSERT INTO a VALUES (1, 1)")
    source = reading.source(tables="*")
    _, position = drained(source)
    reading.execute("CREATE TABLE b (LIKE a INCLUDING ALL); INSERT INTO b VALUES (1, 1)")
    assert drained(source, position)[0] == []
    source.close()
    assert rest(reading.source(tables="*"), position) == [("snapshot", "b", {"id": 1}, None, {"id": 1, "v": 1})]


def test_a_table_that_the_stream_has_told_from_its_creation_is_not_copied(reading: PostgresReading) -> None:
    """A publication for all tables contains each from its creation on."""
    reading.execute(f"{TABLE}; CREATE PUBLICATION {reading.name} FOR ALL TABLES")
    source = reading.source(tables="*")
    _, position = drained(source)
    reading.execute("CREATE TABLE b (LIKE a INCLUDING ALL); INSERT INTO b VALUES (1, 1)")
    found, position = drained(source, position)
    source.close()
    reading.execute("UPDATE b SET v = 2")
    more, position = drained(reading.source(tables="*"), position)
    # nor if it is named later
    more += drained(reading.source(tables="a, b"), position)[0]
    assert [(one.operation, one.collection, one.key) for one in found + more] == [
        ("create", "b", {"id": 1}),
        ("update", "b", {"id": 1}),
    ]
    reading.execute(f"DROP PUBLICATION {reading.name}")


def test_a_table_that_joins_the_publication_during_a_run_comes_once(reading: PostgresReading) -> None:
    """The next run copies it. What is left of a table that is dropped comes all the same."""
    reading.execute(f"{TABLE}; CREATE TABLE c (LIKE a INCLUDING ALL); CREATE PUBLICATION {reading.name} FOR TABLE a, c")
    source = reading.source()
    _, position = drained(source)
    reading.execute(f"CREATE TABLE b (LIKE a INCLUDING ALL); ALTER PUBLICATION {reading.name} ADD TABLE b")
    reading.execute("INSERT INTO b VALUES (1, 1); INSERT INTO a VALUES (1, 1)")
    found, position = drained(source, position)
    source.close()
    reading.execute("INSERT INTO b VALUES (2, 2); INSERT INTO c VALUES (1, 1); DROP TABLE c")
    more, position = drained(reading.source(), position)
    reading.execute("INSERT INTO b VALUES (3, 3)")
    more += drained(reading.source(), position)[0]
    assert [(one.operation, one.collection, one.key) for one in found + more] == [
        ("create", "a", {"id": 1}),
        ("snapshot", "b", {"id": 1}),
        ("snapshot", "b", {"id": 2}),
        ("create", "c", {"id": 1}),
        ("create", "b", {"id": 3}),
    ]


def test_a_planned_copy_is_given_up_with_its_snapshot(reading: PostgresReading) -> None:
    """The next run plans those rows again, under its own snapshot."""
    reading.execute(f"{TABLE}; INSERT INTO a VALUES (1, 1)")
    source = reading.source()
    end = travelled(source.latest(source.initial(), Limit(5, WIDE)))
    assert not source.gives_up(source.initial(), end)
    source.close()
    later = reading.source()
    assert later.gives_up(later.initial(), end)
    _, position = drained(later)
    reading.execute("INSERT INTO a VALUES (2, 2)")
    assert not reading.source().gives_up(position, drained(later, position)[1])


def test_a_copy_whose_snapshot_is_lost_is_never_read_under_another(reading: PostgresReading) -> None:
    reading.execute(f"{TABLE}; INSERT INTO a VALUES (1, 1)")
    source = reading.source()
    end = source.latest(source.initial(), Limit(5, WIDE))
    splits = source.split(source.initial(), end, 1)
    ours = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname ="
    reading.execute(f"{ours} current_database()")
    reading.execute("INSERT INTO a VALUES (2, 2)")
    with pytest.raises(TransientError):
        list(source.read(splits[0], ALL_KEYS))
    with pytest.raises(TransientError):
        source.split(source.initial(), end, 1)
    # as the engine does then: the run ends, and its step is planned again
    source.close()
    assert [one.key for one in drained(reading.source())[0]] == [{"id": 1}, {"id": 2}]


def test_a_truncate_between_two_parts_of_a_copy_has_no_record(reading: PostgresReading) -> None:
    position = half_copied(reading)
    reading.execute("TRUNCATE a; INSERT INTO a VALUES (7, 7)")
    source = reading.source()
    end = source.latest(position, Limit(100, WIDE))
    assert [one.key for one in records_of(source, position, end)] == [{"id": 7}]
    end = travelled(end)
    with pytest.raises(Exception, match="truncated between two parts") as caught:
        drained(source, end)
    assert getattr(caught.value, "code", "") == "postgres.truncated_copy"


def test_a_table_that_was_made_anew_is_copied_anew(reading: PostgresReading) -> None:
    """It left the publication with the old one, and nothing else reports its first rows."""
    reading.execute(f"{TABLE}; CREATE TABLE b (LIKE a INCLUDING ALL); INSERT INTO a VALUES (1, 1)")
    source = reading.source(tables="a, b")
    _, position = drained(source)
    source.close()
    reading.execute(f"DROP TABLE a; {TABLE}; INSERT INTO a VALUES (2, 2)")
    found, position = drained(reading.source(tables="a, b"), position)
    reading.execute("INSERT INTO a VALUES (3, 3)")
    found += drained(reading.source(tables="a, b"), position)[0]
    assert [(one.operation, one.key) for one in found] == [("snapshot", {"id": 2}), ("create", {"id": 3})]


def test_a_key_of_characters_is_compared_as_a_whole(reading: PostgresReading) -> None:
    """``character`` without a length has one character."""
    reading.execute("CREATE TABLE a (id char(3) PRIMARY KEY); CREATE TABLE b (id bit(4) PRIMARY KEY)")
    reading.execute("INSERT INTO a SELECT 'ab' || i FROM generate_series(1, 6) i")
    reading.execute("INSERT INTO b SELECT i::bit(4) FROM generate_series(1, 6) i")
    source = reading.source()
    found, _ = drained(source, limit=Limit(2, 10**9))
    assert [one.key for one in found] == [
        *({"id": f"ab{i}"} for i in range(1, 7)),
        *({"id": f"{i:04b}"} for i in range(1, 7)),
    ]


def test_planning_a_copy_reads_no_large_values(reading: PostgresReading) -> None:
    """Each step estimates the width of its rows. It read the values for that, of more rows than the step has."""
    reading.execute("CREATE TABLE a (id bigint PRIMARY KEY, v text)")
    reading.execute("ALTER TABLE a ALTER v SET STORAGE EXTERNAL")
    reading.execute("INSERT INTO a SELECT i, repeat('x', 100000) FROM generate_series(1, 20) i")
    counts = "SELECT idx_blks_hit + idx_blks_read, toast_blks_hit + toast_blks_read FROM pg_statio_user_tables"
    (indexed, toasted), source = reading.execute(counts)[0], reading.source()
    end = travelled(source.latest(source.initial(), Limit(100, 300_000)))
    assert sum(split.records or 0 for split in source.split(source.initial(), end, 2)) == 2
    reading.end_sources()
    wait_until(lambda: reading.execute(counts)[0][0] > indexed, "the server has counted what was read")
    assert reading.execute(counts)[0][1] == toasted


def test_parts_have_one_size_whichever_table_they_are_of(reading: PostgresReading) -> None:
    """A table of two rows was two parts, each with connections of its own."""
    reading.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    reading.execute("INSERT INTO a SELECT generate_series(1, 10); INSERT INTO b VALUES (1), (2)")
    source = reading.source()
    end = source.latest(source.initial(), Limit(100, WIDE))
    splits = source.split(source.initial(), end, 3)
    assert [split.records for split in splits] == [4, 4, 2, 2]
    assert len(records_of(source, source.initial(), end, 3)) == 12


def test_a_step_copies_some_of_very_many_tables(reading: PostgresReading, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its splits names all tables: with three thousand in a step, that was hundreds of megabytes."""
    monkeypatch.setattr("conduit_dagster.connectors.postgres.table_copies._MOST_TABLES", 2)
    for table in "abc":
        reading.execute(f"CREATE TABLE {table} (id int PRIMARY KEY); INSERT INTO {table} VALUES (1)")
    source = reading.source()
    first = source.latest(source.initial(), Limit(100, WIDE))
    assert list(first["copied"]) == ["public.a", "public.b"]
    records, _ = drained(source, first)
    assert [record.collection for record in records] == ["c"]
