"""Postgres: a record that names a missing table, or can't be stored, is nacked by itself."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from lab.postgres_lab import PostgresLab, change, child, create

from conduit_dagster.connectors.postgres.destination import PostgresDestination
from conduit_dagster.connectors.postgres.settings import STATE_TABLES
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Delivery, Rejected
from conduit_dagster.state.migrations import VERSION_TABLE
from conduit_dagster.state.tables import metadata

COLLECTION = '{{ index .Metadata "opencdc.collection" }}'


def of(collection: str, number: int, **fields: Any) -> Record:
    return Record(number, {"opencdc.collection": collection}, {"id": number, **fields})


def codes(lab: PostgresLab) -> dict[int, str]:
    return {refusal.place: refusal.nack.code.removeprefix("postgres.") for refusal in lab.refused}


def publish_each(destination: PostgresDestination, delivery: Delivery, records: int) -> dict[int, str]:
    """As the engine continues after a refusal: record by record; return which were refused, with the code."""
    found: dict[int, str] = {}
    for place in range(records):
        try:
            destination.publish(child(delivery, place))
        except Rejected as error:
            assert error.place == 0
            found[place] = error.nack.code.removeprefix("postgres.")
    return found


@pytest.mark.parametrize("create_table", ["never", "auto"])
def test_only_the_records_that_name_what_is_missing_are_nacked(lab: PostgresLab, create_table: str) -> None:
    lab.execute("CREATE TABLE a (id int)")
    destination = lab.destination(table=COLLECTION, create_table=create_table)
    names = ["a", "nowhere.t", "a", "nowhere.t", "pg_catalog.pg_class", "information_schema.tables", "a"]
    lab.deliver(destination, [of(name, number) for number, name in enumerate(names)])
    absent = "no_table" if create_table == "never" else "no_schema"
    assert codes(lab) == {1: absent, 3: absent, 4: "table_name", 5: "table_name"}
    assert lab.rows("a") == [(0,), (2,), (6,)]


def test_a_missing_table_is_looked_up_again_by_the_next_task(lab: PostgresLab) -> None:
    destination = lab.destination(table=COLLECTION)
    lab.stage(destination, [of("late", 1)])
    lab.execute("CREATE TABLE late (id int)")
    lab.deliver(destination, [of("late", 2)])
    assert (len(lab.refused), lab.rows("late")) == (1, [(2,)])


def test_no_record_writes_the_hash_of_a_delivery(lab: PostgresLab) -> None:
    """It could make another delivery look finished."""
    destination = lab.destination(table=COLLECTION)
    destination.check()
    row = {"hash": "f" * 64, "state": "delivered", "pipeline": "p", "consumer": "out", "step": 1, "records": 1}
    for name in ("conduit_deliveries", "public.conduit_deliveries", '"conduit_deliveries"'):
        lab.stage(destination, [Record(1, {"opencdc.collection": name}, row)])
    assert [refusal.nack.code for refusal in lab.refused] == ["postgres.table_name"] * 3


def test_no_record_writes_into_the_state_store(lab: PostgresLab) -> None:
    """It may be in the same database."""
    assert {*metadata.tables, VERSION_TABLE} == STATE_TABLES
    destination = lab.destination(table=COLLECTION)
    lab.stage(
        destination, [Record(1, {"opencdc.collection": name}, {"pipeline": "p"}) for name in sorted(STATE_TABLES)]
    )
    assert [refusal.nack.code for refusal in lab.refused] == ["postgres.table_name"] * len(STATE_TABLES)


def test_a_table_without_rights_is_a_nack_of_its_records(lab: PostgresLab) -> None:
    lab.execute("CREATE TABLE a (id int); CREATE TABLE closed (id int); CREATE SCHEMA s; CREATE TABLE s.t (id int)")
    user = f"u{os.urandom(4).hex()}"
    lab.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'x'; GRANT ALL ON SCHEMA public TO {user}")
    lab.execute(f"GRANT ALL ON a TO {user}; GRANT ALL ON s.t TO {user}")
    try:
        at = lab.url.partition("@")[2]
        destination = lab.destination(table=COLLECTION, url=f"postgresql://{user}:x@{at}")
        lab.deliver(destination, [of("a", 1), of("closed", 2), of("s.t", 3), of("a", 4)])
        destination.close()
        assert (codes(lab), lab.rows("a")) == ({1: "no_privilege", 2: "no_privilege"}, [(1,), (4,)])
    finally:
        lab.execute(f"DROP OWNED BY {user}; DROP ROLE {user}")


@pytest.mark.parametrize("lost", ["DROP TABLE b", "ALTER TABLE b DROP id"])
def test_what_is_dropped_after_staging_refuses_its_own_records(lab: PostgresLab, lost: str) -> None:
    """The others of the delivery are delivered, each once, also if it is repeated."""
    lab.execute("CREATE TABLE a (id int); CREATE TABLE b (id int)")
    destination = lab.destination(table=COLLECTION)
    delivery = lab.stage(destination, [of("a", 1), of("b", 2), of("a", 3)])
    lab.execute(lost)
    with pytest.raises(Rejected) as caught:
        destination.publish(delivery)
    assert caught.value.place == 1
    assert lab.rows("a") == []
    for _ in range(2):
        assert publish_each(destination, delivery, 3) == {1: "no_table" if "DROP TABLE" in lost else "no_column"}
    assert lab.rows("a") == [(1,), (3,)]


@pytest.mark.parametrize("unmapped", ["error", "ignore"])
@pytest.mark.parametrize("operation", ["create", "update", "snapshot"])
def test_a_column_that_is_dropped_after_staging_is_one_that_was_never_there(
    lab: PostgresLab, operation: str, unmapped: str
) -> None:
    """Also for the lines of a minute afterwards, in which processes have the table as it was."""
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v text, gone text)")
    destination = lab.destination(unmapped=unmapped)
    records = [change(operation, 1, v="a", gone="x"), change(operation, 2, v="b", gone=None)]
    delivery = lab.stage(destination, records)
    lab.execute("ALTER TABLE t DROP gone")
    assert publish_each(destination, delivery, 2) == ({0: "unmapped"} if unmapped == "error" else {})
    destination.publish(lab.stage(destination, [change(operation, 3, v="c", gone=None)]))
    kept = [(1, "a"), (2, "b"), (3, "c")]
    assert lab.rows() == kept[1 if unmapped == "error" else 0 :]


def test_one_fixed_table_that_is_missing_fails_unless_told_otherwise(lab: PostgresLab) -> None:
    destination = lab.destination()
    for work in (destination.check, lambda: lab.stage(destination, [create(1)])):
        with pytest.raises(FatalError) as caught:
            work()
        assert caught.value.code == "postgres.no_table"
    patient = lab.destination(on_missing_table="nack")
    patient.check()
    lab.stage(patient, [create(1)])
    assert codes(lab) == {0: "no_table"}


def test_a_table_named_by_records_can_fail_the_pipeline(lab: PostgresLab) -> None:
    with pytest.raises(FatalError, match=r"no table public\.nowhere"):
        lab.stage(lab.destination(table=COLLECTION, on_missing_table="fail"), [of("nowhere", 1)])


def test_the_missing_right_is_told_with_the_tables_name(lab: PostgresLab) -> None:
    lab.execute("CREATE TABLE closed (id int)")
    user = f"u{os.urandom(4).hex()}"
    lab.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'x'; GRANT ALL ON SCHEMA public TO {user}")
    try:
        at = lab.url.partition("@")[2]
        url = f"postgresql://{user}:x@{at}"
        destination = lab.destination(table=COLLECTION, on_missing_table="fail", url=url)
        with pytest.raises(FatalError) as caught:
            lab.deliver(destination, [of("closed", 1)])
        destination.close()
        assert caught.value.code == "postgres.no_privilege"
        assert caught.value.fix and f"ON public.closed TO {user}" in caught.value.fix
    finally:
        lab.execute(f"DROP OWNED BY {user}; DROP ROLE {user}")


# -- too wide -------------------------------------------------------------------------------------------------------


def wide(number: int, columns: int, name: str = "c") -> Record:
    return create(number, **{f"{name}{place}": place for place in range(columns)})


@pytest.mark.parametrize("key", ["", "id"])
def test_a_row_of_too_many_columns_is_a_nack_of_its_own(lab: PostgresLab, key: str) -> None:
    destination = lab.destination(create_table="auto", key=key, on_conflict="update" if key else "error")
    lab.deliver(destination, [wide(1, 3), wide(2, 1_700), wide(3, 2)])
    assert codes(lab) == {1: "too_many_columns"}
    assert lab.execute("SELECT id FROM t ORDER BY 1") == [(1,), (3,)]


def test_tasks_that_together_have_too_many_columns(lab: PostgresLab) -> None:
    """Each task's are few enough: the table gets the first ones, and the other records are refused one by one."""
    destination = lab.destination(create_table="auto")
    delivery = lab.stage(destination, [wide(1, 900, "a")], [wide(2, 900, "b")], [create(3)])
    with pytest.raises(Rejected) as caught:
        destination.publish(delivery)
    assert caught.value.place == 1
    assert publish_each(destination, delivery, 3) == {1: "unmapped"}
    assert [row[0] for row in lab.rows()] == [1, 3]


