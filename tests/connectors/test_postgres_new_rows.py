"""Rows that are probably new: the same rows as from a merge, in a fraction of its time where none was there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab.postgres_lab import PostgresLab, change, create

from conduit_dagster.connectors.postgres import encode
from conduit_dagster.connectors.postgres.destination import PostgresDestination
from conduit_dagster.connectors.postgres.regrouped_lines import narrowed_lines
from conduit_dagster.connectors.postgres.staged_rows import staged_row
from conduit_dagster.connectors.postgres.table_plan import Locator
from conduit_dagster.record import Record
from conduit_dagster.sdk import Delivery, Rejected

TABLE = "CREATE TABLE t (id int PRIMARY KEY, a int DEFAULT 7, b text)"
HEARD = """
    CREATE TABLE heard (n serial, query text);
    CREATE FUNCTION hear() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN INSERT INTO heard (query) VALUES (current_query()); RETURN NULL; END';
    CREATE TRIGGER hear AFTER INSERT ON t FOR EACH STATEMENT EXECUTE FUNCTION hear()
"""


def ways(lab: PostgresLab) -> list[str]:
    """How rows came into the table, by committed statement: COPY, or INSERT from a merge."""
    return [query.split()[0] for (query,) in lab.execute("SELECT query FROM heard ORDER BY n")]


def snapshots(*numbers: int, **fields: Any) -> list[Record]:
    return [change("snapshot", number, **fields) for number in numbers]


def shown(delivery: Delivery) -> list[Any]:
    """The staged rows, as dead letters show them."""
    rows = [staged_row(delivery, place) for place in range(sum(part.records for part in delivery.parts))]
    return [(row.operation, row.key, row.after, row.before, row.metadata) for row in rows]


def test_snapshots_are_copied_into_the_table_until_one_of_their_rows_is_there(lab: PostgresLab) -> None:
    lab.execute(TABLE + ";" + HEARD)
    destination = lab.destination()
    lab.deliver(destination, snapshots(1, 2, a=1, b="x"), snapshots(3, a=None, b="\t\\"))
    lab.deliver(destination, snapshots(4, 3, a=5, b="y"))
    lab.deliver(destination, snapshots(5, a=6, b="z"))
    assert lab.rows() == [(1, 1, "x"), (2, 1, "x"), (3, 5, "y"), (4, 5, "y"), (5, 6, "z")]
    assert ways(lab) == ["COPY", "INSERT", "INSERT"]


@pytest.mark.parametrize(("on_conflict", "kept"), [("update", 2), ("ignore", 1)])
def test_creates_that_may_meet_a_row_are_copied_too(lab: PostgresLab, on_conflict: str, kept: int) -> None:
    lab.execute(TABLE + ";" + HEARD)
    destination = lab.destination(on_conflict=on_conflict)
    lab.deliver(destination, [change("create", 1, a=1), change("create", 2, a=1)])
    assert ways(lab) == ["COPY"]
    lab.deliver(destination, [change("create", 2, a=2), change("create", 3, a=2)])
    assert [row[:2] for row in lab.rows()] == [(1, 1), (2, kept), (3, 2)]


def test_the_key_may_be_a_field_of_the_payload(lab: PostgresLab) -> None:
    lab.execute(TABLE + ";" + HEARD)
    destination = lab.destination(on_conflict="update", key="id")
    lab.deliver(destination, [create(1, a=1), create(2, a=1)])
    lab.deliver(destination, [create(2, a=2)])
    assert [row[:2] for row in lab.rows()] == [(1, 1), (2, 2)] and ways(lab) == ["COPY", "INSERT"]


@pytest.mark.parametrize(
    "index",
    [
        "CREATE INDEX i ON t (id)",
        "CREATE UNIQUE INDEX i ON t (id) WHERE id > 0",
        "CREATE UNIQUE INDEX i ON t (id, a)",
        "CREATE UNIQUE INDEX i ON t (a) INCLUDE (id)",
        "CREATE UNIQUE INDEX i ON t ((id + 0))",
        "ALTER TABLE t ADD UNIQUE (id) DEFERRABLE INITIALLY DEFERRED",
    ],
)
def test_without_a_unique_index_on_the_key_nothing_is_copied(lab: PostgresLab, index: str) -> None:
    """A row that is there already would not be noticed: rows that can't be applied by their key are refused."""
    lab.execute(f"CREATE TABLE t (id int, a int, b text); INSERT INTO t VALUES (1, 1, 'x'); {index}; {HEARD}")
    with pytest.raises(Exception, match="ON CONFLICT"):
        lab.deliver(lab.destination(), snapshots(1, 2, a=1))
    assert lab.rows() == [(1, 1, "x")] and ways(lab) == []


def test_a_unique_index_on_the_columns_of_the_key_is_enough(lab: PostgresLab) -> None:
    lab.execute(
        'CREATE TABLE t (id int, "k k" int, v int); CREATE UNIQUE INDEX i ON t ("k k", id) INCLUDE (v);' + HEARD
    )
    destination = lab.destination(key="id,k k")
    lab.deliver(destination, [Record(n, {}, {"id": n, "k k": 1, "v": n}, operation="snapshot") for n in range(3)])
    lab.deliver(destination, snapshots(4, **{"k k": 2, "v": 2}))
    assert lab.rows() == [(0, 1, 0), (1, 1, 1), (2, 1, 2), (4, 2, 2)]


