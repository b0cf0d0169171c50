"""The postgres source: rows first, then every change, as records."""

from __future__ import annotations

from typing import Any

import pytest
from lab.postgres_reading import PostgresReading, drained, records_of, told, travelled

from conduit_dagster.builtin_plugins import SOURCES
from conduit_dagster.record import CREATED_AT, mode_of
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Keys, Limit, ReadOptions, Split

TABLE = "CREATE TABLE a (id bigint PRIMARY KEY, t text)"


def test_it_is_known_by_its_name() -> None:
    found = SOURCES.find("builtin:postgres", {})
    assert found is not None and found.name == "postgres"


# -- rows ---------------------------------------------------------------------------------------------------------


def test_rows_come_in_the_order_of_their_keys(reading: PostgresReading) -> None:
    reading.execute(f"{TABLE}; INSERT INTO a SELECT i, 't' || i FROM generate_series(30, 1, -1) i")
    records, position = drained(reading.source())
    assert [told(record) for record in records] == [
        ("snapshot", "a", {"id": i}, None, {"id": i, "t": f"t{i}"}) for i in range(1, 31)
    ]
    assert {mode_of(record) for record in records} == {"copy"}
    assert reading.source().collection_modes(position) == {"a": "complete"}


def test_tables_of_other_schemas_have_their_schema_in_their_name(reading: PostgresReading) -> None:
    reading.execute(
        f'{TABLE}; CREATE SCHEMA s; CREATE TABLE s."T x" (k text PRIMARY KEY); INSERT INTO s."T x" VALUES (1)'
    )
    source = reading.source(tables='a, s."T x"')
    records, position = drained(source)
    assert [record.collection for record in records] == ["s.T x"]
    reading.execute('INSERT INTO s."T x" VALUES (2)')
    assert [told(one) for one in drained(source, position)[0]] == [("create", "s.T x", {"k": "2"}, None, {"k": "2"})]


def test_a_star_is_all_tables_of_the_schema(reading: PostgresReading) -> None:
    reading.execute(f"{TABLE}; CREATE TABLE b (LIKE a INCLUDING ALL); CREATE SCHEMA s; CREATE TABLE s.c (LIKE a)")
    reading.execute("INSERT INTO a VALUES (1); INSERT INTO b VALUES (2); INSERT INTO s.c VALUES (3)")
    records, _ = drained(reading.source(tables="*"))
    assert [record.collection for record in records] == ["a", "b"]


def test_a_composite_key_orders_and_cuts_a_copy(reading: PostgresReading) -> None:
    reading.execute("CREATE TABLE a (x text, y int, v int, PRIMARY KEY (y, x))")
    reading.execute("INSERT INTO a SELECT chr(97 + i % 3), i / 3, i FROM generate_series(0, 29) i")
    records, _ = drained(reading.source(), limit=Limit(4, 10**9))
    rows = reading.execute("SELECT v FROM a ORDER BY y, x")
    assert [(record.after or {})["v"] for record in records] == [row[0] for row in rows]  # type: ignore[index]
    assert records[4].key == {"y": 1, "x": "b"}


def test_awkward_texts_and_nulls(reading: PostgresReading) -> None:
    texts = ["", "a\tb", "a\nb\r", "back\\slash", "\\N", "\\.", "é 😀", "\x01\x1f\x7f", None]
    reading.execute("CREATE TABLE a (id int PRIMARY KEY, t text)")
    for number, text in enumerate(texts):
        reading.execute("INSERT INTO a VALUES (%s, %s)", number, text)
    source = reading.source()
    copied, position = drained(source)
    reading.execute("UPDATE a SET id = id + 100")
    changed, _ = drained(source, position)
    for records in (copied, changed):
        assert [record.after["t"] for record in records] == texts  # type: ignore[index, call-overload]


