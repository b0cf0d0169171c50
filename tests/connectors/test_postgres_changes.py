"""Changes from another database: rows that get another key, updates that omit values, truncates."""

from __future__ import annotations

import os
from typing import Any

import pytest
from lab.postgres_lab import PostgresLab, change, child, create

from conduit_dagster.change_marks import TRUNCATE, UNCHANGED_TOAST
from conduit_dagster.connectors.postgres.sqlstates import BulkError
from conduit_dagster.connectors.postgres.staged_rows import staged_row
from conduit_dagster.record import Record
from conduit_dagster.sdk import Rejected

TABLE = "CREATE TABLE t (id int PRIMARY KEY, a text, b text)"
COLLECTION = '{{ index .Metadata "opencdc.collection" }}'


def moved(old: int, new: int, **fields: Any) -> Record:
    """An update that gives a row another key."""
    return Record(new, {}, {"id": new, **fields}, {"id": new}, {"id": old}, "update")


def partial(number: int, lacks: str, **fields: Any) -> Record:
    """An update that omitted the columns it did not change."""
    return Record(number, {UNCHANGED_TOAST: lacks}, {"id": number, **fields}, {"id": number}, operation="update")


def truncate(table: str = "t") -> Record:
    return Record(0, {TRUNCATE: "true", "opencdc.collection": table}, operation="delete")


def of(table: str, record: Record) -> Record:
    record.metadata = {**record.metadata, "opencdc.collection": table}
    return record


def rejected(lab: PostgresLab, *records: Record, **settings: str) -> list[tuple[int, str]]:
    destination = lab.destination(**settings)
    delivery = lab.stage(destination, records)
    with pytest.raises(Rejected) as error:
        destination.publish(delivery)
    assert not destination.holds(delivery)
    return [(one.place, one.nack.code) for one in error.value.refusals]


# -- another key --------------------------------------------------------------------------------------------------


def test_a_row_gets_another_key_and_keeps_what_the_record_does_not_name(lab: PostgresLab) -> None:
    lab.execute(f"{TABLE}; INSERT INTO t VALUES (1, 'a', 'b'), (2, 'c', 'd')")
    lab.deliver(lab.destination(), [moved(1, 5, a="x"), create(3, a="new")])
    assert lab.rows() == [(2, "c", "d"), (3, "new", None), (5, "x", "b")]


def test_keys_move_along_a_chain_within_a_delivery(lab: PostgresLab) -> None:
    """Row by row: each change needs the one before it."""
    lab.execute(f"{TABLE}; INSERT INTO t VALUES (1, 'a', 'b')")
    records = [moved(1, 2, a="x"), moved(2, 3, a="y"), create(1, a="new"), moved(1, 2, a="z"), change("delete", 3)]
    lab.deliver(lab.destination(), records)
    assert lab.rows() == [(2, "z", None)]


def test_rows_refer_to_the_row_with_another_key(lab: PostgresLab) -> None:
    """It is updated, not deleted and inserted: no row that refers to it is lost."""
    lab.execute(f"{TABLE}; INSERT INTO t VALUES (1, 'a', 'b'), (7, 'c', 'd')")
    lab.execute(
        "CREATE TABLE u (t int REFERENCES t ON DELETE CASCADE ON UPDATE CASCADE); INSERT INTO u VALUES (1), (7)"
    )
    lab.deliver(lab.destination(), [moved(1, 2, a="x"), moved(7, 8, a="x"), moved(8, 9, a="y")])
    assert lab.rows("u") == [(2,), (9,)]


def test_a_refused_row_leaves_a_changed_key_beside_it_accepted(lab: PostgresLab) -> None:
    lab.execute(f"{TABLE}; INSERT INTO t VALUES (1, 'a', 'b'), (5, 'c', 'd')")
    move = moved(1, 2, a="x")
    move.metadata = {UNCHANGED_TOAST: "b"}
    assert [place for place, _ in rejected(lab, move, create(5, a="y"))] == [1]


