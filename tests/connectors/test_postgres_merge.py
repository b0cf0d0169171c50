"""Updates, deletes and snapshots by key: the same rows as if each record had been applied separately."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab.postgres_lab import PostgresLab, at_half, change, child, create

from conduit_dagster.connectors.postgres.regrouped_lines import widened_lines
from conduit_dagster.connectors.postgres.table_plan import Locator, batches
from conduit_dagster.record import Record
from conduit_dagster.sdk import Rejected

Rows = dict[int, tuple[int, int | None]]
TABLE = "CREATE TABLE t (id int PRIMARY KEY, a int DEFAULT 7, b int)"


class Model:
    """Record by record, on a dictionary."""

    def __init__(self, rows: Rows, on_conflict: str) -> None:
        self.rows = dict(rows)
        self._on_conflict = on_conflict

    def apply(self, record: Record) -> bool:
        """Return False if the database refuses it."""
        assert isinstance(record.key, dict)
        number, there = record.key["id"], record.key["id"] in self.rows
        if record.operation == "delete":
            self.rows.pop(number, None)
            return True
        if record.operation == "create" and there and self._on_conflict != "update":
            return self._on_conflict == "ignore"
        old = self.rows.get(number, (7, None))
        assert isinstance(record.after, dict)
        self.rows[number] = (record.after.get("a", old[0]), record.after.get("b", old[1]))
        return True


VALUES = st.integers(0, 9)
OPERATIONS = st.sampled_from(["create", "update", "snapshot", "delete"])


@st.composite
def histories(draw: st.DrawFn) -> list[Record]:
    """Few keys, so that they collide; documents of one shape, or of several."""
    shapes = draw(st.sampled_from([[("a", "b")], [("a",)], [("a", "b"), ("a",), ("b",), ()]]))
    steps = draw(
        st.lists(st.tuples(OPERATIONS, st.integers(1, 4), VALUES, VALUES, st.sampled_from(shapes)), max_size=12)
    )
    return [change(op, key, **{name: {"a": a, "b": b}[name] for name in shape}) for op, key, a, b, shape in steps]


@pytest.mark.slow
@pytest.mark.parametrize("on_conflict", ["error", "update", "ignore"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=histories(), border=st.integers(0, 12), block=st.sampled_from([1, 4, 100]))
def test_any_history_has_the_effect_of_its_records_in_order(
    lab: PostgresLab, on_conflict: str, history: list[Record], border: int, block: int
) -> None:
    """However it is cut into tasks and blocks. The first refused record is named, and nothing is written."""
    lab.execute(f"DROP TABLE IF EXISTS t; {TABLE}; INSERT INTO t VALUES (1, 1, 1), (2, 2, NULL)")
    before: Rows = {1: (1, 1), 2: (2, None)}
    model = Model(before, on_conflict)
    refused = next((place for place, record in enumerate(history) if not model.apply(record)), None)
    destination = lab.destination(on_conflict=on_conflict)
    delivery = lab.stage(destination, history[:border], history[border:], block=block)
    try:
        if refused is None:
            destination.publish(delivery)
        else:
            with pytest.raises(Rejected) as error:
                destination.publish(delivery)
            assert (error.value.place, error.value.nack.code) == (refused, "postgres.unique_violation")
            assert not destination.holds(delivery)
    finally:
        destination.close()
    wanted = before if refused is not None else model.rows
    assert {row[0]: row[1:] for row in lab.rows()} == wanted


@pytest.mark.parametrize("block", [1, 100])
def test_inserts_of_other_columns_are_refused_in_the_records_order(lab: PostgresLab, block: int) -> None:
    """Records with the same columns are loaded together, which must not decide which of two records is refused."""
    lab.execute(TABLE)
    destination = lab.destination()
    delivery = lab.stage(destination, [create(3, a=0, b=0), create(1, a=1), create(1, a=2, b=2)], block=block)
    with pytest.raises(Rejected) as error:
        destination.publish(delivery)
    assert error.value.place == 2
    assert lab.rows() == []


def test_children_of_a_history_have_its_effect_too(lab: PostgresLab) -> None:
    lab.execute(TABLE)
    destination = lab.destination()
    history = [create(1, a=1), change("update", 1, b=2), change("delete", 1), change("snapshot", 1, a=3)]
    delivery = lab.stage(destination, history)
    seen: list[Any] = []
    for place in range(4):
        destination.publish(child(delivery, place))
        seen.append(lab.rows())
    assert seen == [[(1, 1, None)], [(1, 1, 2)], [], [(1, 3, None)]]


def test_a_partial_update_needs_only_what_it_changes(lab: PostgresLab) -> None:
    """A column without a default that does not accept null is no obstacle if the row exists."""
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, a text NOT NULL, b int)")
    destination = lab.destination()
    lab.deliver(destination, [create(1, a="x"), change("update", 1, b=5)])
    lab.deliver(destination, [change("update", 1, b=6)])
    assert lab.rows() == [(1, "x", 6)]
    delivery = lab.stage(destination, [change("update", 1, b=7), change("update", 2, b=7)])
    with pytest.raises(Rejected) as error:
        destination.publish(delivery)
    assert (error.value.place, error.value.nack.code) == (1, "postgres.not_null_violation")


def test_the_key_comes_from_the_setting_or_from_the_record(lab: PostgresLab) -> None:
    lab.execute("CREATE TABLE t (x int, y int, v text, UNIQUE (x, y))")
    destination = lab.destination(key="x, y", mapping="xx:x")
    records = [
        Record(1, {}, {"xx": 1, "y": 1, "v": "a"}),
        Record(2, {}, {"xx": 1, "y": 1, "v": "b"}, b"7", operation="update"),
        Record(3, {}, {"v": "c"}, b'{"xx": 1, "y": 2}', operation="update"),
        Record(4, {}, None, None, {"xx": 1, "y": 1}, "delete"),
        Record(5, {}, {"xx": 5, "v": "e"}, operation="update"),
        Record(6, {}, None, {"xx": 1, "y": None}, operation="delete"),
    ]
    lab.deliver(destination, records)
    assert lab.rows() == [(1, 2, "c")]
    assert [(refusal.place, refusal.nack.code) for refusal in lab.refused] == [
        (4, "postgres.no_key"),
        (5, "postgres.no_key"),
    ]


def test_the_key_s_fields_are_columns_too(lab: PostgresLab) -> None:
    """As in Conduit: a payload need not repeat them."""
    lab.execute(TABLE)
    lab.deliver(lab.destination(), [Record(1, {}, {"a": 1}, {"id": 5}), Record(2, {}, {"a": 2, "id": 6}, {"id": 6})])
    assert lab.rows() == [(5, 1, None), (6, 2, None)]


@pytest.mark.parametrize("operation", ["create", "snapshot", "update"])
@pytest.mark.parametrize("on_conflict", ["error", "update"])
def test_all_fields_of_the_key_are_columns_whatever_the_operation(
    lab: PostgresLab, operation: Any, on_conflict: str
) -> None:
    """Also those that the setting ``key`` does not name, and before equal fields of the payload."""
    lab.execute(TABLE)
    keys = [{"id": 5, "a": 3}, b'{"id": 6, "a": 4}']
    records = [Record(1, {}, {"id": 9, "b": 2}, key, operation=operation) for key in keys]
    lab.deliver(lab.destination(key="id", on_conflict=on_conflict), records)
    assert lab.rows() == [(5, 3, 2), (6, 4, 2)]


def test_snapshots_without_a_key_are_inserted(lab: PostgresLab) -> None:
    lab.execute(TABLE)
    lab.deliver(lab.destination(), [Record(i, {}, {"id": i}, b"%d" % i, operation="snapshot") for i in range(3)])
    assert [row[0] for row in lab.rows()] == [0, 1, 2]


def test_what_only_works_record_by_record_works(lab: PostgresLab) -> None:
    """A value that must be unique moves from one key to another within a delivery."""
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, a int UNIQUE)")
    destination = lab.destination()
    lab.deliver(destination, [create(1, a=1), create(2, a=2)])
    lab.deliver(destination, [change("update", 1, a=9), change("update", 2, a=1), change("delete", 1), create(3, a=9)])
    assert lab.rows() == [(2, 1), (3, 9)]


def test_names_that_the_loop_uses_itself_are_no_obstacle(lab: PostgresLab) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, n int, mark text, conduit_row text, m int, conduit_detail int)")
    fields = {"mark": "x", "conduit_row": "r", "m": 1, "conduit_detail": 2}
    destination = lab.destination()
    lab.deliver(destination, [change("update", 1, n=1), change("update", 1, **fields), change("delete", 2)])
    assert lab.rows() == [(1, 1, "x", "r", 1, 2)]


def test_rows_that_bring_more_columns_one_by_one_are_merged_at_once(lab: PostgresLab) -> None:
    """Each row begins a group of its own where it is staged, and other tasks' rows have other columns."""
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, a int DEFAULT 7, b int, c int); INSERT INTO t VALUES (3, 1, 1, 1)")
    first = [change("delete", 9), change("update", 1, a=1), change("update", 2, c=2), change("delete", 1)]
    moved = Record(1, {}, {"id": 4, "b": 5}, {"id": 4}, {"id": 3}, "update")
    delivery = lab.stage(
        lab.destination(), first, [change("update", 2, b=1), moved, change("update", 5, a=1, b=2, c=3)]
    )
    slices = Locator().slices(delivery)
    assert len(batches(slices)) == 6
    [batch] = batches(widened_lines(slices, str(lab.root / "widened")))
    assert (batch.group.columns, batch.group.moves) == (("a", "b", "c", "id"), True)
    lab.destination().publish(delivery)
    assert lab.rows() == [(2, 7, 1, 2), (4, 1, 5, 1), (5, 1, 2, 3)]


