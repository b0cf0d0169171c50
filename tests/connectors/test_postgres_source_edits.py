"""The postgres source after edits, migrations and accidents: rows come once more, or one error says why they can't."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from lab.postgres_reading import WHOLE, PostgresReading, drained, records_of, travelled
from lab.postgres_server import PostgresServer, installations
from lab.postgres_tables import drop_slots
from lab.support import Lab, queue
from lab.waiting import wait_until
from pyspark.sql import SparkSession

from conduit_dagster.connectors.postgres import publication
from conduit_dagster.connectors.postgres.source import PostgresSource
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError
from conduit_dagster.sdk import Limit, Position

pytestmark = pytest.mark.slow
TABLE = "CREATE TABLE a (id int PRIMARY KEY)"
TWO = Limit(2, 10**9)


def ids(records: list[Record]) -> list[Any]:
    return [record.key["id"] for record in records if isinstance(record.key, dict)]


def half(reading: PostgresReading, **settings: Any) -> tuple[list[Record], Position]:
    """Copy the first two rows, and end the run."""
    source = reading.source(**settings)
    end = travelled(source.latest(source.initial(), TWO, source.horizon()))
    found = records_of(source, source.initial(), end)
    source.ack(end, 1)
    source.close()
    return found, end


def read(reading: PostgresReading, start: Position, **settings: Any) -> tuple[list[Record], Position]:
    """Read everything from a position on, in a run of its own."""
    source = reading.source(**settings)
    try:
        return drained(source, start)
    finally:
        source.close()


@pytest.mark.parametrize("accident", ["busy", "no key"])
def test_a_table_made_anew_is_copied_although_a_run_failed_in_between(reading: PostgresReading, accident: str) -> None:
    reading.execute(f"{TABLE}; INSERT INTO a VALUES (1); CREATE TABLE b (id int PRIMARY KEY)")
    _, position = read(reading, {}, tables="a, b")
    key = "PRIMARY KEY" if accident == "busy" else "NOT NULL"
    reading.execute(f"DROP TABLE a; CREATE TABLE a (id int {key}); INSERT INTO a VALUES (2), (3)")
    with closing(psycopg.connect(reading.url)) as other:
        if accident == "busy":
            other.execute("INSERT INTO b VALUES (77)")
        source = reading.source(tables="a, b", **{"lock-timeout": "200ms"})
        with pytest.raises(ConduitError):  # some steps may pass before
            while (further := travelled(source.latest(position, WHOLE, None))) != position:
                records_of(source, position, further)
                source.ack(further, 1)
                position = further
        source.close()
    if accident == "no key":
        reading.execute("ALTER TABLE a ADD PRIMARY KEY (id)")
    reading.execute("INSERT INTO a VALUES (4)")
    found, _ = read(reading, position, tables="a, b")
    assert {2, 3, 4} <= set(ids(found))


def test_a_table_can_not_be_rewritten_while_another_is_copied(reading: PostgresReading) -> None:
    """Under the copy's snapshot it would look empty."""
    reading.execute(f"{TABLE}; INSERT INTO a SELECT generate_series(1, 4)")
    reading.execute("CREATE TABLE b (id int PRIMARY KEY, v int); INSERT INTO b VALUES (1, 1), (2, 2)")
    source = reading.source(tables="a, b")
    end = source.latest(source.initial(), TWO, source.horizon())
    found = records_of(source, source.initial(), end)
    with pytest.raises(psycopg.errors.LockNotAvailable):
        reading.execute("SET lock_timeout = '200ms'; ALTER TABLE b ALTER COLUMN v TYPE bigint")
    more, _ = drained(source, travelled(end), TWO)
    assert ids(found + more) == [1, 2, 3, 4, 1, 2]


