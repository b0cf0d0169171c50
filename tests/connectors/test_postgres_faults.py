"""Faults of the database: an outage is never a nack, and no secret is revealed."""

from __future__ import annotations

import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from lab.postgres_lab import PostgresLab, at_half, change, create
from lab.postgres_server import PostgresServer
from lab.waiting import at_once, wait_until
from pydantic import ValidationError

from conduit_dagster.connectors.postgres.settings import DatabaseServer, PostgresDestinationSettings
from conduit_dagster.connectors.postgres.sqlstates import DatabaseErrors
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError

END_OTHERS = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name LIKE 'conduit:%' AND datname = current_database()
"""


# -- outages ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["create", "update", "snapshot"])
def test_a_connection_cut_in_the_middle_writes_nothing(lab: PostgresLab, operation: str) -> None:
    """A transient error, no nack; the same destination continues with a new connection."""
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
    [({"lock_timeout": "2s"}, "postgres.busy"), ({"statement_timeout": "2s"}, "postgres.timeout")],
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


_COUNTED = """
    CREATE TABLE t (id int PRIMARY KEY);
    CREATE SEQUENCE attempts;
    CREATE FUNCTION attempted() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM nextval('attempts'); RETURN NEW; END $$;
    CREATE TRIGGER attempted BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION attempted()
"""


@pytest.mark.parametrize("operation", ["create", "snapshot"])
def test_rows_that_others_hold_are_waited_for_once(lab: PostgresLab, operation: str) -> None:
    """Not once for each of them, as refused rows are searched for."""
    lab.execute(_COUNTED)
    destination = lab.destination(lock_timeout="100ms")
    delivery = lab.stage(destination, [change(operation, i) for i in range(100)])
    with psycopg.connect(lab.url) as other:
        other.execute("INSERT INTO t SELECT generate_series(0, 29)")
        with pytest.raises(TransientError) as error:
            destination.publish(delivery)
        other.rollback()
    assert error.value.code == "postgres.busy"
    # those of the other one, and a single one
    assert lab.execute("SELECT last_value FROM attempts") == [(31,)]
    destination.publish(delivery)
    assert len(lab.rows()) == 100


def test_two_publishers_of_one_delivery_write_it_once(lab: PostgresLab) -> None:
    """The second waits for the first one's transaction, and then finds it delivered."""
    lab.execute("CREATE TABLE t (id int)")
    first, second = lab.destination(), lab.destination()
    delivery = lab.stage(first, [create(i) for i in range(100)])
    with ThreadPoolExecutor(1) as pool:
        waiting = _StartAndAwait(lab, lambda: pool.submit(second.publish, delivery))
        with at_half(waiting):
            first.publish(delivery)
        waiting.later.result(120)
    assert len(lab.rows()) == 100


class _StartAndAwait:
    """Start something else, and continue once that waits for a lock."""

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
        assert waiting.later.result(120) == ("delivered" if commits else "nacked")
    assert lab.rows() == ([(1,)] if commits else [])


def _fail() -> None:
    raise ZeroDivisionError


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
    """Neither in its message nor in its place, fix or traceback."""
    url = _replaced(lab.url, **parts)
    password = urlsplit(url).password
    assert password
    lab.url = url
    destination = lab.destination(connect_timeout="30s")
    for call in (destination.check, lambda: destination.fence(1), lambda: lab.stage(destination, [create(1)])):
        with pytest.raises(kind) as error:
            call()
        found = error.value
        assert found.code == code and found.fix and found.place
        told = "".join(traceback.format_exception(found)) + repr((found.message, found.place, found.fix, found.args))
        for secret in (password, "pa/ss w0rd"):
            assert secret not in told
    assert password not in destination.address + repr(destination.settings) + str(destination.settings)


@pytest.mark.parametrize(
    "url",
    ["", "postgresql://u:hush@host:notaport/d", "hush", "postgresql://u:hush@h/d?nope=1", "postgresql://u:a@hush@h/d"],
)
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
    # the table's own grants are not enough
    admin.execute("ALTER TABLE t ADD COLUMN s serial")
    with pytest.raises(FatalError, match="sequence t_s_seq") as error:
        lab.deliver(limited, [create(2)])
    assert "USAGE on its schema, and on the sequences" in str(error.value.fix)
    admin.execute("REVOKE USAGE ON SCHEMA public FROM limited, PUBLIC")
    with pytest.raises(FatalError, match="schema public") as error:
        limited.check()
    assert "USAGE on its schema" in str(error.value.fix)
    admin.execute("DROP OWNED BY limited; DROP ROLE limited")


def test_updates_need_a_unique_index(lab: PostgresLab) -> None:
    lab.execute("CREATE TABLE t (id int, v int)")
    with pytest.raises(FatalError) as error:
        lab.deliver(lab.destination(), [change("update", 1, v=1)])
    assert error.value.code == "postgres.no_unique_index" and "UNIQUE INDEX" in str(error.value.fix)