def test_many_rows_are_merged_apart_rather_than_rewritten(lab: PostgresLab) -> None:
    lab.execute(TABLE)
    delivery = lab.stage(
        lab.destination(), [change("update", n, a=1) for n in range(1_500)] + [change("update", 1, b=1)]
    )
    slices = Locator().slices(delivery)
    assert widened_lines(slices, str(lab.root / "widened")) == slices
    lab.destination().publish(delivery)
    assert lab.rows()[:2] == [(0, 1, None), (1, 1, 1)]


def test_each_row_has_its_own_columns_however_many_sets_there_are(lab: PostgresLab) -> None:
    names = [f"c{n}" for n in range(6)]
    lab.execute(f"CREATE TABLE t (id int PRIMARY KEY, {', '.join(f'{name} int DEFAULT 7' for name in names)})")
    held = {n: {name: n for bit, name in enumerate(names) if n >> bit & 1} for n in range(64)}
    creates, updates = ([change(kind, n, **held[n]) for n in held] for kind in ("create", "update"))
    lab.deliver(lab.destination(), [*creates, *updates, *(change("delete", n) for n in range(0, 64, 3))])
    assert lab.rows() == [(n, *(held[n].get(name, 7) for name in names)) for n in held if n % 3]


@pytest.mark.slow
def test_many_batches_of_one_transaction_hold_few_locks(lab: PostgresLab) -> None:
    """A server has room for some thousand: a larger number of batches must not fill it."""
    lab.execute("CREATE TABLE t (id int, a int); CREATE UNIQUE INDEX ON t (id)")
    records = [
        record for i in range(300) for record in (Record(i, {}, {"id": i}), change("update", 1_000 + i % 2, a=i))
    ]
    held: list[int] = []
    destination = lab.destination()
    delivery = lab.stage(destination, records)
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'relation' AND pid <> pg_backend_pid()"
    with at_half(lambda: held.append(lab.execute(locks)[0][0])):
        destination.publish(delivery)
    assert 0 < held[0] < 40
    assert len(lab.rows()) == 302
    assert lab.rows()[-2:] == [(1_000, 298), (1_001, 299)]


