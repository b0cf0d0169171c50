"""What goes wrong at the database: an outage is never a nack, a rejection names its record, no secret is told."""

from __future__ import annotations

import hashlib
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from lab.postgres_lab import PostgresLab, at_half, change, child, create
from lab.postgres_server import PostgresServer
from lab.waiting import at_once, wait_until
from pydantic import ValidationError

from conduit_dagster.connectors.postgres.settings import PostgresDestinationSettings
from conduit_dagster.connectors.postgres.sqlstates import BulkError
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError
from conduit_dagster.sdk import Delivery, Rejected

END_OTHERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name LIKE 'conduit:%' AND datname = current_database()
"""
LONG = "".join(hashlib.sha256(b"%d" % i).hexdigest() for i in range(200))
"""Too long for an index, and not to be compressed."""


# -- which record -------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("every", [1, 2, 7])
def test_a_delivery_with_many_refused_rows_names_the_first_thousand(lab: PostgresLab, every: int) -> None:
    """Those behind are for the next attempt, which begins after them."""
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
    """By the merge, row by row; a later update of the same key is judged by itself."""
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
    """What is delivered already stays so, and is told of each."""
    lab.execute("CREATE TABLE t (id int)")
    destination = lab.destination()
    delivery = lab.stage(destination, [create(i) for i in range(4)])
    destination.publish(child(delivery, 1))
    found = destination.claim_all([child(delivery, place) for place in range(4)], "nacked")
    assert found == ["nacked", "delivered", "nacked", "nacked"]
    assert lab.execute("SELECT count(DISTINCT xmin::text) FROM conduit_deliveries WHERE state = 'nacked'") == [(1,)]
    assert destination.claim_all([child(delivery, 0)], "split") == ["nacked"]


def test_a_rejection_between_tables_names_its_record(lab: PostgresLab) -> None:
    """Records of two tables in turns are two COPYs; the place still counts the delivery's records."""
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


@pytest.mark.parametrize("when", ["", "DEFERRABLE INITIALLY DEFERRED"])
def test_what_names_no_record_is_unclassified_but_for_a_lone_one(lab: PostgresLab, when: str) -> None:
    """A foreign key is checked at the end of the statement, or of the transaction."""
    lab.execute(f"CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE t (id int REFERENCES p {when})")
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


def test_an_error_of_a_trigger_is_its_record_s(lab: PostgresLab) -> None:
    lab.execute("""
        CREATE TABLE t (id int);
        CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN IF NEW.id = 2 THEN RAISE 'not two'; END IF; RETURN NEW; END $$;
        CREATE TRIGGER f BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()
    """)
    with pytest.raises(Rejected) as error:
        lab.deliver(lab.destination(), [create(i) for i in range(4)])
    assert (error.value.place, error.value.nack.message) == (2, "not two")


# -- outages ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["create", "update"])
def test_a_connection_cut_in_the_middle_writes_nothing(lab: PostgresLab, operation: str) -> None:
    """A transient error, no nack; and the same destination goes on with a new connection."""
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    destination = lab.destination()
    records = [change(operation, i, v="x" * 500) for i in range(5_000)]
    delivery = lab.stage(destination, records)
    with at_half(lambda: lab.execute(END_OTHERS)), pytest.raises(TransientError) as error:
        destination.publish(delivery)
    assert error.value.code == "postgres.unreachable"
    assert (lab.rows(), lab.states(), destination.holds(delivery)) == ([], [], False)
    destination.publish(delivery)
    assert len(lab.rows()) == 5_000


@pytest.mark.slow
def test_a_stopped_server_is_an_outage(lab: PostgresLab, postgres_server: PostgresServer) -> None:
    lab.execute("CREATE TABLE t (id int)")
    destination = lab.destination()
    delivery = lab.stage(destination, [create(1)])
    destination.check()
    postgres_server.stop()
    try:
        for call in (destination.publish, destination.holds):
            with pytest.raises(TransientError) as error:
                call(delivery)
            assert error.value.code == "postgres.unreachable"
        with pytest.raises(TransientError):
            lab.destination().check()
    finally:
        postgres_server.start()
    destination.publish(delivery)
    assert lab.rows() == [(1,)]