def test_a_row_that_is_too_big_for_a_page_is_a_nack_of_its_own(lab: PostgresLab) -> None:
    names = [f"c{place}" for place in range(1_500)]
    lab.execute(f"CREATE TABLE t (id int, {', '.join(f'{name} float8' for name in names)})")
    full = create(2, **dict.fromkeys(names, 0.5))
    delivery = lab.stage(lab.destination(), [create(1, c0=1), full, create(3, c0=1)])
    assert publish_each(lab.destination(), delivery, 3) == {1: "program_limit_exceeded"}
    assert [row[0] for row in lab.rows()] == [1, 3]


# -- made meanwhile ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unmapped", ["error", "ignore"])
@pytest.mark.parametrize("operation", ["create", "update"])
def test_a_table_that_an_earlier_step_made_refuses_only_fields_that_it_lacks(
    lab: PostgresLab, operation: str, unmapped: str
) -> None:
    """A block has the columns of all its records, whether they have the fields or not."""
    destination = lab.destination(create_table="auto", unmapped=unmapped)
    earlier = lab.stage(destination, [change(operation, 1, a="x", b="y")])
    fields = [{"a": "x"}, {"b": "t\ta\n", "c": 5}, {"a": "y", "c": None}, {"b": "\\N"}]
    records = [change(operation, place + 2, **one) for place, one in enumerate(fields)]
    moved = Record(9, {}, {"id": 6, "a": "z"}, {"id": 6}, {"id": 1}, "update")
    delivery = lab.stage(destination, [*records, moved], [change(operation, 7, b="w", d=1)])
    destination.publish(earlier)
    rest = delivery
    if unmapped == "error":
        with pytest.raises(Rejected) as caught:
            destination.publish(delivery)
        assert [one.place for one in caught.value.refusals] == [1, 5] and caught.value.nack.code == "postgres.unmapped"
        rest = replace(child(delivery, 0, 5), without=(1,))
    destination.publish(rest)
    kept = [(2, "x", None), (3, None, "t\ta\n"), (4, "y", None), (5, None, "\\N"), (6, "z", "y"), (7, None, "w")]
    assert lab.rows() == [row for row in kept if unmapped == "ignore" or row[0] not in (3, 7)]