def test_a_partitioned_table_is_one_collection(reading: PostgresReading) -> None:
    reading.execute("CREATE TABLE a (id int PRIMARY KEY, t text) PARTITION BY RANGE (id)")
    reading.execute("CREATE TABLE a1 PARTITION OF a FOR VALUES FROM (0) TO (10)")
    reading.execute("CREATE TABLE a2 PARTITION OF a FOR VALUES FROM (10) TO (20); INSERT INTO a VALUES (1), (11)")
    source = reading.source()
    copied, position = drained(source)
    reading.execute("INSERT INTO a VALUES (2), (12)")
    changed, _ = drained(source, position)
    assert [(one.collection, one.key) for one in copied + changed] == [("a", {"id": i}) for i in (1, 11, 2, 12)]


def test_initial_only_copies_and_leaves_no_slot(reading: PostgresReading) -> None:
    reading.execute(f"{TABLE}; INSERT INTO a VALUES (1), (2)")
    source = reading.source(snapshotMode="initial_only")
    records, position = drained(source)
    reading.execute("INSERT INTO a VALUES (3)")
    assert len(records) == 2 and drained(source, position)[0] == []
    assert reading.execute("SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", reading.name) == [(0,)]


def test_never_reads_changes_alone(reading: PostgresReading) -> None:
    reading.execute("CREATE TABLE a (t text); INSERT INTO a VALUES ('before')")
    source = reading.source(snapshotMode="never")
    records, position = drained(source)
    assert records == []
    reading.execute("INSERT INTO a VALUES ('after')")
    # without a primary key a change has no key
    assert [told(one) for one in drained(source, position)[0]] == [("create", "a", None, None, {"t": "after"})]


# -- changes ------------------------------------------------------------------------------------------------------


def test_changes_come_in_the_order_of_commits(reading: PostgresReading) -> None:
    reading.execute(f"{TABLE}; INSERT INTO a VALUES (1, 'x'), (2, 'y')")
    source = reading.source()
    _, position = drained(source)
    reading.execute("INSERT INTO a VALUES (3, 'z')")
    reading.execute("UPDATE a SET t = 'Y' WHERE id = 2; DELETE FROM a WHERE id = 1; UPDATE a SET id = 9 WHERE id = 3")
    records, _ = drained(source, position)
    assert [told(record) for record in records] == [
        ("create", "a", {"id": 3}, None, {"id": 3, "t": "z"}),
        ("update", "a", {"id": 2}, None, {"id": 2, "t": "Y"}),
        ("delete", "a", {"id": 1}, {"id": 1}, None),
        ("update", "a", {"id": 9}, {"id": 3}, {"id": 9, "t": "z"}),
    ]
    first, *rest = [record.metadata for record in records]
    assert {m["postgres.lsn"] for m in rest} != {first["postgres.lsn"]} and len({m["postgres.xid"] for m in rest}) == 1
    assert abs(int(first[CREATED_AT]) - reading.execute("SELECT (extract(epoch FROM now()) * 1e9)::int8")[0][0]) < 6e10


def test_a_full_identity_tells_the_row_before(reading: PostgresReading) -> None:
    reading.execute(f"{TABLE}; ALTER TABLE a REPLICA IDENTITY FULL; INSERT INTO a VALUES (1, 'x')")
    source = reading.source()
    _, position = drained(source)
    reading.execute("UPDATE a SET t = 'y'; DELETE FROM a")
    assert [told(record) for record in drained(source, position)[0]] == [
        ("update", "a", {"id": 1}, {"id": 1, "t": "x"}, {"id": 1, "t": "y"}),
        ("delete", "a", {"id": 1}, {"id": 1, "t": "y"}, None),
    ]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("DROP TABLE a", None),
        ("DROP TABLE a; CREATE TABLE a (k text PRIMARY KEY)", None),
        ("ALTER TABLE a RENAME TO c", {"id": 1}),
    ],
)
def test_changes_of_a_table_that_is_gone_by_now_are_told(reading: PostgresReading, change: str, key: Any) -> None:
    """With a full identity only the catalogue knows the key, and it is queried too late."""
    reading.execute(f"{TABLE}; CREATE TABLE b (id int PRIMARY KEY); ALTER TABLE a REPLICA IDENTITY FULL")
    source = reading.source()
    _, position = drained(source)
    reading.execute(f"INSERT INTO a VALUES (1, 'x'); DELETE FROM a; {change}; INSERT INTO b VALUES (2)")
    row = {"id": 1, "t": "x"}
    assert [told(record) for record in drained(source, position)[0]] == [
        ("create", "a", key, None, row),
        ("delete", "a", key, row, None),
        ("create", "b", {"id": 2}, None, {"id": 2}),
    ]