@pytest.mark.parametrize("on_conflict", ["error", "update", "ignore"])
def test_rows_of_children_by_inherits_are_found(lab: PostgresLab, on_conflict: str) -> None:
    """Neither an update nor a snapshot makes a second row of their key; rows that exchange keys stay in the child."""
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, a int); CREATE TABLE c (own int, PRIMARY KEY (id)) INHERITS (t)")
    lab.execute("INSERT INTO c VALUES (1, 1, 10), (2, 2, 20), (3, 3, 30), (4, 4, 40)")
    destination = lab.destination(on_conflict=on_conflict, key="id")
    lab.deliver(destination, [change("update", 1, a=5), change("delete", 2), change("update", 6, a=6)])
    lab.deliver(destination, [change("snapshot", 1, a=7), change("snapshot", 8, a=8)])
    moves = [Record(0, {}, {"id": new, "a": new}, {"id": new}, {"id": 7 - new}, operation="update") for new in (3, 4)]
    if on_conflict != "error":
        lab.deliver(destination, [change("create", 1, a=9)])
    if on_conflict != "update":  # there the row that is in the way is replaced, as where there are referential actions
        with pytest.raises(Rejected):
            lab.deliver(destination, moves)
    first = 9 if on_conflict == "update" else 7
    found = lab.execute("SELECT tableoid::regclass::text, id, a FROM t ORDER BY id")
    assert found == [("c", 1, first), ("c", 3, 3), ("c", 4, 4), ("t", 6, 6), ("t", 8, 8)]
