"""The postgres destination stages the same bytes, and refuses the same records, however the records come in blocks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab.postgres_lab import PostgresLab, change, create

from conduit_dagster import storage
from conduit_dagster.change_marks import TRUNCATE, UNCHANGED_TOAST
from conduit_dagster.connectors.postgres import connection, seen_rows
from conduit_dagster.connectors.postgres.column_mapping import ColumnLayout
from conduit_dagster.connectors.postgres.connection import Connection, connect
from conduit_dagster.connectors.postgres.encode import TableEncoder
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.connectors.postgres.table_plan import Locator
from conduit_dagster.record import Record

TABLES = {
    "none": "SELECT 1",
    "plain": "CREATE TABLE t (id int PRIMARY KEY, k int, a int, b text)",
    "defaults": "CREATE TABLE t (id int, k int DEFAULT 1, a int DEFAULT 7, b text NOT NULL, c text DEFAULT 'x')",
    "json": "CREATE TABLE t (id int PRIMARY KEY, k int, unmapped jsonb)",
}
NUMBERS = st.integers(0, 4)
VALUES = st.one_of(st.none(), NUMBERS, st.sampled_from(["x", "7", "\0", 1e300, [1], {"n": 1}]))
PAYLOADS = st.one_of(
    st.fixed_dictionaries({"id": NUMBERS, "a": NUMBERS, "b": st.just("t")}),
    st.fixed_dictionaries({"id": NUMBERS}, optional={"k": VALUES, "a": VALUES, "b": VALUES, "c": VALUES}),
    st.fixed_dictionaries({}, optional={"b": VALUES, "a": VALUES, "id": NUMBERS, "renamed": VALUES}),
    st.sampled_from([None, b'{"id": 3, "a": 1}', b"raw"]),
)
RECORD_KEYS = st.one_of(
    st.none(),
    st.fixed_dictionaries({"id": NUMBERS}),
    st.fixed_dictionaries({"k": NUMBERS, "id": NUMBERS}),
    st.sampled_from([b"7", b'{"id": 2}', {"id": 1, "k": 2}, {"id": None}, {"other": 1}]),
)
TRUNCATES = st.builds(lambda: Record(0, {TRUNCATE: "true"}, operation="delete"))


@st.composite
def likes(draw: st.DrawFn) -> list[Record]:
    """Return records of one kind: what a block of a real source mostly is."""
    operation = draw(st.sampled_from(["create", "snapshot", "update", "delete"]))
    number = draw(st.integers(0, 5))
    has_key, fields = draw(st.booleans()), draw(st.sampled_from([{}, {"a": 1}, {"a": 1, "b": "t"}]))
    made = [change(operation, place, **fields) for place in range(number)]
    return made if has_key else [Record(one.position, {}, one.after, None, one.after, operation) for one in made]


@st.composite
def any_record(draw: st.DrawFn) -> Record:
    """Return any record, also one that can't become a row."""
    operation = draw(st.sampled_from(["create", "create", "snapshot", "update", "delete"]))
    after, key = draw(PAYLOADS), draw(RECORD_KEYS)
    before = draw(st.one_of(st.none(), st.fixed_dictionaries({"id": NUMBERS})))
    metadata = {UNCHANGED_TOAST: "b"} if operation == "update" and draw(st.booleans()) else {}
    return Record(0, metadata, None if operation == "delete" else after, key, before, operation)


RECORDS = st.lists(st.one_of(likes(), st.lists(st.one_of(any_record(), TRUNCATES), max_size=3)), max_size=6).map(
    lambda groups: [record for group in groups for record in group]
)
SETTINGS = st.fixed_dictionaries(
    {
        "on_conflict": st.sampled_from(["error", "update", "ignore"]),
        "unmapped": st.sampled_from(["error", "ignore", "json"]),
    },
    optional={"key": st.sampled_from(["id", "id,k"]), "mapping": st.just("renamed:a"), "raw_column": st.just("b")},
)


def staged(lab: PostgresLab, records: list[Record], block: int, given: dict[str, str]) -> Any:
    """Return all that a writer makes of the records, and the records that it refuses."""
    delivery = lab.stage(lab.destination(create_table="auto", **given), records, block=block)
    refused, lab.refused = lab.refused, []
    files = [b"".join(storage.chunks(storage.join(delivery.staging, part.name))) for part in delivery.parts]
    return files, Locator().missing(delivery), refused


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=RECORDS, given_settings=SETTINGS, block=st.sampled_from([1, 2, 3, 7]))
def test_any_records_are_staged_alike_in_any_blocks(
    lab: PostgresLab, table: str, records: list[Record], given_settings: dict[str, str], block: int
) -> None:
    lab.execute(f"DROP TABLE IF EXISTS t; {TABLES[table]}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seen_rows, "_CREATES_IN_A_ROW", 3)
        assert staged(lab, records, block, given_settings) == staged(lab, records, 1_000, given_settings)


@pytest.mark.parametrize("on_conflict", ["error", "update"])
def test_what_differs_first_decides_for_what_follows(lab: PostgresLab, on_conflict: str) -> None:
    """Not for what is beside it in its block."""
    records = [*(create(n, a=n) for n in range(5)), change("update", 2, b=1), *(create(n, c=n) for n in range(5, 9))]
    given = {"on_conflict": on_conflict, "key": "id"}
    assert staged(lab, records, 1_000, given) == staged(lab, records, 4, given)


def test_two_names_of_one_column_are_two_shapes(lab: PostgresLab) -> None:
    """An encoder that failed here would be asked for one record after the other, in each block."""
    lab.execute(TABLES["plain"])
    records = [Record(0, {}, {"id": 1, field: "x"}, {"id": 1}, operation="snapshot") for field in ("b", "renamed")]
    destination = lab.destination(mapping="renamed:b")
    tables = destination._lookup(destination._session)
    layout = ColumnLayout(destination.settings, tables, TableName("public", "t"))
    encoded = TableEncoder(destination.settings, layout).encode(records)
    assert [(one.places, one.group.mark) for one in encoded] == [(range(1), "u3"), (range(1, 2), "")]


def test_a_task_looks_up_all_tables_by_one_connection(lab: PostgresLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection for each took 14 ms: with 3,000 tables, most of a minute in each worker, every minute."""
    opened: list[Connection] = []

    def connecting(*given: Any) -> Connection:
        opened.append(connect(*given))
        return opened[-1]

    for name in ("t1", "t2", "t3"):
        lab.execute(f"CREATE TABLE {name} (id bigint, a bigint)")
    destination = lab.destination(table="t{{ .Payload.After.id }}", create_table="auto")
    with monkeypatch.context() as patched:
        patched.setattr(connection, "connect", connecting)
        delivery = lab.stage(destination, [create(n, a=n) for n in range(1, 6)], block=2)
    assert len(opened) == 1 and opened[0].closed
    destination.publish(delivery)
    assert [len(lab.rows(f"t{n}")) for n in range(1, 6)] == [1] * 5


def test_creates_are_inserted_again_after_a_rare_update(lab: PostgresLab) -> None:
    lab.execute(TABLES["plain"])
    creates = [change("create", n, a=1) for n in range(2_500)]
    delivery = lab.stage(lab.destination(), [creates[0], change("update", 0, a=2), *creates[1:]], block=700)
    assert [(one.records, group.merge) for group, one in Locator().slices(delivery)] == [
        (1, False),
        (1_001, True),
        (1_499, False),
    ]