def test_an_identity_by_index_is_the_key(reading: PostgresReading) -> None:
    reading.execute("CREATE TABLE a (id int, u text NOT NULL UNIQUE, t text); INSERT INTO a VALUES (1, 'k', 'x')")
    reading.execute("ALTER TABLE a REPLICA IDENTITY USING INDEX a_u_key")
    source = reading.source()
    copied, position = drained(source)
    reading.execute("DELETE FROM a")
    assert [one.key for one in copied + drained(source, position)[0]] == [{"u": "k"}] * 2


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_a_large_value_that_was_not_touched_is_never_null(reading: PostgresReading, identity: str) -> None:
    reading.execute("CREATE TABLE a (id int PRIMARY KEY, big text, n int)")
    reading.execute(f"ALTER TABLE a ALTER big SET STORAGE EXTERNAL; ALTER TABLE a REPLICA IDENTITY {identity}")
    reading.execute("INSERT INTO a VALUES (1, repeat('x', 9000), 1)")
    source = reading.source()
    _, position = drained(source)
    reading.execute("UPDATE a SET n = 2")
    (record,), _ = drained(source, position)
    if identity == "FULL":
        assert record.after == {"id": 1, "big": "x" * 9000, "n": 2}
    else:
        assert record.after == {"id": 1, "n": 2}
        assert record.metadata["postgres.unchanged_toast"] == "big"


def test_a_truncate_is_one_record_for_each_table(reading: PostgresReading) -> None:
    reading.execute(f"{TABLE}; CREATE TABLE b (id int PRIMARY KEY)")
    source = reading.source()
    _, position = drained(source)
    reading.execute("TRUNCATE a, b")
    records, _ = drained(source, position)
    assert sorted(told(record)[:3] for record in records) == [("delete", "a", None), ("delete", "b", None)]
    assert {record.metadata["postgres.truncate"] for record in records} == {"true"}


def test_columns_may_come_go_and_change_while_it_reads(reading: PostgresReading) -> None:
    reading.execute(f"{TABLE}; INSERT INTO a VALUES (1, '7')")
    source = reading.source()
    _, position = drained(source)
    reading.execute("INSERT INTO a VALUES (2, '8'); ALTER TABLE a ADD c int; INSERT INTO a VALUES (3, '9', 5)")
    reading.execute("ALTER TABLE a RENAME t TO u; INSERT INTO a VALUES (4, '10', 6)")
    reading.execute("ALTER TABLE a ALTER u TYPE int USING u::int; INSERT INTO a VALUES (5, 11, 7)")
    reading.execute("ALTER TABLE a DROP c; INSERT INTO a VALUES (6, 12)")
    assert [record.after for record in drained(source, position)[0] if record.operation == "create"] == [
        {"id": 2, "t": "8"},
        {"id": 3, "t": "9", "c": 5},
        {"id": 4, "u": "10", "c": 6},
        {"id": 5, "u": 11, "c": 7},
        {"id": 6, "u": 12},
    ]


def test_tables_that_are_not_named_are_left_out(reading: PostgresReading) -> None:
    """Also if a publication of others has them."""
    reading.execute(f"{TABLE}; CREATE TABLE b (id int PRIMARY KEY); CREATE PUBLICATION {reading.name} FOR ALL TABLES")
    source = reading.source(tables="a")
    _, position = drained(source)
    reading.execute("INSERT INTO b VALUES (1); INSERT INTO a VALUES (2); TRUNCATE b; INSERT INTO b VALUES (3)")
    assert [record.key for record in drained(source, position)[0]] == [{"id": 2}]
    reading.execute(f"DROP PUBLICATION {reading.name}")