# -- names ----------------------------------------------------------------------------------------------------------

HOSTILE = [
    "a'b", 'a"b', '"; DROP TABLE t; --', "'); DELETE FROM t; --", "a\\b", "%s %(x)s %%", "{0} {columns}", "a\nb",
    "a\tb\r", "ünï\u202e😀", "$$ $1", "select", "x" * 63, "é" * 31, " ", "a.b", "conduit_row", "m", "t", "-- c", "/*",
]  # fmt: skip


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_is_only_a_name(lab: PostgresLab, name: str) -> None:
    """As schema, table, key and column: created, inserted into, merged as a set and row by row, deleted from."""
    lab.execute(f"CREATE SCHEMA {quoted(name)}; CREATE TABLE t (id int); INSERT INTO t VALUES (1)")
    meta = {"opencdc.collection": f"{quoted(name)}.{quoted(name)}"}
    destination = lab.destination("p'\"", table=COLLECTION, create_table="auto")
    rows = [Record(n, meta, {name: n, "v": "x"}, {name: n}) for n in range(3)]
    lab.deliver(destination, rows)
    updates = [Record(n, meta, {name: n, "v": "y"}, {name: n}, operation="update") for n in range(2)]
    mixed = Record(4, meta, {name: 5}, {name: 5}, operation="update")
    lab.deliver(destination, [*updates, Record(3, meta, None, {name: 2}, operation="delete")])
    lab.deliver(destination, [*updates, mixed])
    assert lab.refused == []
    assert lab.execute(f"SELECT * FROM {quoted(name)}.{quoted(name)} ORDER BY 1") == [(0, "y"), (1, "y"), (5, None)]
    assert lab.rows("t") == [(1,)]


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 64, "é" * 32, "\ud800"])
def test_a_name_that_postgres_cannot_have_is_a_nack(lab: PostgresLab, name: str) -> None:
    """A shortened name would be that of another table or column."""
    lab.execute(f"CREATE TABLE t (id int); CREATE TABLE {'x' * 63} (id int)")
    destination = lab.destination(table=COLLECTION, create_table="auto")
    lab.stage(destination, [of(quoted(name), 1), Record(2, {"opencdc.collection": "new"}, {"id": 1, name: 1})])
    assert [refusal.place for refusal in lab.refused] == [0, 1]