def test_an_idle_connection_that_was_cut_is_made_anew(lab: PostgresLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.execute("CREATE TABLE t (id int)")
    monkeypatch.setattr("conduit_dagster.connectors.postgres.connection._IDLE", 0.0)
    destination = lab.destination()
    lab.deliver(destination, [create(1)])
    lab.execute(END_OTHERS)
    lab.deliver(destination, [create(2)])
    assert lab.rows() == [(1,), (2,)]


@pytest.mark.parametrize(
    ("settings", "code"),
    [({"lock_timeout": "50ms"}, "postgres.busy"), ({"statement_timeout": "50ms"}, "postgres.timeout")],
)
def test_a_lock_that_is_not_given_is_an_outage(lab: PostgresLab, settings: dict[str, str], code: str) -> None:
    lab.execute("CREATE TABLE t (id int)")
    destination = lab.destination(**settings)
    delivery = lab.stage(destination, [create(1)])
    with psycopg.connect(lab.url) as other:
        other.execute("LOCK TABLE t IN EXCLUSIVE MODE")
        with pytest.raises(TransientError) as error:
            destination.publish(delivery)
    assert error.value.code == code
    destination.publish(delivery)
    assert lab.rows() == [(1,)]


def test_two_publishers_of_one_delivery_write_it_once(lab: PostgresLab) -> None:
    """The second waits for the first one's transaction, and then finds it delivered."""
    lab.execute("CREATE TABLE t (id int)")
    first, second = lab.destination(), lab.destination()
    delivery = lab.stage(first, [create(i) for i in range(100)])
    with ThreadPoolExecutor(1) as pool:
        waiting = _StartAndAwait(lab, lambda: pool.submit(second.publish, delivery))
        with at_half(waiting):
            first.publish(delivery)
        waiting.later.result(60)
    assert len(lab.rows()) == 100


class _StartAndAwait:
    """Starts something else, and goes on when that waits for a lock."""

    def __init__(self, lab: PostgresLab, start: Any) -> None:
        self._lab, self._start = lab, start
        self.later: Any = None

    def __call__(self) -> None:
        self.later = self._start()
        waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        wait_until(lambda: self._lab.execute(waits), "it waits for a lock", over=self.later.done)


@pytest.mark.parametrize("commits", [True, False])
def test_a_claim_waits_for_an_open_publish(lab: PostgresLab, commits: bool) -> None:
    """So that a late success and a nack can't both happen."""
    lab.execute("CREATE TABLE t (id int)")
    first, second = lab.destination(), lab.destination()
    delivery = lab.stage(first, [create(1)])
    with ThreadPoolExecutor(1) as pool:
        waiting = _StartAndAwait(lab, lambda: pool.submit(second.claim, delivery, "nacked"))
        if commits:
            with at_half(waiting):
                first.publish(delivery)
        else:
            with at_half(lambda: (waiting(), _fail())), pytest.raises(ZeroDivisionError):
                first.publish(delivery)
        assert waiting.later.result(60) == ("delivered" if commits else "nacked")
    assert lab.rows() == ([(1,)] if commits else [])


def _fail() -> None:
    raise ZeroDivisionError


# -- fence --------------------------------------------------------------------------------------------------------


def test_a_fence_ends_the_transaction_of_a_frozen_owner(lab: PostgresLab) -> None:
    """The new owner publishes the same delivery at once; the old one thaws to an error, and to a delivery done."""
    lab.execute("CREATE TABLE t (id int, v text)")
    old, new, other = lab.destination(), lab.destination(), lab.destination("another")
    for epoch, one in ((1, old), (1, other)):
        one.fence(epoch)
    delivery = lab.stage(old, [create(i, v="x" * 1_000) for i in range(3_000)])

    def take_over() -> None:
        new.fence(2)
        new.publish(delivery)

    with at_half(take_over), pytest.raises(TransientError):
        old.publish(delivery)
    assert len(lab.rows()) == 3_000
    old.publish(delivery)
    assert len(lab.rows()) == 3_000
    names = [
        row[0]
        for row in lab.execute("SELECT application_name FROM pg_stat_activity WHERE datname = current_database()")
    ]
    epochs = sorted(name.rpartition(":")[2] for name in names if name.startswith("conduit:"))
    # the thawed old one is back, and harmless; another pipeline's was never touched
    assert epochs == ["1", "1", "2"]


# -- what can't work ----------------------------------------------------------------------------------------------


def _replaced(url: str, **parts: Any) -> str:
    pieces = urlsplit(url)
    user, password = parts.get("user", pieces.username), parts.get("password", pieces.password)
    place = f"{user}:{password}@{parts.get('host', pieces.hostname)}:{parts.get('port', pieces.port)}"
    return urlunsplit((pieces.scheme, place, parts.get("path", pieces.path), parts.get("query", ""), ""))


SECRET = "pa%2Fss w0rd".replace(" ", "%20")
BROKEN: list[tuple[dict[str, Any], type[ConduitError], str]] = [
    ({"password": SECRET}, FatalError, "postgres.login"),
    ({"user": "nobody", "password": SECRET}, FatalError, "postgres.login"),
    ({"host": "no.such.host.invalid", "password": SECRET}, TransientError, "postgres.unreachable"),
    ({"port": 1, "password": SECRET}, TransientError, "postgres.unreachable"),
    ({"path": "/missing"}, FatalError, "postgres.no_database"),
    ({"query": "options=-cno_such_setting%3D1"}, TransientError, "postgres.unreachable"),
]


@pytest.mark.parametrize(("parts", "kind", "code"), BROKEN)
def test_no_error_tells_a_secret(lab: PostgresLab, parts: dict[str, Any], kind: type[ConduitError], code: str) -> None:
    """Neither its message nor its place, fix or traceback."""
    url = _replaced(lab.url, **parts)
    password = urlsplit(url).password
    assert password
    lab.url = url
    destination = lab.destination(connect_timeout="2s")
    for call in (destination.check, lambda: destination.fence(1), lambda: lab.stage(destination, [create(1)])):
        with pytest.raises(kind) as error:
            call()
        found = error.value
        assert found.code == code and found.fix and found.place
        told = "".join(traceback.format_exception(found)) + repr((found.message, found.place, found.fix, found.args))
        for secret in (password, "pa/ss w0rd"):
            assert secret not in told
    assert password not in destination.address + repr(destination.settings) + str(destination.settings)


@pytest.mark.parametrize("url", ["", "postgresql://u:hush@host:notaport/d", "hush", "postgresql://u:hush@h/d?nope=1"])
def test_a_url_that_is_none_is_a_finding_without_it(url: str) -> None:
    with pytest.raises(ValidationError) as error:
        PostgresDestinationSettings.model_validate({"url": url})
    assert "hush" not in str(error.value) and "hush" not in repr(error.value)
    # a finding about a field quotes what the file says there
    assert all(not flaw["loc"] for flaw in error.value.errors())


@pytest.mark.parametrize(
    ("setup", "settings", "code"),
    [
        ("", {}, "postgres.no_table"),
        ("CREATE TABLE t (id int)", {"key": "nope"}, "postgres.no_column"),
        ("CREATE TABLE t (id int)", {"schema": "nope"}, "postgres.no_schema"),
        ("CREATE VIEW t AS SELECT 1 AS id", {}, "postgres.no_table"),
    ],
)
def test_what_is_missing_is_fatal_before_anything_is_read(
    lab: PostgresLab, setup: str, settings: dict[str, str], code: str
) -> None:
    if setup:
        lab.execute(setup)
    with pytest.raises(FatalError) as error:
        lab.destination(**settings).check()
    assert (error.value.code, bool(error.value.fix)) == (code, True)


def test_missing_rights_say_what_to_grant(lab: PostgresLab) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    lab.destination().check()
    lab.execute("CREATE ROLE limited LOGIN PASSWORD 'limited-secret'")
    lab.execute("GRANT USAGE ON SCHEMA public TO limited")
    owner, lab.url = lab.url, _replaced(lab.url, user="limited", password="limited-secret")
    limited = lab.destination()
    with pytest.raises(FatalError, match="conduit_deliveries"):
        limited.check()
    admin = PostgresLab(owner, lab.root)
    admin.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON conduit_deliveries TO limited")
    with pytest.raises(FatalError) as error:
        limited.check()
    assert error.value.code == "postgres.no_privilege" and "GRANT" in str(error.value.fix)
    admin.execute("GRANT INSERT ON t TO limited")
    limited.check()
    lab.deliver(limited, [create(1)])
    with pytest.raises(FatalError) as error:
        lab.deliver(limited, [change("update", 1, v=2)])
    assert error.value.code == "postgres.no_privilege" and "GRANT" in str(error.value.fix)
    assert admin.rows() == [(1, None)]
    admin.execute("DROP OWNED BY limited; DROP ROLE limited")


def test_updates_need_a_unique_index(lab: PostgresLab) -> None:
    lab.execute("CREATE TABLE t (id int, v int)")
    with pytest.raises(FatalError) as error:
        lab.deliver(lab.destination(), [change("update", 1, v=1)])
    assert error.value.code == "postgres.no_unique_index" and "UNIQUE INDEX" in str(error.value.fix)


def test_many_make_the_table_of_deliveries_at_once(lab: PostgresLab) -> None:
    for _ in range(20):  # what the second one meets depends on how far the first one is
        checks = [lab.destination(create_table="auto").check for _ in range(8)]
        at_once(lambda number, checks=checks: checks[number](), 8)
        assert lab.states() == []  # it is there, and empty
        lab.execute("DROP TABLE conduit_deliveries")


def test_damaged_staging_is_named(lab: PostgresLab) -> None:
    lab.execute("CREATE TABLE t (id int)")
    destination = lab.destination()
    delivery: Delivery = lab.stage(destination, [create(1)])
    (Path(delivery.staging) / delivery.parts[0].name).write_bytes(b"x" * delivery.parts[0].bytes)
    with pytest.raises(FatalError) as error:
        destination.publish(delivery)
    assert error.value.code == "postgres.staging"