# -- positions ----------------------------------------------------------------------------------------------------


def test_a_transaction_can_be_cut_anywhere(reading: PostgresReading) -> None:
    """As if a nack beyond the threshold cut a step: each part is read once, also by another process."""
    reading.execute(TABLE)
    _, start = drained(reading.source())
    reading.execute("INSERT INTO a SELECT i FROM generate_series(1, 9) i; DELETE FROM a WHERE id < 4")
    reading.execute("INSERT INTO a VALUES (50)")
    records, end = drained(reading.source(), start, acks=False)
    assert len(records) == 13
    (split,) = reading.source().split(start, end, 2)
    bounds = [b.boundary(i) for b in reading.source().read(split, ReadOptions()) for i in range(len(b.records))]  # type: ignore[union-attr]
    for place, bound in enumerate(travelled(bounds), 1):
        source = reading.source()
        assert records_of(source, start, bound) == records[:place]
        assert records_of(source, bound, end) == records[place:]


@pytest.mark.parametrize("keys", list(Keys))
def test_positions_that_are_left_out_can_be_filled_in(reading: PostgresReading, keys: Keys) -> None:
    reading.execute(f"{TABLE}; INSERT INTO a SELECT i FROM generate_series(1, 9) i")
    source = reading.source()
    copied = source.latest(source.initial(), Limit(100, 10**9))
    reading.execute("INSERT INTO a SELECT i FROM generate_series(20, 29) i")
    changed = source.latest(copied, Limit(100, 10**9))
    for start, end in ((source.initial(), copied), (copied, changed)):
        (split,) = source.split(start, end, 1)
        whole = [one for block in source.read(split, ReadOptions(block_records=4)) for one in block.records]  # type: ignore[union-attr]
        found: list[Any] = []
        for block in source.read(split, ReadOptions(keys, block_records=4)):
            assert not isinstance(block, list) and block.complete and block.positions
            assert [str(p) for p in block.positions()] == [
                one.position for one in whole[len(found) :][: len(block.records)]
            ]
            for place, record in enumerate(block.records):
                block.complete(place, record)
            found += block.records
        assert found == whole and len({one.position for one in found}) == len(found)


def test_a_range_is_read_again_until_it_is_acked(reading: PostgresReading) -> None:
    reading.execute(TABLE)
    source = reading.source()
    _, start = drained(source)
    reading.execute("INSERT INTO a SELECT i FROM generate_series(1, 5) i")
    records, end = drained(source, start, acks=False)
    source.close()
    for _ in range(2):
        assert records_of(reading.source(), start, end) == records
    source = reading.source()
    reading.await_idle()
    source.ack(end, 1)
    source.close()
    with pytest.raises(FatalError) as caught:
        reading.source().verify(start, end)
    assert caught.value.code == "postgres.slot_moved"


def test_acks_reach_the_server_with_the_next_read(reading: PostgresReading) -> None:
    """A lost connection to the slot costs nothing: durable positions are confirmed by the next reader."""
    reading.execute(TABLE)
    source = reading.source()
    _, start = drained(source)
    reading.execute("INSERT INTO a VALUES (1)")
    end = source.latest(start, Limit(10, 10**9))
    records_of(source, start, end)
    source.ack(end, 1)
    before = reading.confirmed()
    reading.execute("INSERT INTO a VALUES (2)")
    further = source.latest(end, Limit(10, 10**9))
    assert [one.key for one in records_of(source, end, further)] == [{"id": 2}]
    assert before < reading.confirmed() <= int(reading.execute("SELECT %s::pg_lsn - '0/0'::pg_lsn", end["lsn"])[0][0])
    # an ack of an older generation, as of a thawed owner, is ignored
    source.ack(further, 0)
    source.close()
    assert reading.confirmed() < int(reading.execute("SELECT %s::pg_lsn - '0/0'::pg_lsn", further["lsn"])[0][0])


# -- a quiet database ---------------------------------------------------------------------------------------------


