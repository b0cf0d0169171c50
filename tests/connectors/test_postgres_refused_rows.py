"""Which records a database refuses: a rejection names them, an error that names none is unclassified."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from lab.postgres_lab import PostgresLab, at_half, change, child, create

from conduit_dagster.connectors.postgres.settings import DatabaseServer
from conduit_dagster.connectors.postgres.sqlstates import BulkError, DatabaseErrors
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.sdk import Rejected

LONG = "".join(hashlib.sha256(b"%d" % i).hexdigest() for i in range(200))
"""Too long for an index, and not to be compressed."""


@pytest.mark.parametrize(
    ("table", "bad", "code"),
    [
        ("id int PRIMARY KEY, v text", {"id": 0}, "unique_violation"),
        ("id int, v text CHECK (v <> 'bad')", {"v": "bad"}, "check_violation"),
        ("id int, v varchar(3)", {"v": "too long"}, "string_data_right_truncation"),
        ("id int, v date", {"v": "no date"}, "invalid_datetime_format"),
        ("id int, v int", {"v": "x"}, "invalid_text_representation"),
        ("id int, v text UNIQUE", {"v": LONG}, "program_limit_exceeded"),
    ],
)
@pytest.mark.parametrize("place", [0, 1_999, 4_000, 4_999])
def test_a_rejection_names_its_record(lab: PostgresLab, table: str, bad: dict[str, Any], code: str, place: int) -> None:
    """Wherever it is: the record's place in the delivery, over all parts."""
    lab.execute(f"CREATE TABLE t ({table}); INSERT INTO t (id) VALUES (0)")
    records = [create(i + 1) for i in range(5_000)]
    records[place] = Record(place, {}, {"id": place + 1, **bad})
    destination = lab.destination()
    delivery = lab.stage(destination, records[:2_000], records[2_000:4_000], records[4_000:])
    with pytest.raises(Rejected) as error:
        destination.publish(delivery)
    assert (error.value.place, error.value.nack.code) == (place, f"postgres.{code}")
    assert (lab.rows(), lab.states()) == ([(0, None)], [])
    alone = child(delivery, place)
    with pytest.raises(Rejected) as error:
        destination.publish(alone)
    assert error.value.place == 0


def test_all_refused_rows_are_named_in_order_and_the_others_go_in_at_once(lab: PostgresLab) -> None:
    """A duplicate of a row that passes is refused, one of a refused row is not; nothing is written until then."""
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v int CHECK (v <> 13))")
    numbers = [1, 2, 2, 3, 3, 4, 4, 5]
    values = [0, 0, 0, 13, 0, 0, 0, 13]
    records = [create(n, v=v) for n, v in zip(numbers, values, strict=True)]
    destination = lab.destination()
    delivery = lab.stage(destination, records[:3], records[3:])
    with pytest.raises(Rejected) as error:
        destination.publish(delivery)
    assert [(one.place, one.nack.code) for one in error.value.refusals] == [
        (2, "postgres.unique_violation"),
        (3, "postgres.check_violation"),
        (6, "postgres.unique_violation"),
        (7, "postgres.check_violation"),
    ]
    assert (lab.rows(), lab.states()) == ([], [])
    rest = replace(child(delivery, 0, 7), without=(2, 3, 6))
    assert rest.records == 4
    destination.publish(rest)
    assert lab.rows() == [(1, 0), (2, 0), (3, 0), (4, 0)]


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 2, 7])
def test_a_delivery_with_many_refused_rows_names_the_first_thousand(lab: PostgresLab, every: int) -> None:
    """Later ones are for the next attempt, which begins after them."""
    lab.execute(f"CREATE TABLE t (id int CHECK (id % {every} <> 0))")
    records = [create(i) for i in range(1_200 * every)]
    destination = lab.destination()
    delivery = lab.stage(destination, records[: 500 * every], records[500 * every :])
    with pytest.raises(Rejected) as error:
        destination.publish(delivery)
    assert [one.place for one in error.value.refusals] == [every * n for n in range(1_000)]
    begin = 999 * every + 1
    with pytest.raises(Rejected) as error:
        destination.publish(child(delivery, begin, 1_200 * every - begin))
    assert [one.place + begin for one in error.value.refusals] == [every * n for n in range(1_000, 1_200)]


def test_updates_that_are_refused_are_all_named(lab: PostgresLab) -> None:
    """By the merge, row by row; a later update of the same key is judged separately."""
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v int CHECK (v <> 13))")
    records = [change("update", i % 10, v=13 if i in (4, 17, 25) else i + 100) for i in range(30)]
    destination = lab.destination()
    delivery = lab.stage(destination, records)
    with pytest.raises(Rejected) as error:
        destination.publish(delivery)
    assert [one.place for one in error.value.refusals] == [4, 17, 25]
    destination.publish(replace(child(delivery, 0, 30), without=(4, 17, 25)))
    assert lab.rows() == [(n, 115 if n == 5 else 120 + n if n != 7 else 127) for n in range(10)]