@pytest.mark.parametrize("others", [[], [change("update", 2, a="y")]], ids=["as a set", "row by row"])
def test_a_row_that_is_not_there_comes_with_its_new_key(lab: PostgresLab, others: list[Record]) -> None:
    lab.execute(TABLE)
    lab.deliver(lab.destination(), [moved(1, 2, a="x"), *others])
    assert lab.rows() == [(2, "y" if others else "x", None)]


@pytest.mark.parametrize("rows", ["(1, 'a', 'b'), (2, 'c', 'd')", "(1, 'a', 'b'), (2, 'c', 'd'), (3, 'e', 'f')"])
def test_a_key_that_exists_is_replaced_only_on_demand(lab: PostgresLab, rows: str) -> None:
    """A single record is a set; a second one of the same row makes it row by row."""
    lab.execute(f"{TABLE}; INSERT INTO t VALUES {rows}")
    records = [moved(1, 2, a="x")]
    records += [moved(3, 4), moved(4, 5)] if "3" in rows else []
    assert rejected(lab, *records) == [(0, "postgres.unique_violation")]
    lab.deliver(lab.destination(on_conflict="update"), records)
    assert lab.rows() == [(2, "x", "b"), (5, "e", "f")][: 1 + ("3" in rows)]


def test_the_same_key_in_other_words_is_the_same_key(lab: PostgresLab) -> None:
    """The database compares: the row does not conflict with itself."""
    lab.execute("CREATE TABLE t (id numeric PRIMARY KEY, a text, b text); INSERT INTO t VALUES (1, 'a', 'b')")
    record = Record(1, {}, {"id": "1.0", "a": "x"}, {"id": "1.0"}, {"id": "1.00"}, "update")
    lab.deliver(lab.destination(on_conflict="update"), [record])
    assert [(str(number), *rest) for number, *rest in lab.rows()] == [("1.0", "x", "b")]


def test_before_gives_the_old_key_by_column(lab: PostgresLab) -> None:
    """With ``key`` and ``mapping``; values missing from ``before`` are taken from the new key."""
    lab.execute("CREATE TABLE t (x int, y int, v text, UNIQUE (x, y)); INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b')")
    destination = lab.destination(key="x, y", mapping="xx:x")
    records = [
        Record(1, {}, {"xx": 1, "y": 5, "v": "c"}, None, {"xx": 1, "y": 1, "v": "a"}, "update"),
        Record(2, {}, {"xx": 7, "y": 2, "v": "d"}, None, {"xx": 2, "y": None}, "update"),
        Record(3, {}, {"xx": 7, "y": 2, "v": "e"}, None, {"v": "d"}, "update"),
        Record(4, {}, {"xx": 7, "y": 2, "v": "f"}, None, {"xx": 7, "y": 2, "v": "e"}, "update"),
    ]
    lab.deliver(destination, records)
    assert lab.rows() == [(1, 5, "c"), (7, 2, "f")]


def test_a_key_of_generated_numbers_is_written_as_it_is(lab: PostgresLab) -> None:
    lab.execute("CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a text)")
    destination = lab.destination()
    lab.deliver(destination, [change("update", 7, a="x"), change("snapshot", 8, a="y")])
    lab.deliver(destination, [change("update", 7, a="z"), change("update", 9), change("delete", 8)])
    assert lab.rows() == [(7, "z"), (9, None)]


# -- values that are left out -------------------------------------------------------------------------------------


@pytest.mark.parametrize("others", [[], [change("update", 2, a="y")]], ids=["as a set", "row by row"])
def test_what_an_update_left_out_stays(lab: PostgresLab, others: list[Record]) -> None:
    lab.execute(f"{TABLE}; INSERT INTO t VALUES (1, 'a', 'long'), (3, 'a', 'long')")
    records = [partial(1, "b", a="x"), *others, create(4, a="n", b="m"), partial(4, "b", a="o"), partial(3, "a,b")]
    lab.deliver(lab.destination(), records)
    added = [(2, "y", None)] if others else []
    assert lab.rows() == [(1, "x", "long"), *added, (3, "a", "long"), (4, "o", "m")]