REFUSED = {
    "a full role": ("CONNECTION LIMIT 0", "", "postgres.busy", "max_connections"),
    "a server without TLS": ("", "?sslmode=require", "postgres.unreachable", "sslmode"),
    "no standby": ("", "?target_session_attrs=standby", "postgres.read_only", "target_session_attrs"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_server_that_refuses_is_not_said_to_be_down(case: str, lab: PostgresLab) -> None:
    limit, more, code, fix = REFUSED[case]
    lab.execute("DROP ROLE IF EXISTS guest")
    lab.execute(f"CREATE ROLE guest LOGIN PASSWORD 'welcome' {limit}")
    parts = urlsplit(lab.url)
    url = urlunsplit(parts._replace(netloc=f"guest:welcome@{parts.hostname}:{parts.port}")) + more
    with pytest.raises(TransientError) as error:
        PostgresLab(url, lab.root).destination().check()
    assert error.value.code == code and fix in str(error.value.fix) and "start the server" not in str(error.value.fix)
    lab.execute("DROP ROLE guest")


def test_a_refusal_in_another_language_is_not_said_to_be_an_absent_server() -> None:
    """libpq has no code for it."""
    text = 'connection to server at "127.0.0.1", port 5432 failed: ВАЖНО:  база данных не принимает подключения'
    error = DatabaseErrors(DatabaseServer.of({}), "").connecting(psycopg.OperationalError(text))
    assert error.code == "postgres.unreachable" and "the server is up" in str(error.fix)


_CLOSED = "server closed the connection unexpectedly"
_STARTING = "FATAL:  the database system is not yet accepting connections"


@pytest.mark.parametrize(
    ("reason", "more"),
    [(_CLOSED, "\tThis probably means …\n\tbefore or while processing"), (_STARTING, "DETAIL:  Consistent recovery …")],
)
def test_an_outage_is_told_in_a_whole_sentence(reason: str, more: str) -> None:
    """libpq puts hints, and what the server adds, on lines of their own."""
    error = psycopg.OperationalError(f"connection failed: {reason}\n{more}")
    errors = DatabaseErrors(DatabaseServer.of({}), "")
    assert all(str(told).endswith(reason) for told in (errors.connecting(error), errors.verdict(error)))


STATE = "postgres.object_not_in_prerequisite_state"
UNFIT = {
    "a deferrable key": (
        "CREATE TABLE t (id int PRIMARY KEY DEFERRABLE, v int)", STATE, "DEFERRABLE",
    ),
    "a published table without an identity": (
        "CREATE TABLE t (id int PRIMARY KEY, v int); CREATE PUBLICATION unfit FOR TABLE t; "
        "INSERT INTO t VALUES (1, 0); ALTER TABLE t REPLICA IDENTITY NOTHING", STATE, "REPLICA IDENTITY",
    ),
    "a view": ("CREATE TABLE base (id int, v int); CREATE VIEW t AS TABLE base", "postgres.no_table", "a view is none"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNFIT)
def test_a_table_that_takes_no_updates_says_why(case: str, lab: PostgresLab) -> None:
    made, code, fix = UNFIT[case]
    lab.execute(made)
    with pytest.raises(FatalError) as error:
        lab.deliver(lab.destination(), [change("update", 1, v=1)])
    assert error.value.code == code and fix in str(error.value.fix)


def test_a_user_whose_transactions_read_only_is_told(lab: PostgresLab) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database = lab.execute("SELECT current_database()")[0][0]
    lab.execute(f'ALTER DATABASE "{database}" SET default_transaction_read_only = on')
    try:
        with pytest.raises(TransientError) as error:
            lab.destination().check()
        assert error.value.code == "postgres.read_only" and "default_transaction_read_only" in str(error.value.fix)
    finally:
        with psycopg.connect(lab.url, autocommit=True, options="-c default_transaction_read_only=off") as connection:
            connection.execute(f'ALTER DATABASE "{database}" RESET ALL'.encode())


def test_updates_of_an_identity_column_need_one_that_takes_values(lab: PostgresLab) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY)")
    destination = lab.destination()
    lab.deliver(destination, [change("create", 1, n=5)])
    delivery = lab.stage(destination, [change("update", 1, n=7)])
    with pytest.raises(FatalError, match='"n"') as error:
        destination.publish(delivery)
    assert error.value.code == "postgres.generated_always"
    assert error.value.fix and "ALTER TABLE public.t ALTER COLUMN … SET GENERATED BY DEFAULT" in error.value.fix
    lab.execute("ALTER TABLE t ALTER n SET GENERATED BY DEFAULT")
    destination.publish(delivery)
    assert lab.rows() == [(1, 7)]


def test_many_make_the_table_of_deliveries_at_once(lab: PostgresLab) -> None:
    for _ in range(20):  # what the second one finds depends on how far the first one got
        checks = [lab.destination(create_table="auto").check for _ in range(8)]
        at_once(lambda number, checks=checks: checks[number](), 8)
        assert lab.states() == []  # it exists and is empty
        lab.execute("DROP TABLE conduit_deliveries")