def test_rows_that_a_policy_hides_are_no_empty_table(reading: PostgresReading) -> None:
    reading.execute(f"{TABLE}; INSERT INTO a VALUES (1); ALTER TABLE a ENABLE ROW LEVEL SECURITY")
    role = "CREATE ROLE reader LOGIN REPLICATION PASSWORD 'x'"
    reading.execute(f"DO $$ BEGIN {role}; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    reading.execute("GRANT SELECT ON a TO reader; GRANT USAGE ON SCHEMA public TO reader")
    reading.execute(f'CREATE PUBLICATION "{reading.name}" FOR TABLE a WITH (publish_via_partition_root = true)')
    url = re.sub(r"//[^@]*@", "//reader:x@", reading.url)
    with pytest.raises(FatalError, match="row-level security") as error:
        drained(reading.source(tables="a", url=url))
    assert "BYPASSRLS" in (error.value.fix or "")
    # doctor said that a run would go
    for more in ({}, {"cdcMode": "long_polling", "snapshotMode": "never"}):
        with pytest.raises(FatalError, match="row-level security") as error:
            reading.source(tables="a", url=url, runs=False, **more).check()
        assert "BYPASSRLS" in (error.value.fix or "")
    # of changes nothing is hidden
    reading.source(tables="a", url=url, runs=False, snapshotMode="never").check()


def test_a_table_added_while_another_is_copied_waits_for_open_transactions(reading: PostgresReading) -> None:
    reading.execute(f"{TABLE}; INSERT INTO a SELECT generate_series(1, 4)")
    reading.execute("CREATE TABLE n (id int PRIMARY KEY); INSERT INTO n VALUES (1)")
    _, position = half(reading, tables="a")
    with closing(psycopg.connect(reading.url)) as other:
        other.execute("INSERT INTO n VALUES (2)")
        source = reading.source(tables="a, n", **{"lock-timeout": "300ms"})
        with pytest.raises(TransientError) as error:
            source.latest(position, WHOLE, source.horizon())
        assert error.value.code == "postgres.busy"
        source.close()
        other.commit()
    reading.execute("INSERT INTO n VALUES (3)")
    found, _ = read(reading, position, tables="a, n")
    assert ids([record for record in found if record.collection == "n"]) == [1, 2, 3]


def test_a_table_added_under_an_open_transaction_has_later_changes(old_server: PostgresServer, tmp_path: Path) -> None:
    """A stream of an older release that decodes that transaction first sends none of them."""
    with closing(PostgresReading(old_server.create_database(), tmp_path)) as reading:
        reading.execute(f"{TABLE}; CREATE TABLE n (id int PRIMARY KEY)")
        _, position = read(reading, {}, tables="a")
        source = reading.source(tables="a, n")
        with closing(psycopg.connect(reading.url)) as other, ThreadPoolExecutor(1) as thread:
            other.execute("INSERT INTO n VALUES (1)")
            planned = thread.submit(source.latest, position, WHOLE, None)
            published = f"SELECT 1 FROM pg_publication_tables WHERE pubname = '{reading.name}' AND tablename = 'n'"
            wait_until(lambda: bool(reading.execute(published)), "the table is published")
            other.execute("INSERT INTO n VALUES (2)")
            other.commit()
            further = travelled(planned.result())
        found = records_of(source, position, further)
        reading.execute("INSERT INTO n VALUES (3)")
        assert ids(found + drained(source, further)[0]) == [1, 2, 3]


def test_a_slot_that_sends_prepared_transactions_is_refused(reading: PostgresReading) -> None:
    """Their changes came as those of the transaction before, whether they were committed or rolled back."""
    reading.execute(f"{TABLE}; CREATE PUBLICATION {reading.name} FOR TABLE a")
    reading.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, true)", reading.name)
    with pytest.raises(FatalError, match="two_phase") as error:
        read(reading, {}, tables="a")
    assert error.value.code == "postgres.slot_unusable"


def test_changes_between_initial_only_and_initial_are_not_skipped(reading: PostgresReading) -> None:
    reading.execute(f"{TABLE}; INSERT INTO a VALUES (1)")
    _, position = read(reading, {}, tables="a", snapshotMode="initial_only")
    reading.execute("INSERT INTO a VALUES (2)")
    found, position = read(reading, position, tables="a")
    assert ids(found) == [1, 2]
    reading.execute("INSERT INTO a VALUES (3)")
    assert ids(read(reading, position, tables="a")[0]) == [3]