@pytest.mark.parametrize(
    ("records", "place"),
    [
        ([partial(1, "b", a="x")], 0),
        ([partial(1, "a, b")], 0),
        ([create(2, a="x"), partial(1, "b", a="x"), change("update", 3)], 1),
        ([create(1, a="x"), change("delete", 1), partial(1, "b", a="y")], 2),
        ([create(1, a="x", b="y"), truncate(), partial(1, "b", a="y")], 2),
    ],
)
def test_without_its_row_such_an_update_is_a_nack(lab: PostgresLab, records: list[Record], place: int) -> None:
    """Otherwise nulls would stand for values that exist elsewhere."""
    lab.execute(TABLE)
    assert rejected(lab, *records) == [(place, "postgres.unchanged_toast")]
    assert lab.rows() == []


def test_the_nack_says_what_to_do(lab: PostgresLab) -> None:
    lab.execute(TABLE)
    destination = lab.destination()
    with pytest.raises(Rejected, match=r"the table public\.t has no row of this key.*copy the row again.*REPLICA"):
        destination.publish(lab.stage(destination, [partial(1, "b", a="x")]))


def test_a_row_with_another_key_keeps_what_is_left_out(lab: PostgresLab) -> None:
    lab.execute(f"{TABLE}; INSERT INTO t VALUES (1, 'a', 'long')")
    metadata = {UNCHANGED_TOAST: "b"}
    lab.deliver(lab.destination(), [Record(1, metadata, {"id": 2, "a": "x"}, {"id": 2}, {"id": 1}, "update")])
    # a later copy contained the row with its new key: the record adds nothing
    lab.deliver(lab.destination(), [Record(1, metadata, {"id": 2, "a": "y"}, {"id": 2}, {"id": 1}, "update")])
    assert lab.rows() == [(2, "y", "long")]
    gone = Record(1, metadata, {"id": 8, "a": "x"}, {"id": 8}, {"id": 9}, "update")
    assert rejected(lab, change("update", 5), gone) == [(1, "postgres.unchanged_toast")]


def test_a_column_that_the_table_does_not_have_is_not_missed(lab: PostgresLab) -> None:
    """A processor may have removed it, or filled it in."""
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    lab.deliver(lab.destination(), [partial(1, "b", a="x"), partial(2, "a", a="filled in")])
    assert lab.rows() == [(1, "x"), (2, "filled in")]


def test_what_is_left_out_is_found_under_its_column_s_name(lab: PostgresLab) -> None:
    lab.execute(TABLE)
    assert rejected(lab, partial(1, "body", a="x"), mapping="body:b") == [(0, "postgres.unchanged_toast")]


def test_a_part_of_a_collected_object_can_t_be_left_out(lab: PostgresLab) -> None:
    """The object is replaced as a whole."""
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, unmapped jsonb)")
    destination = lab.destination(unmapped="json")
    lab.deliver(destination, [change("update", 1, a="x", b="long")])
    lab.deliver(destination, [partial(1, "b", a="y")])
    assert [refusal.nack.code for refusal in lab.refused] == ["postgres.unchanged_unmapped"]
    assert lab.rows() == [(1, {"a": "x", "b": "long"})]


# -- truncates ----------------------------------------------------------------------------------------------------


def test_a_truncate_has_its_place_in_the_order(lab: PostgresLab) -> None:
    """In the middle of a part, at the border of two, and twice."""
    lab.execute(f"{TABLE}; INSERT INTO t VALUES (9, 'old', 'old')")
    destination = lab.destination()
    lab.deliver(destination, [create(1), change("update", 2), truncate(), create(1, a="x")], [truncate(), create(2)])
    assert lab.rows() == [(2, None, None)]
    lab.deliver(destination, [create(3), truncate(), truncate(), create(2, a="y"), change("update", 3)])
    assert lab.rows() == [(2, "y", None), (3, None, None)]