def test_claims_of_many_deliveries_are_one_transaction(lab: PostgresLab) -> None:
    """Records already delivered stay delivered, and are reported as such."""
    lab.execute("CREATE TABLE t (id int)")
    destination = lab.destination()
    delivery = lab.stage(destination, [create(i) for i in range(4)])
    destination.publish(child(delivery, 1))
    found = destination.claim_all([child(delivery, place) for place in range(4)], "nacked")
    assert found == ["nacked", "delivered", "nacked", "nacked"]
    assert lab.execute("SELECT count(DISTINCT xmin::text) FROM conduit_deliveries WHERE state = 'nacked'") == [(1,)]
    assert destination.claim_all([child(delivery, 0)], "split") == ["nacked"]


def test_a_rejection_between_tables_names_its_record(lab: PostgresLab) -> None:
    """Records of two tables by turns are two COPYs; the place still counts the delivery's records."""
    lab.execute("CREATE TABLE a (id int); CREATE TABLE b (id int CHECK (id <> 7))")
    records = [Record(i, {"opencdc.collection": "ab"[i % 2]}, {"id": i}) for i in range(10)]
    destination = lab.destination(table='{{ index .Metadata "opencdc.collection" }}')
    with pytest.raises(Rejected) as error:
        lab.deliver(destination, records[:5], records[5:])
    assert error.value.place == 7


def test_a_bad_row_among_updates_is_named(lab: PostgresLab) -> None:
    """By the COPY into the temporary table, or row by row."""
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v int CHECK (v <> 13))")
    for value, code in (("x", "invalid_text_representation"), (13, "check_violation")):
        records = [change("update", i, v=i + 100) for i in range(50)]
        records[31] = change("update", 31, v=value)
        with pytest.raises(Rejected) as error:
            lab.deliver(lab.destination(), records[:20], records[20:])
        assert (error.value.place, error.value.nack.code) == (31, f"postgres.{code}")
    assert lab.rows() == []


@pytest.mark.parametrize("operation", ["create", "snapshot", "update"])
@pytest.mark.parametrize(("kind", "value"), [("tsquery", "a &"), ("jsonpath", "$$$")])
def test_a_value_with_a_syntax_of_its_own_is_refused_alone(
    lab: PostgresLab, operation: str, kind: str, value: str
) -> None:
    """The server reports it like the syntax of a statement."""
    lab.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {kind})")
    for records in ([None, value, None], [value]):
        with pytest.raises(Rejected) as error:
            lab.deliver(lab.destination(), [change(operation, i, v=one) for i, one in enumerate(records)])
        assert (error.value.place, error.value.nack.code) == (records.index(value), "postgres.syntax_error")


@pytest.mark.parametrize("when", ["", "DEFERRABLE INITIALLY DEFERRED"])
def test_what_names_no_record_is_unclassified_but_for_a_lone_one(lab: PostgresLab, when: str) -> None:
    """A foreign key is checked at the end of the statement, a trigger may raise at that of the transaction."""
    if when:
        lab.execute(
            "CREATE TABLE t (id int); CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN "
            "IF NEW.id = 2 THEN RAISE foreign_key_violation; END IF; RETURN NEW; END'"
        )
        lab.execute(f"CREATE CONSTRAINT TRIGGER g AFTER INSERT ON t {when} FOR EACH ROW EXECUTE FUNCTION f()")
    else:
        lab.execute("CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE t (id int REFERENCES p)")
        lab.execute("INSERT INTO p VALUES (1), (3)")
    destination = lab.destination()
    delivery = lab.stage(destination, [create(1), create(2), create(3)])
    with pytest.raises(BulkError):
        destination.publish(delivery)
    destination.publish(child(delivery, 0))
    with pytest.raises(Rejected) as error:
        destination.publish(child(delivery, 1))
    assert (error.value.place, error.value.nack.code) == (0, "postgres.foreign_key_violation")
    destination.publish(child(delivery, 2))
    assert lab.rows() == [(1,), (3,)]


@pytest.mark.parametrize("operation", ["create", "update"])
@pytest.mark.parametrize("code", ["P0001", "UE001", "45000", "20000", "21000", "38000"])
def test_an_error_of_a_trigger_is_its_record_s(lab: PostgresLab, code: str, operation: str) -> None:
    """Whatever its code is: one of its own, or that of a statement of the trigger."""
    lab.execute(f"""
        CREATE TABLE t (id int PRIMARY KEY);
        CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN IF NEW.id = 2 THEN RAISE 'not two' USING ERRCODE = '{code}'; END IF; RETURN NEW; END $$;
        CREATE TRIGGER f BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()
    """)
    with pytest.raises(Rejected) as error:
        lab.deliver(lab.destination(), [change(operation, i) for i in range(4)])
    assert (error.value.place, error.value.nack.message) == (2, "not two")