@pytest.mark.parametrize(
    ("publication", "change", "again"),
    [
        ("TABLE a", "DROP TABLE a; CREATE TABLE a (id int PRIMARY KEY)", [2, 3]),
        ("TABLE a", "ALTER TABLE a RENAME TO old; CREATE TABLE a (id int PRIMARY KEY)", [2, 3]),
        ("ALL TABLES", "DROP TABLE a; CREATE TABLE a (id int PRIMARY KEY)", []),
    ],
)
def test_another_table_that_is_published_again_is_copied_again(
    reading: PostgresReading, publication: str, change: str, again: list[int]
) -> None:
    """By its owner: row 2 came before that. With all tables the stream has it."""
    reading.execute(f"{TABLE}; INSERT INTO a VALUES (1); CREATE PUBLICATION {reading.name} FOR {publication}")
    _, position = read(reading, {}, tables="a")
    reading.execute(f"{change}; INSERT INTO a VALUES (2)")
    if publication == "TABLE a":
        reading.execute(f"ALTER PUBLICATION {reading.name} ADD TABLE a")
    reading.execute("INSERT INTO a VALUES (3)")
    found, position = read(reading, position, tables="a")
    reading.execute("INSERT INTO a VALUES (4)")
    found += read(reading, position, tables="a")[0]
    copied = [record for record in found if record.operation == "snapshot"]
    assert ids(found) == [2, 3, 4] and ids(copied) == again


def test_a_table_that_was_left_out_for_a_while_is_copied_again(reading: PostgresReading) -> None:
    reading.execute(f"{TABLE}; INSERT INTO a VALUES (1); CREATE TABLE b (id int PRIMARY KEY)")
    _, position = read(reading, {}, tables="a, b")
    reading.execute("INSERT INTO a VALUES (2); INSERT INTO b VALUES (1)")
    _, position = read(reading, position, tables="b")
    reading.execute("INSERT INTO a VALUES (3)")
    found, _ = read(reading, position, tables="a, b")
    assert {1, 2, 3} <= set(ids([record for record in found if record.collection == "a"]))


def test_a_row_that_moves_between_two_parts_of_its_copy_is_whole_or_refused(reading: PostgresReading) -> None:
    reading.execute("CREATE TABLE a (id int PRIMARY KEY, big text); ALTER TABLE a ALTER big SET STORAGE EXTERNAL")
    reading.execute("INSERT INTO a SELECT g, repeat('x', 5000) FROM generate_series(1, 4) g")
    _, position = half(reading, tables="a")
    reading.execute("UPDATE a SET id = 0 WHERE id = 4")
    with pytest.raises(FatalError) as error:
        read(reading, position, tables="a")
    assert error.value.code == "postgres.moved_row"


def test_a_row_that_moves_into_the_filter_of_the_publication_is_whole_or_refused(reading: PostgresReading) -> None:
    """The server sends it as a new row, without the large values that the update did not touch."""
    reading.execute("CREATE TABLE a (id int PRIMARY KEY, big text); ALTER TABLE a ALTER big SET STORAGE EXTERNAL")
    reading.execute(f"CREATE PUBLICATION {reading.name} FOR TABLE a WHERE (id < 10)")
    reading.execute("INSERT INTO a VALUES (11, 'small'), (12, repeat('x', 5000))")
    _, position = read(reading, {}, tables="a")
    reading.execute("UPDATE a SET id = 1 WHERE id = 11")
    found, position = read(reading, position, tables="a")
    assert [record.after for record in found] == [{"id": 1, "big": "small"}]
    reading.execute("UPDATE a SET id = 2 WHERE id = 12")
    with pytest.raises(FatalError, match=r"filter.*: big") as error:
        read(reading, position, tables="a")
    assert error.value.code == "postgres.moved_row"
    assert ids(read(reading, {}, tables="a")[0]) == [1, 2]