def test_children_truncate_at_their_place_too(lab: PostgresLab) -> None:
    lab.execute(f"{TABLE}; INSERT INTO t VALUES (9, 'old', 'old')")
    destination = lab.destination()
    delivery = lab.stage(destination, [create(1), truncate(), create(2), truncate(), create(3)])
    seen: list[list[int]] = []
    for place in range(5):
        destination.publish(child(delivery, place))
        seen.append([row[0] for row in lab.rows()])
    assert seen == [[1, 9], [], [2], [], [3]]
    delivery = lab.stage(destination, [create(4), truncate(), create(5)])
    destination.publish(child(delivery, 0, 2))
    destination.publish(child(delivery, 2))
    assert [row[0] for row in lab.rows()] == [5]


def test_a_refused_row_beside_a_truncate_is_found(lab: PostgresLab) -> None:
    lab.execute(TABLE)
    records = [create(1), create(1), truncate(), create(1), create(2), create(2)]
    codes = [(1, "postgres.unique_violation"), (5, "postgres.unique_violation")]
    assert rejected(lab, *records) == codes


def test_a_delete_without_a_key_is_still_refused(lab: PostgresLab) -> None:
    """Only an explicit truncate is one."""
    lab.execute(f"{TABLE}; INSERT INTO t VALUES (1, 'a', 'b')")
    bare = Record(1, {}, operation="delete")
    other = Record(2, {TRUNCATE: "false"}, operation="delete")
    keyed = Record(3, {TRUNCATE: "true"}, None, b"x", operation="delete")
    lab.deliver(lab.destination(), [bare, other, keyed])
    assert [refusal.nack.code for refusal in lab.refused] == ["postgres.no_key"] * 3
    assert lab.rows() == [(1, "a", "b")]


def test_tables_that_refer_to_each_other_are_truncated_together(lab: PostgresLab) -> None:
    """As in the other database, by one statement; records of one table never wait for those of another."""
    lab.execute(f"CREATE SCHEMA s; {TABLE}; CREATE TABLE s.u (id int PRIMARY KEY, t int REFERENCES t)")
    destination = lab.destination(table=COLLECTION)
    records = [of("t", create(1)), of("s.u", create(1, t=1)), truncate(), truncate("s.u"), of("t", create(2))]
    lab.deliver(destination, records)
    assert (lab.rows(), lab.rows("s/u")) == ([(2, None, None)], [])


def test_a_table_that_others_refer_to_is_emptied_as_far_as_they_allow(lab: PostgresLab) -> None:
    lab.execute(f"{TABLE}; CREATE TABLE u (id int PRIMARY KEY, t int REFERENCES t); INSERT INTO t VALUES (1, 'a', 'b')")
    lab.deliver(lab.destination(), [truncate()])
    assert lab.rows() == []
    lab.execute("INSERT INTO t VALUES (1, 'a', 'b'); INSERT INTO u VALUES (1, 1)")
    assert rejected(lab, create(2), truncate()) == [(1, "postgres.foreign_key_violation")]
    assert lab.rows() == [(1, "a", "b")]


@pytest.mark.parametrize("lost", ["DROP TABLE u", "CREATE TABLE v (t int REFERENCES u); INSERT INTO v VALUES (1)"])
def test_of_several_truncates_the_one_at_fault_is_found(lab: PostgresLab, lost: str) -> None:
    """One by one, as the engine sends what fails without naming a record."""
    lab.execute(f"{TABLE}; CREATE TABLE u (id int PRIMARY KEY); INSERT INTO t VALUES (1, 'a', 'b')")
    lab.execute("INSERT INTO u VALUES (1)")
    destination = lab.destination(table=COLLECTION)
    delivery = lab.stage(destination, [truncate(), truncate("u"), of("t", create(2))])
    lab.execute(lost)
    with pytest.raises(BulkError, match=r"public\.t, public\.u can't be emptied together"):
        destination.publish(delivery)
    destination.publish(child(delivery, 0))
    with pytest.raises(Rejected) as error:
        destination.publish(child(delivery, 1))
    assert error.value.nack.code == ("postgres.no_table" if "DROP" in lost else "postgres.foreign_key_violation")
    destination.publish(child(delivery, 2))
    assert lab.rows() == [(2, None, None)]