def test_changes_of_others_are_no_steps(reading: PostgresReading) -> None:
    reading.execute(f"{TABLE}; CREATE SCHEMA other; CREATE TABLE other.o (id int)")
    source = reading.source()
    _, position = drained(source)
    for number in range(5):
        reading.execute("INSERT INTO other.o VALUES (%s)", number)
        assert source.latest(position, Limit(10, 10**9)) == position
        assert source.lag(position) == 0
    reading.execute("INSERT INTO a VALUES (1)")
    further = source.latest(position, Limit(10, 10**9))
    assert [one.key for one in records_of(source, position, further)] == [{"id": 1}]


def test_the_server_need_not_keep_what_is_not_ours(reading: PostgresReading) -> None:
    """After 16 MiB, or after the heartbeat, the position advances by a step without records."""
    reading.execute(f"{TABLE}; CREATE SCHEMA other; CREATE TABLE other.o (t text)")
    reading.execute("ALTER TABLE other.o ALTER t SET STORAGE EXTERNAL")
    source = reading.source()
    _, position = drained(source)
    reading.execute("INSERT INTO other.o SELECT repeat(md5(i::text), 300) FROM generate_series(1, 2000) i")
    further = source.latest(position, Limit(10, 10**9))
    assert further != position and records_of(source, position, further) == []
    before = reading.confirmed()
    reading.await_idle()
    source.ack(further, 1)
    source.close()
    assert reading.confirmed() - before > 16 << 20
    beating = reading.source(heartbeat="0.01s")
    reading.execute("INSERT INTO other.o VALUES ('x')")
    while (again := beating.latest(further, Limit(10, 10**9))) == further:
        pass
    assert records_of(beating, further, again) == []


def test_lag_is_in_bytes_of_wal(reading: PostgresReading) -> None:
    reading.execute(TABLE)
    source = reading.source()
    _, position = drained(source)
    reading.execute("INSERT INTO a SELECT i, repeat('x', 100) FROM generate_series(1, 1000) i")
    lag = source.lag(position)
    assert lag is not None and 100_000 < lag < 1_000_000
    assert source.lag(source.initial()) is None


def test_a_split_is_plain_json(reading: PostgresReading) -> None:
    """It is sent to the tasks, and into the state store."""
    reading.execute(f"{TABLE}; INSERT INTO a SELECT i FROM generate_series(1, 30) i")
    source = reading.source()
    end = source.latest(source.initial(), Limit(100, 10**9))
    splits = source.split(source.initial(), end, 4)
    assert [split.records for split in splits] == [8, 8, 8, 6] and [split.ordinal for split in splits] == [0, 8, 16, 24]
    for split in splits:
        assert isinstance(travelled(split), Split) and travelled(split) == split
        assert "postgresql://" not in repr(split)


def test_a_command_that_only_looks_makes_nothing(reading: PostgresReading) -> None:
    """A dry run shows rows, a rewind checks a position: neither leaves a slot that keeps WAL forever."""
    reading.execute(f"{TABLE}; INSERT INTO a SELECT i FROM generate_series(1, 30) i")
    looking = reading.source(runs=False)
    end = looking.latest(looking.initial(), Limit(3, 10**9))
    assert [one.key for one in records_of(looking, looking.initial(), end)] == [{"id": 1}, {"id": 2}, {"id": 3}]
    looking.close()
    for made in ("pg_replication_slots WHERE slot_name", "pg_publication WHERE pubname"):
        assert reading.execute(f"SELECT count(*) FROM {made} = %s", reading.name) == [(0,)]
    source = reading.source()
    _, position = drained(source)
    source.close()
    reading.execute("INSERT INTO a VALUES (99)")
    looking = reading.source(runs=False)
    assert looking.latest(position, Limit(1, 1)) == position
    with pytest.raises(FatalError, match="a different database cluster"):
        looking.latest({**position, "server": "1"}, Limit(1, 1))
    with pytest.raises(FatalError, match="beyond our position"):
        looking.latest({**position, "lsn": "0/1"}, Limit(1, 1))