def test_a_large_key_is_known_although_the_server_sends_it_once(reading: PostgresReading) -> None:
    reading.execute("CREATE TABLE a (k text PRIMARY KEY, v int); ALTER TABLE a ALTER k SET STORAGE EXTERNAL")
    reading.execute(
        "INSERT INTO a SELECT (SELECT string_agg(md5(g::text || i::text), '') FROM generate_series(1, 80) i), g"
        " FROM generate_series(1, 4) g"
    )
    before, position = half(reading, tables="a")
    reading.execute("UPDATE a SET v = v + 100")
    found, _ = read(reading, position, tables="a")
    state = {record.key["k"]: record.after["v"] for record in before + found}  # type: ignore[index]
    assert sorted(state.values()) == [101, 102, 103, 104]


def test_a_polled_table_made_anew_during_a_run_is_refused(reading: PostgresReading) -> None:
    reading.execute(f"{TABLE}; INSERT INTO a SELECT generate_series(1, 5)")
    source, position = reading.source(tables="a", cdcMode="long_polling"), {}
    for _ in range(3):
        further = travelled(source.latest(position, WHOLE, None))
        if further != position:
            records_of(source, position, further)
            source.ack(further, 1)
        position = further
    reading.execute(f"DROP TABLE a; {TABLE}; INSERT INTO a SELECT generate_series(1, 7)")
    with pytest.raises(FatalError) as error:
        source.latest(position, WHOLE, None)
    assert error.value.code == "postgres.order_changed"


def stepped(source: PostgresSource, position: Position) -> tuple[list[Record], Position]:
    """Read until nothing comes, within the run of this source."""
    found: list[Record] = []
    while (further := travelled(source.latest(position, WHOLE, None))) != position:
        found += records_of(source, position, further)
        source.ack(further, 1)
        position = further
    return found, position