def test_who_may_delete_may_truncate(lab: PostgresLab) -> None:
    lab.execute(f"{TABLE}; INSERT INTO t VALUES (1, 'a', 'b')")
    user = f"u{os.urandom(4).hex()}"
    lab.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'x'; GRANT ALL ON SCHEMA public TO {user}")
    lab.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON t TO {user}")
    try:
        destination = lab.destination(url=f"postgresql://{user}:x@{lab.url.partition('@')[2]}")
        lab.deliver(destination, [truncate(), create(2)])
        destination.close()
        assert lab.rows() == [(2, None, None)]
    finally:
        lab.execute(f"DROP OWNED BY {user}; DROP ROLE {user}")


def test_a_table_that_is_not_there_yet_is_empty(lab: PostgresLab) -> None:
    destination = lab.destination(create_table="auto", key="id")
    lab.deliver(destination, [truncate()])
    assert lab.execute("SELECT to_regclass('t')") == [(None,)]
    lab.deliver(destination, [create(1, a="x"), truncate(), create(2, a="y")])
    assert lab.rows() == [(2, "y")]


# -- several tables -----------------------------------------------------------------------------------------------


def test_each_collection_has_its_table(lab: PostgresLab) -> None:
    """With and without a schema, in one delivery; keys come from the records."""
    lab.execute(f'{TABLE}; CREATE SCHEMA s; CREATE TABLE s."T" (n int PRIMARY KEY, v text)')
    records = [
        of("public.t", create(1, a="x")),
        Record(2, {"opencdc.collection": "s.T"}, {"n": 1, "v": "y"}, {"n": 1}),
        of("t", change("update", 1, a="z")),
        Record(4, {"opencdc.collection": "s.T"}, {"n": 2, "v": "w"}, {"n": 2}, {"n": 1}, "update"),
    ]
    lab.deliver(lab.destination(table=COLLECTION), records)
    assert (lab.rows(), lab.rows("s/T")) == ([(1, "z", None)], [(2, "w")])


def test_references_between_tables_hold_in_the_records_order(lab: PostgresLab) -> None:
    """Table by table the row would be deleted while another one refers to it."""
    lab.execute(f"{TABLE}; CREATE TABLE u (id int PRIMARY KEY, t int REFERENCES t)")
    destination = lab.destination(table=COLLECTION)
    lab.deliver(destination, [of("t", create(1)), of("u", create(1, t=1))])
    records = [of("t", create(2)), of("u", change("delete", 1)), of("t", change("delete", 1)), of("u", create(2, t=2))]
    lab.deliver(destination, records)
    assert (lab.rows(), lab.rows("u")) == ([(2, None, None)], [(2, 2)])
    lab.deliver(destination, [of("u", create(9)), of("t", create(8)), of("u", create(4, t=8))])
    late = [of("u", create(3, t=7)), of("t", create(7))]
    with pytest.raises(BulkError, match="foreign_key_violation"):
        destination.publish(lab.stage(destination, late))


def test_a_dead_letter_from_staging_alone_says_as_much(lab: PostgresLab) -> None:
    """So that it is the same change when it is sent again."""
    lab.execute(TABLE)
    destination = lab.destination()
    move = Record(3, {UNCHANGED_TOAST: "b"}, {"id": 3, "a": "y"}, {"id": 3}, {"id": 2}, "update")
    delivery = lab.stage(destination, [truncate(), partial(1, "b", a="x"), move, create(4, a="z", b="w")])
    found = [staged_row(delivery, place) for place in range(4)]
    assert [(one.operation, one.key, one.before, one.metadata) for one in found] == [
        ("delete", None, None, {TRUNCATE: "true"}),
        ("update", {"id": "1"}, None, {UNCHANGED_TOAST: "b"}),
        ("update", {"id": "3"}, {"id": "2"}, {UNCHANGED_TOAST: "b"}),
        ("create", None, None, {}),
    ]
    assert [one.after for one in found[1:3]] == [{"id": "1", "a": "x"}, {"id": "3", "a": "y"}]