def test_a_refused_row_is_named_and_the_others_are_copied_once_it_is_gone(lab: PostgresLab) -> None:
    lab.execute(TABLE.replace("b text", "b text CHECK (b <> 'bad')") + ";" + HEARD)
    destination = lab.destination()
    delivery = lab.stage(destination, [*snapshots(1, 2, b="x"), *snapshots(3, b="bad"), *snapshots(4, b="x")])
    with pytest.raises(Rejected) as error:
        destination.publish(delivery)
    assert (error.value.place, error.value.nack.code) == (2, "postgres.check_violation")
    assert lab.rows() == []
    lab.deliver(destination, snapshots(1, 2, 4, b="x"))
    assert [row[0] for row in lab.rows()] == [1, 2, 4] and ways(lab) == ["COPY"]


def test_the_copy_fills_a_table_that_it_created(lab: PostgresLab) -> None:
    destination = lab.destination(create_table="auto")
    lab.deliver(destination, snapshots(1, 2, z=1, b="x"), snapshots(3, z=2, b="y"))
    assert lab.rows() == [(1, 1, "x"), (2, 1, "x"), (3, 2, "y")]
    assert lab.execute("SELECT count(*) FROM pg_index WHERE indrelid = 't'::regclass AND indisprimary") == [(1,)]


def test_lines_lose_a_column_that_the_table_lacks_after_all(lab: PostgresLab) -> None:
    destination = lab.destination(create_table="auto")
    delivery = lab.stage(destination, snapshots(1, 2, a=None, b="x"))
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, b text)")
    destination.publish(delivery)
    assert lab.rows() == [(1, "x"), (2, "x")]
    [(group, _)] = Locator().slices(delivery)
    assert (group.mark, group.columns) == ("u7", ("a", "b", "id"))
    tables = {group.table: destination._lookup(destination._session).get(group.table, fresh=True)}
    [(narrower, _)] = narrowed_lines(Locator().slices(delivery), tables, str(lab.root / "narrowed"), False)
    assert (narrower.mark, narrower.columns) == ("u3", ("b", "id"))


def test_once_records_differ_a_part_has_one_group_of_lines(lab: PostgresLab) -> None:
    """Groups that alternate would be merged block by block."""
    lab.execute(TABLE)
    records = [*snapshots(1, 2, a=1), change("update", 1, a=2), *snapshots(3, 4, 5, 6, a=1)]
    delivery = lab.stage(lab.destination(), records, block=2)
    groups = [group.mark for group, _ in Locator().slices(delivery)]
    assert groups == ["u3", ""]


VALUES = st.one_of(st.none(), st.integers(-5, 5))
TEXTS = st.one_of(st.none(), st.text(max_size=3))
DOCUMENTS = [
    st.fixed_dictionaries({"id": st.integers(0, 9), "a": VALUES, "b": TEXTS}),
    st.fixed_dictionaries({"id": st.integers(0, 9)}, optional={"a": VALUES, "b": TEXTS}),
]
KEYS = st.sampled_from(["same", "other", "none", "null", "raw"])


@st.composite
def blocks(draw: st.DrawFn) -> list[Record]:
    """Snapshots with one set of fields, or with several; keys in a document of their own, or not."""
    kind, documents = draw(KEYS), draw(st.lists(draw(st.sampled_from(DOCUMENTS)), min_size=1, max_size=5))
    keys = {
        "same": lambda n: {"id": n},
        "other": lambda n: {"id": n + 1},
        "none": lambda n: None,
        "raw": lambda n: b'{"id": %d}' % n,
    }
    of = keys.get(kind, lambda n: {"id": None if n == 3 else n})
    return [Record(0, {}, one, of(one["id"]), operation="snapshot") for one in documents]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(block=blocks(), key=st.sampled_from(["", "id", "id,a"]))
def test_a_block_taken_by_columns_is_staged_as_its_records_one_by_one(
    lab: PostgresLab, block: list[Record], key: str
) -> None:
    lab.execute("CREATE TABLE IF NOT EXISTS t (id int, a int DEFAULT 7, b text)")
    lab.refused.clear()
    at_once = lab.stage(lab.destination(key=key), block)
    refused, lab.refused = lab.refused, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "new_rows", lambda *_: None)
        apart = lab.stage(lab.destination(key=key), block)
    assert (shown(at_once), refused) == (shown(apart), lab.refused)


def upserted(rows: dict[int, Any], records: list[Record]) -> dict[int, Any]:
    for record in records:
        assert isinstance(record.after, dict)
        rows[record.after["id"]] = (record.after["a"], record.after["b"])
    return rows


DELIVERIES = st.lists(
    st.lists(st.builds(lambda n, a: change("snapshot", n, a=a, b="t"), st.integers(0, 12), VALUES), max_size=6),
    min_size=1,
    max_size=4,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(deliveries=DELIVERIES, there=st.sets(st.integers(0, 12), max_size=2), block=st.sampled_from([1, 3, 100]))
def test_any_deliveries_leave_the_rows_of_their_records_in_order(
    lab: PostgresLab, deliveries: list[list[Record]], there: set[int], block: int
) -> None:
    """Rows that come twice, within a delivery or not, or were there before."""
    lab.execute(f"DROP TABLE IF EXISTS t; {TABLE}")
    model: dict[int, Any] = {}
    for number in there:
        lab.execute(f"INSERT INTO t VALUES ({number}, 1, 'old')")
        model[number] = (1, "old")
    destination: PostgresDestination = lab.destination()
    for records in deliveries:
        destination.publish(lab.stage(destination, records[:3], records[3:], block=block))
        assert {row[0]: row[1:] for row in lab.rows()} == upserted(model, records)
    destination.close()


def test_plain_inserts_are_staged_as_before(lab: PostgresLab) -> None:
    lab.execute(TABLE)
    delivery = lab.stage(lab.destination(), [create(1, a=1, b="x"), change("create", 2, a=1, b="x")])
    assert {(group.merge, group.mark) for group, _ in Locator().slices(delivery)} == {(False, "")}