@pytest.mark.parametrize("mode", ["initial", "never"])
def test_a_table_that_leaves_the_publication_during_a_run_is_published_and_copied_again(
    reading: PostgresReading, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Its changes are not in the stream, and nothing said so until the next start."""
    reading.execute(f"{TABLE}; INSERT INTO a VALUES (1)")
    source = reading.source(tables="a", snapshotMode=mode)
    _, position = stepped(source, {})
    reading.execute(f'ALTER PUBLICATION "{reading.name}" DROP TABLE a; INSERT INTO a VALUES (2)')
    monkeypatch.setattr(publication, "_SECONDS", 0.0)
    found, position = stepped(source, position)
    reading.execute("INSERT INTO a VALUES (3)")
    more, _ = stepped(source, position)
    assert (ids(found), ids(more)) == ([1, 2] if mode == "initial" else [], [3])


@pytest.mark.parametrize("lost", ["a", "b", "c"])
def test_a_table_that_leaves_the_publication_while_tables_are_copied_has_all_rows(
    reading: PostgresReading, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Copied, in the middle of it, or waiting: its next copy shows what the stream lacks, under a later snapshot."""
    for table in "abc":
        reading.execute(f"CREATE TABLE {table} (id int PRIMARY KEY); INSERT INTO {table} SELECT generate_series(1, 4)")
    source = reading.source(tables="a, b, c")
    position = travelled(source.latest({}, Limit(6, 10**9), None))
    found = records_of(source, {}, position)
    reading.execute(f'ALTER PUBLICATION "{reading.name}" DROP TABLE {lost}; INSERT INTO {lost} VALUES (5)')
    monkeypatch.setattr(publication, "_SECONDS", 0.0)
    found += stepped(source, position)[0]
    assert set(ids([record for record in found if record.collection == lost])) == {1, 2, 3, 4, 5}


def test_a_publication_that_leaves_out_kinds_of_changes_during_a_run_ends_it(
    reading: PostgresReading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The changes are missing in the stream, and nothing said so until the next start, nor there that they are."""
    reading.execute(f"{TABLE}; INSERT INTO a VALUES (1)")
    source = reading.source(tables="a")
    _, position = stepped(source, {})
    reading.execute(f"ALTER PUBLICATION \"{reading.name}\" SET (publish = 'insert'); DELETE FROM a")
    monkeypatch.setattr(publication, "_SECONDS", 0.0)
    for run in (source, reading.source(tables="a")):
        with pytest.raises(FatalError, match="kinds of changes") as caught:
            stepped(run, position)
        assert caught.value.code == "postgres.publication" and "--to-start" in str(caught.value.fix)


def test_a_table_that_is_dropped_during_a_run_does_not_end_it(
    reading: PostgresReading, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading.execute(f"{TABLE}; CREATE TABLE b (id int PRIMARY KEY)")
    source = reading.source(tables="a, b")
    _, position = stepped(source, {})
    reading.execute("DROP TABLE b; INSERT INTO a VALUES (2)")
    monkeypatch.setattr(publication, "_SECONDS", 0.0)
    assert ids(stepped(source, position)[0]) == [2]


@pytest.fixture
def old_server() -> Iterator[PostgresServer]:
    """Of the package ``pgserver`` if it is there, whose release has faults that Debian's has not."""
    with closing(PostgresServer(installations()[-1])) as made:
        yield made


@pytest.fixture
def other_server() -> Iterator[PostgresServer]:
    with closing(PostgresServer(installations()[0])) as made:
        yield made


def test_a_slot_of_another_cluster_is_never_confirmed_or_dropped(
    postgres_server: PostgresServer, other_server: PostgresServer, tmp_path: Path
) -> None:
    """Two projects with the default names, and the wrong URL in one of them."""
    staging, production = (
        PostgresReading(server.create_database(), tmp_path) for server in (postgres_server, other_server)
    )
    production.name = staging.name
    with closing(staging), closing(production):
        for one in (staging, production):
            one.execute(f"{TABLE}; INSERT INTO a VALUES (1)")
        staging.execute("CREATE TABLE fill AS SELECT generate_series(1, 20000) i")
        _, theirs = drained(production.source(tables="a"))
        _, ours = drained(staging.source(tables="a"))
        production.execute("INSERT INTO a SELECT generate_series(2, 30000)")
        confirmed = production.confirmed()
        wrong = production.source(tables="a")
        with pytest.raises(FatalError) as error:
            wrong.ack(ours, 1)
        assert (error.value.code, production.confirmed()) == ("postgres.other_server", confirmed)
        wrong.close()
        assert len(drained(production.source(tables="a"), theirs)[0]) == 29_999


def test_rows_that_come_again_are_delivered_again(
    tmp_path: Path, spark: SparkSession, postgres_server: PostgresServer
) -> None:
    """Their step has another delivery hash than that of the first copy, although the stream has not moved."""
    origin, copy = postgres_server.create_database(), postgres_server.create_database()
    make = "CREATE TABLE a (id int PRIMARY KEY, day text)"
    fill = "INSERT INTO a SELECT g, '{}' FROM generate_series(1, 6) g"
    with (
        psycopg.connect(origin, autocommit=True) as source,
        psycopg.connect(copy, autocommit=True) as target,
    ):
        source.execute(f"{make}; {fill.format('monday')}".encode())
        target.execute(make.encode())
        lab = Lab(tmp_path, spark)
        reads = {"url": origin, "tables": "a", "logrepl.slotName": f"of_{origin.rpartition('/')[2]}"}
        writes = {"url": copy, "on-conflict": "update"}
        lab.pipeline(
            connectors=[
                {"id": "in", "type": "source", "plugin": "postgres", "settings": reads},
                {"id": "out", "type": "destination", "plugin": "postgres", "settings": writes},
            ],
            delivery={"strategy": "exactly-once", "batch-size": 2},
            **{"dead-letter-queue": queue()},
        )
        for day in ("monday", "tuesday", "wednesday"):
            if day != "monday":
                source.execute(f"DROP TABLE a; {make}; {fill.format(day)}".encode())
            assert lab.run().error is None
            assert target.execute("SELECT DISTINCT day FROM a").fetchall() == [(day,)]
    drop_slots(origin)