def test_references_may_be_left_unchecked(lab: PostgresLab) -> None:
    """As documented: by a parameter in the URL, or until the end of the transaction."""
    lab.execute(f"{TABLE}; CREATE TABLE u (id int PRIMARY KEY, t int REFERENCES t)")
    late = [of("u", create(3, t=7)), of("t", create(7))]
    url = f"{lab.url}?options=-c%20session_replication_role%3Dreplica"
    lab.deliver(lab.destination(table=COLLECTION, url=url), late[:1])
    assert lab.rows("u") == [(3, 7)]
    lab.execute("TRUNCATE t, u; ALTER TABLE u ALTER CONSTRAINT u_t_fkey DEFERRABLE INITIALLY DEFERRED")
    lab.deliver(lab.destination(table=COLLECTION), late)
    assert (lab.rows("u"), lab.rows()) == ([(3, 7)], [(7, None, None)])


@pytest.mark.parametrize("on_conflict", ["error", "update", "ignore"])
def test_keys_may_be_exchanged(lab: PostgresLab, on_conflict: str) -> None:
    """Each row keeps what its record does not mention; rows that refer to the keys stay."""
    lab.execute(f"{TABLE}; INSERT INTO t VALUES (1, 'a', 'b'), (2, 'c', 'd'), (3, 'e', 'f'), (9, 'x', 'y')")
    lab.execute("CREATE TABLE u (t int REFERENCES t); INSERT INTO u VALUES (1), (2)")
    destination = lab.destination(on_conflict=on_conflict)
    lab.deliver(destination, [moved(1, 2, a="A"), moved(2, 3, a="C"), moved(3, 1, a="E"), change("update", 9, a="X")])
    assert lab.rows() == [(1, "E", "f"), (2, "A", "b"), (3, "C", "d"), (9, "X", "y")]
    lab.deliver(destination, [moved(1, 2, a="1"), moved(2, 1, a="2"), moved(2, 3, a="3"), moved(3, 2, a="4")])
    assert lab.rows() == [(1, "2", "b"), (2, "4", "d"), (3, "3", "f"), (9, "X", "y")]
    assert lab.rows("u") == [(1,), (2,)]


def test_keys_are_not_exchanged_where_references_would_follow(lab: PostgresLab) -> None:
    """Rows are deleted for a moment: rows that refer to them would be deleted with them."""
    lab.execute(f"{TABLE}; INSERT INTO t VALUES (1, 'a', 'b'), (2, 'c', 'd')")
    lab.execute("CREATE TABLE u (t int REFERENCES t ON DELETE CASCADE); INSERT INTO u VALUES (1)")
    assert rejected(lab, moved(1, 2, a="a"), moved(2, 1, a="c"))[0] == (0, "postgres.unique_violation")
    assert (len(lab.rows()), lab.rows("u")) == (2, [(1,)])


def test_a_key_that_nobody_makes_free_is_no_exchange(lab: PostgresLab) -> None:
    lab.execute(f"{TABLE}; INSERT INTO t VALUES (1, 'a', 'b'), (2, 'c', 'd'), (3, 'e', 'f')")
    assert rejected(lab, moved(1, 2, a="a"), moved(2, 3, a="c"))[0] == (0, "postgres.unique_violation")
    assert rejected(lab, moved(1, 2, a="a"), change("update", 3, a="x"), moved(2, 1, a="c"))[0][0] == 0
    assert rejected(lab, moved(1, 2, a="a"), moved(2, 2, a="c"))[0][0] == 0