def test_rows_whose_keys_a_trigger_makes_equal_are_written_in_order(lab: PostgresLab) -> None:
    lab.execute("""
        CREATE TABLE t (id text PRIMARY KEY, v int);
        CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN NEW.id := lower(NEW.id); RETURN NEW; END $$;
        CREATE TRIGGER f BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()
    """)
    lab.deliver(lab.destination(), [change("update", key, v=i) for i, key in enumerate("aBAb")])
    assert lab.rows() == [("a", 2), ("b", 3)]


@pytest.mark.parametrize("kind", ["DeadlockDetected", "AdminShutdown", "OutOfMemory", "InternalError_", "IoError"])
def test_an_outage_is_no_record_s_fault_and_says_what_to_do(kind: str) -> None:
    error = DatabaseErrors(DatabaseServer.of({}), "").verdict(getattr(psycopg.errors, kind)("no"), 0)
    assert isinstance(error, TransientError) and error.fix


def test_what_the_client_logs_of_an_error_behind_another_has_no_values(
    lab: PostgresLab, caplog: pytest.LogCaptureFixture
) -> None:
    """The server has refused a row already when reading what is staged fails."""
    lab.execute("CREATE TABLE t (id int CHECK (id <> 3), s text)")
    destination = lab.destination()
    delivery = lab.stage(destination, [create(i, s="secret" + "x" * 100_000) for i in range(60)])

    def fail() -> None:
        raise OSError("not readable")

    with at_half(fail), pytest.raises((OSError, Rejected)) as raised:
        destination.publish(delivery)
    # an older client raises what the server said, and logs nothing
    if isinstance(raised.value, OSError):
        assert "error ignored terminating" in caplog.text and "CheckViolation" in caplog.text
    assert "secret" not in caplog.text


def test_a_deferred_reference_that_fails_refuses_no_child_whose_parent_comes_later(lab: PostgresLab) -> None:
    """Sent in pieces, each child would be at fault whose parent is in a later piece."""
    lab.execute("CREATE TABLE p (id int PRIMARY KEY)")
    lab.execute("CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p DEFERRABLE INITIALLY DEFERRED)")
    children = [Record(i, {"opencdc.collection": "c"}, {"id": i, "p": i}, {"id": i}) for i in range(20)]
    # the first version of this row has no parent either, and is replaced
    children += [Record(7, {"opencdc.collection": "c"}, {"id": 7, "p": 8}, {"id": 7}, operation="update")]
    parents = [Record(i, {"opencdc.collection": "p"}, {"id": i}, {"id": i}) for i in range(20) if i not in (5, 7, 9)]
    destination = lab.destination(table='{{ index .Metadata "opencdc.collection" }}')
    delivery = lab.stage(destination, children, parents)
    with pytest.raises(Rejected) as error:
        destination.publish(delivery)
    assert [(one.place, one.nack.code) for one in error.value.refusals] == [
        (5, "postgres.foreign_key_violation"),
        (9, "postgres.foreign_key_violation"),
    ]
    assert "(5)" not in error.value.nack.message, "that is the key of one of them"
    destination.publish(replace(child(delivery, 0, delivery.records), without=(5, 9)))
    assert lab.rows("c") == [(i, 8 if i == 7 else i) for i in range(20) if i not in (5, 9)]


def test_a_delete_of_a_row_to_which_others_refer_is_refused_by_a_deferred_reference_too(lab: PostgresLab) -> None:
    """The deletes beside it, whose children are deleted behind them, are not."""
    lab.execute("CREATE TABLE p (id int PRIMARY KEY); INSERT INTO p VALUES (1), (2), (3)")
    lab.execute("CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p DEFERRABLE INITIALLY DEFERRED)")
    lab.execute("INSERT INTO c VALUES (1, 1), (2, 2), (3, 3)")
    changes = [("p", 1), ("p", 2), ("p", 3), ("c", 1), ("c", 3)]
    records = [Record(0, {"opencdc.collection": name}, None, {"id": i}, operation="delete") for name, i in changes]
    destination = lab.destination(table='{{ index .Metadata "opencdc.collection" }}')
    with pytest.raises(Rejected, match="still referenced") as error:
        destination.publish(lab.stage(destination, records))
    assert [one.place for one in error.value.refusals] == [1]


def test_an_error_of_used_up_locks_names_the_setting(lab: PostgresLab) -> None:
    """PostgreSQL says so in its hint only, and another attempt alone does not help."""
    lab.execute("CREATE TABLE t (id int)")
    lab.execute("""CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_advisory_xact_lock(i) FROM generate_series(1, 10000000) i; RETURN NEW; END'""")
    lab.execute("CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()")
    with pytest.raises(TransientError, match="out of shared memory") as error:
        lab.deliver(lab.destination(), [create(1)])
    assert error.value.fix is not None
    assert "max_locks_per_transaction" in error.value.fix