def test_a_name_that_the_database_s_encoding_lacks_is_a_nack(lab: PostgresLab) -> None:
    name = f"latin_{lab.url.rpartition('/')[2]}"
    lab.execute(f"DROP DATABASE IF EXISTS {name}")
    lab.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    latin = PostgresLab(f"{lab.url.rpartition('/')[0]}/{name}?client_encoding=UTF8", lab.root)
    destination = latin.destination(table=COLLECTION, create_table="auto")
    latin.deliver(destination, [of("é", 1), of("Ω", 2), of("é", 3)])
    assert (codes(latin), latin.rows("é")) == ({1: "table_name"}, [(1,), (3,)])
    with pytest.raises(FatalError, match=r"no table public\.Ω"):
        latin.destination(table="Ω").check()


@pytest.mark.parametrize("name", ["ctid", "xmin", "tableoid"])
def test_a_system_column_is_a_nack(lab: PostgresLab, name: str) -> None:
    destination = lab.destination(create_table="auto")
    lab.deliver(destination, [create(1), create(2, **{name: 1})])
    assert (codes(lab), lab.rows()) == ({1: "column_name"}, [(1,)])


@pytest.mark.parametrize(
    ("name", "why"),
    [("f" * 64, "64 bytes"), ("é" * 32, "64 bytes"), ("", "empty"), ("a\0b", "NUL"), ("ctid", "system column")],
)
def test_a_nack_of_a_field_that_can_name_no_column_says_why(lab: PostgresLab, name: str, why: str) -> None:
    destination = lab.destination(create_table="auto", mapping="long:" + "s" * 63)
    lab.deliver(destination, [create(1, long=2), create(2, **{name: 1})])
    assert (codes(lab), lab.rows()) == ({1: "column_name"}, [(1, 2)])
    assert why in lab.refused[0].nack.message and "mapping" in lab.refused[0].nack.message


@pytest.mark.parametrize("name", ["conduit order", "conduit operation", "conduit doubtful", "conduit old 0"])
def test_a_column_of_the_merge_itself_is_a_nack(lab: PostgresLab, name: str) -> None:
    lab.execute(f"CREATE TABLE t (id int PRIMARY KEY, {quoted(name)} text)")
    lab.deliver(lab.destination(), [change("update", 1), change("update", 2, **{name: "x"}), change("update", 3)])
    assert (codes(lab), [row[0] for row in lab.rows()]) == ({1: "column_name"}, [1, 3])
