"""Faults of a server, a slot or a publication: one clear error, and nothing skipped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from lab.postgres_pooler import pooler
from lab.postgres_reading import ALL_KEYS, PostgresReading, drained, records_of, travelled
from lab.postgres_server import PostgresServer, installations
from pydantic import ValidationError

from conduit_dagster.connectors.postgres.connection import connect, parameters
from conduit_dagster.connectors.postgres.pgoutput import ReplicationStream
from conduit_dagster.connectors.postgres.settings import DatabaseServer
from conduit_dagster.connectors.postgres.source_errors import SourceErrors
from conduit_dagster.connectors.postgres.source_settings import PostgresSourceSettings
from conduit_dagster.record import Record
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError
from conduit_dagster.sdk import Limit

TABLE = "CREATE TABLE a (id bigint PRIMARY KEY, t text)"
FAR = Limit(10**6, 10**9)


def code_of(error: pytest.ExceptionInfo[ConduitError]) -> str:
    assert error.value.fix, "an error says what to do"
    return str(error.value.code)


def test_a_slot_that_is_gone_is_never_made_again_in_silence(reading: PostgresReading) -> None:
    reading.execute(TABLE)
    source = reading.source()
    _, position = drained(source)
    source.close()
    reading.await_idle()
    reading.execute("SELECT pg_drop_replication_slot(%s)", reading.name)
    for look in (lambda s: s.latest(position, FAR), lambda s: s.verify(position, position)):
        with pytest.raises(FatalError) as caught:
            look(reading.source())
        assert code_of(caught) == "postgres.slot_missing" and "rewind" in str(caught.value.fix)


def test_a_slot_that_somebody_else_read_on_is_fatal(reading: PostgresReading) -> None:
    reading.execute(TABLE)
    source = reading.source()
    _, position = drained(source)
    source.close()
    reading.execute("INSERT INTO a VALUES (1)")
    reading.await_idle()
    reading.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())", reading.name)
    with pytest.raises(FatalError) as caught:
        reading.source().latest(position, FAR)
    assert code_of(caught) == "postgres.slot_moved"


def test_no_timeout_of_a_role_ends_a_copy_or_a_stream(reading: PostgresReading) -> None:
    names = "'idle_in_transaction_session_timeout', 'idle_session_timeout', 'transaction_timeout'"
    known = [name for (name,) in reading.execute(f"SELECT name FROM pg_settings WHERE name IN ({names})")]
    url = f"{reading.url}?options={'%20'.join(f'-c%20{name}%3D60000' for name in known)}"
    settings = PostgresSourceSettings.model_validate({"url": url, "tables": "a"})
    show = f"SELECT {', '.join(f'current_setting({name!r})' for name in known)}"
    with closing(connect(settings, SourceErrors(DatabaseServer.of({}), ""), "test")) as connection:
        assert set(connection.execute(show.encode()).fetchone() or ()) == {"0"}
    with closing(ReplicationStream(parameters(settings, "test"))) as stream:
        with pytest.raises(psycopg.errors.UndefinedObject):
            stream.start("none", "none", 0)
        shown = stream._execute(show)
        assert {shown.get_value(0, place) for place in range(len(known))} == {b"0"}


def test_tables_of_another_owner_are_published_by_that_owner(reading: PostgresReading) -> None:
    """Also when a table is added to the publication that the pipeline made."""
    reading.execute(f"{TABLE}; CREATE TABLE b (id int PRIMARY KEY); INSERT INTO a VALUES (1); INSERT INTO b VALUES (1)")
    role = "CREATE ROLE borrower LOGIN REPLICATION PASSWORD 'x'"
    reading.execute(f"DO $$ BEGIN {role}; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    reading.execute("GRANT USAGE ON SCHEMA public TO borrower; GRANT SELECT ON ALL TABLES IN SCHEMA public TO borrower")
    url = f"postgresql://borrower:x@{reading.url.partition('@')[2]}"
    position, found = reading.source().initial(), list[Record]()
    with pytest.raises(FatalError) as checked:  # ``doctor`` said that a run would go
        reading.source(tables="a", url=url, runs=False).check()
    assert "CREATE PUBLICATION" in str(checked.value.fix)
    for tables, verb in (("a", "CREATE PUBLICATION"), ("a, b", "ALTER PUBLICATION")):
        with pytest.raises(FatalError) as caught:
            drained(reading.source(tables=tables, url=url), position)
        assert code_of(caught) == "postgres.no_privilege" and verb in str(caught.value.fix)
        reading.execute(str(caught.value.fix).partition(": ")[2])
        if verb.startswith("CREATE"):
            reading.execute(f"COMMENT ON PUBLICATION {reading.name} IS 'conduit_dagster: p:in'")
        records, position = drained(reading.source(tables=tables, url=url), position)
        found += records
    assert [record.collection for record in found] == ["a", "b"]


@pytest.mark.parametrize("more", ["", "; INSERT INTO a VALUES (4)"], ids=["alone", "and more"])
def test_changes_without_a_publication_are_missed_aloud(reading: PostgresReading, more: str) -> None:
    """From version 18 on the server leaves them out with a warning; the next run makes the publication again."""
    reading.execute(TABLE)
    source = reading.source()
    _, position = drained(source)
    source.close()
    reading.execute(f"INSERT INTO a VALUES (1); DROP PUBLICATION {reading.name}; INSERT INTO a VALUES (2)")
    with pytest.raises(FatalError) as caught:  # without acks: steps may come before the error
        drained(reading.source(), position, acks=False)
    reading.execute(f"SELECT 1{more}")
    assert code_of(caught) == "postgres.publication" and reading.name in str(caught.value)
    with pytest.raises(FatalError) as caught:
        drained(reading.source(), position)
    assert code_of(caught) == "postgres.publication"


def test_a_warning_that_changes_are_left_out_ends_the_stream(reading: PostgresReading) -> None:
    """As version 18 gives it."""
    reading.execute(TABLE)
    drained(reading.source())
    reading.execute("INSERT INTO a VALUES (1)")
    settings = PostgresSourceSettings.model_validate({"url": reading.url, "tables": "a"})
    with closing(ReplicationStream(parameters(settings, "test"))) as stream:
        stream._execute("DO $$ BEGIN RAISE WARNING 'skipped loading publication' USING ERRCODE = '55000'; END $$")
        stream.start(reading.name, reading.name, 0)
        with pytest.raises(psycopg.errors.UndefinedObject, match="left out changes"):
            list(stream.messages(reading.wal(), 0))


def test_a_slot_that_another_program_reads_is_waited_for(
    reading: PostgresReading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conduit_dagster.connectors.postgres.source_reader._PATIENCE", 0.2)
    reading.execute(TABLE)
    source = reading.source()
    _, position = drained(source)
    reading.execute("INSERT INTO a VALUES (1)")
    reading.await_idle()
    settings = PostgresSourceSettings.model_validate({"url": reading.url, "tables": "a"})
    with closing(ReplicationStream(parameters(settings, "another"))) as stream:
        stream.start(reading.name, reading.name, 0)
        with pytest.raises(TransientError, match="PID") as caught:
            drained(source, position)
    assert code_of(caught) == "postgres.slot_active"
    reading.await_idle()
    assert len(drained(source, position)[0]) == 1


def test_a_slot_of_another_pipeline_is_not_taken(reading: PostgresReading) -> None:
    reading.execute(TABLE)
    drained(reading.source("one"))
    with pytest.raises(FatalError, match="one:in") as caught:
        reading.source("two").latest({}, FAR)
    assert code_of(caught) == "postgres.slot_taken"


def test_a_slot_that_is_there_goes_on_where_it_is(reading: PostgresReading) -> None:
    """Created by hand, or by a run that died before its first step: rows and changes are still reported once."""
    reading.execute(f"{TABLE}; INSERT INTO a VALUES (1); CREATE PUBLICATION {reading.name} FOR TABLE a")
    reading.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", reading.name)
    reading.execute("INSERT INTO a VALUES (2)")
    records, _ = drained(reading.source())
    assert [one.key for one in records] == [{"id": 1}, {"id": 2}]


def test_a_slot_of_another_plugin_is_named(reading: PostgresReading) -> None:
    reading.execute(TABLE)
    try:
        reading.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", reading.name)
    except psycopg.errors.UndefinedFile:
        pytest.skip("this server has no other plugin")
    with pytest.raises(FatalError, match="test_decoding") as caught:
        reading.source().latest({}, FAR)
    assert code_of(caught) == "postgres.slot_unusable"


def test_a_publication_of_others_must_have_all_tables(reading: PostgresReading) -> None:
    reading.execute(f"{TABLE}; CREATE TABLE b (id int PRIMARY KEY); CREATE PUBLICATION {reading.name} FOR TABLE a")
    with pytest.raises(FatalError) as caught:
        reading.source(tables="a, b").latest({}, FAR)
    assert code_of(caught) == "postgres.publication"
    assert caught.value.fix == f'ALTER PUBLICATION "{reading.name}" ADD TABLE ONLY "public"."b"'
    reading.execute(
        f"ALTER PUBLICATION {reading.name} SET (publish = 'insert'); ALTER PUBLICATION {reading.name} ADD TABLE b"
    )
    with pytest.raises(FatalError, match="leaves out") as caught:
        reading.source(tables="a, b").latest({}, FAR)


def test_a_table_must_be_there_and_have_a_key_to_be_copied(reading: PostgresReading) -> None:
    reading.execute("CREATE TABLE a (id int)")
    with pytest.raises(FatalError, match=r"public\.nope") as caught:
        reading.source(tables="a, nope").latest({}, FAR)
    assert code_of(caught) == "postgres.no_table"
    with pytest.raises(FatalError, match=r"primary key.*public\.a") as caught:
        reading.source(tables="a").latest({}, FAR)
    assert code_of(caught) == "postgres.no_key"


def test_a_transaction_that_stays_open_is_named(reading: PostgresReading) -> None:
    """A copy that began beside it could miss its writes."""
    reading.execute(f"{TABLE}; CREATE TABLE b (id int PRIMARY KEY)")
    source = reading.source(tables="a")
    _, position = drained(source)
    source.close()
    with closing(psycopg.connect(reading.url)) as early:
        early.execute("INSERT INTO a VALUES (1)")
        with pytest.raises(TransientError, match="still open") as caught:
            reading.source(tables="a, b", **{"lock-timeout": "0.2s"}).latest(position, FAR)
        assert code_of(caught) == "postgres.busy"


def test_a_pooler_is_named_before_anything_is_made(reading: PostgresReading) -> None:
    """The tables were copied through it, the slot kept the WAL, and the stream failed at each start as in an outage."""
    reading.execute(f"{TABLE}; INSERT INTO a VALUES (1)")
    with psycopg.connect(reading.url) as server, pooler(server.info.port) as port:
        url = reading.url.replace(f":{server.info.port}/", f":{port}/")
        for look in (lambda s: s.check(), lambda s: s.latest({}, FAR)):
            with pytest.raises(FatalError, match="startup parameter") as caught:
                look(reading.source(url=url))
            assert code_of(caught) == "postgres.no_replication" and "the server itself" in str(caught.value.fix)
    assert reading.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", reading.name) == []
    assert reading.execute("SELECT FROM pg_publication") == []


def test_two_readers_wait_for_each_other(reading: PostgresReading) -> None:
    """The one that stays, like a frozen owner's task, is ended by the next."""
    reading.execute(f"{TABLE}; INSERT INTO a VALUES (0)")
    source = reading.source()
    _, position = drained(source)
    reading.execute("INSERT INTO a SELECT i, repeat('x', 1000) FROM generate_series(1, 40000) i")
    end = source.latest(position, FAR)
    (split,) = source.split(position, end, 1)
    frozen = source.read(split, ALL_KEYS)
    next(iter(frozen))
    assert len(records_of(reading.source(), position, end)) == 40_000


def test_a_connection_that_is_cut_gives_the_same_records_again(reading: PostgresReading) -> None:
    reading.execute(TABLE)
    source = reading.source()
    _, position = drained(source)
    reading.execute("INSERT INTO a SELECT i, repeat('x', 1000) FROM generate_series(1, 40000) i")
    end = source.latest(position, FAR)
    (split,) = source.split(position, end, 1)
    found = iter(source.read(split, ALL_KEYS))
    first = next(found)
    reading.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", reading.name
    )
    with pytest.raises(TransientError) as caught:
        list(found)
    assert code_of(caught) == "postgres.unreachable"
    # the step is cut at a boundary within the transaction, and the next one continues there
    bound = travelled(first.boundary(len(first.records) - 1))  # type: ignore[union-attr]
    again = records_of(reading.source(), bound, end)
    assert len(first.records) + len(again) == 40_000  # type: ignore[union-attr]
    assert again[0].key == {"id": len(first.records) + 1}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"url": "nope://secret@x"}, "url"),
        ({"tables": " , "}, "tables"),
        ({"tables": "*, a"}, "tables"),
        ({"tables": "a."}, "tables"),
        ({"logrepl.slotName": "Slot-1"}, "logrepl.slotName"),
        ({"snapshotMode": "always"}, "snapshotMode"),
        ({"cdcMode": "triggers"}, "cdcMode"),
    ],
)
def test_settings_are_checked(change: dict[str, str], place: str) -> None:
    with pytest.raises(ValidationError) as caught:
        PostgresSourceSettings.model_validate({"url": "postgresql://u:secret@h/d", "tables": "a", **change})
    assert "secret" not in str(caught.value)
    (flaw,) = caught.value.errors()
    assert flaw["loc"] in ((place,), ())


def test_secrets_are_told_nowhere(reading: PostgresReading) -> None:
    source = reading.source(url="postgresql://nobody:s3cret@127.0.0.1:1/d")
    with pytest.raises(TransientError) as caught:
        source.latest({}, FAR)
    assert "s3cret" not in repr(caught.value) + str(caught.value) + repr(source.settings)


def _restart(server: PostgresServer) -> None:
    server.stop(immediate=False)
    server.start()


class TestServer:
    """Separate servers, because they are broken on purpose."""

    @pytest.fixture
    def server(self) -> Iterator[PostgresServer]:
        with closing(PostgresServer(installations()[0])) as made:
            yield made

    @pytest.mark.slow
    def test_another_cluster_is_told_apart(
        self, server: PostgresServer, postgres_server: PostgresServer, tmp_path: Path
    ) -> None:
        with closing(PostgresReading(postgres_server.create_database(), tmp_path)) as first:
            first.execute(TABLE)
            _, position = drained(first.source())
            with closing(PostgresReading(server.create_database(), tmp_path)) as second:
                second.execute(TABLE)
                with pytest.raises(FatalError) as caught:
                    second.source().latest(position, FAR)
                assert code_of(caught) == "postgres.other_server"

    @pytest.mark.slow
    def test_a_server_that_is_killed_and_started_goes_on(self, server: PostgresServer, tmp_path: Path) -> None:
        with closing(PostgresReading(server.create_database(), tmp_path)) as reading:
            reading.execute(f"{TABLE}; INSERT INTO a VALUES (1)")
            source = reading.source()
            records, position = drained(source)
            reading.execute("INSERT INTO a VALUES (2)")
            server.stop(immediate=True)
            with pytest.raises(TransientError):
                source.latest(position, FAR)
            server.start()
            reading.execute("INSERT INTO a VALUES (3)")
            more, position = drained(source, position)
            assert [one.key for one in records + more] == [{"id": i} for i in (1, 2, 3)]

    @pytest.mark.slow
    def test_rights_and_settings_of_the_server_are_named(self, server: PostgresServer, tmp_path: Path) -> None:
        with closing(PostgresReading(server.create_database(), tmp_path)) as reading:
            reading.execute(f"{TABLE}; CREATE USER poor PASSWORD 'p'; GRANT SELECT ON a TO poor")
            reading.execute(f"CREATE PUBLICATION {reading.name} FOR TABLE a")
            address = reading.url.partition("@")[2]
            with pytest.raises(FatalError) as caught:
                reading.source(url=f"postgresql://poor:p@{address}", tables="a").latest({}, FAR)
            assert code_of(caught) == "postgres.no_privilege" and "REPLICATION" in str(caught.value.fix)
            reading.execute("ALTER USER poor REPLICATION; REVOKE USAGE ON SCHEMA public FROM PUBLIC")
            with pytest.raises(FatalError, match="for schema") as caught:
                reading.source(url=f"postgresql://poor:p@{address}", tables="a").latest({}, FAR)
            assert code_of(caught) == "postgres.no_privilege" and "USAGE ON SCHEMA" in str(caught.value.fix)

    @pytest.mark.slow
    def test_a_server_that_hides_its_identity_is_read_all_the_same(
        self, server: PostgresServer, tmp_path: Path
    ) -> None:
        with closing(PostgresReading(server.create_database(), tmp_path)) as reading:
            reading.execute(f"{TABLE}; INSERT INTO a VALUES (1); CREATE USER poor REPLICATION PASSWORD 'p'")
            reading.execute("GRANT SELECT ON a TO poor; REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
            reading.execute(f"CREATE PUBLICATION {reading.name} FOR TABLE a")
            url = f"postgresql://poor:p@{reading.url.partition('@')[2]}"
            records, position = drained(reading.source(url=url, tables="a"))
            reading.execute("INSERT INTO a VALUES (2)")
            more, position = drained(reading.source(url=url, tables="a"), position)
            # nor does it count as another server once it reports its identity
            reading.execute("INSERT INTO a VALUES (3)")
            more += drained(reading.source(tables="a"), position)[0]
            assert [one.key for one in records + more] == [{"id": i} for i in (1, 2, 3)]

    @pytest.mark.slow
    def test_doctor_asks_for_all_of_it(self, server: PostgresServer, tmp_path: Path) -> None:
        """Each fix is applied as described, and the next one is named; in between nothing is created."""
        with closing(PostgresReading(server.create_database(), tmp_path)) as reading:
            reading.execute(f"{TABLE}; CREATE TABLE b (id int PRIMARY KEY); CREATE USER poor PASSWORD 'p'")
            reading.execute(f"CREATE PUBLICATION {reading.name} FOR TABLE a")
            server.settings.remove("wal_level=logical")
            _restart(server)
            url = f"postgresql://poor:p@{reading.url.partition('@')[2]}"
            wanted = [
                ("postgres.no_privilege", 'GRANT SELECT ON "public"."a" TO poor'),
                ("postgres.no_privilege", 'GRANT SELECT ON "public"."b" TO poor'),
                ("postgres.wal_level", "ALTER SYSTEM SET wal_level = logical; then restart the server"),
                ("postgres.no_privilege", "as a superuser: ALTER ROLE poor REPLICATION"),
                ("postgres.publication", f'ALTER PUBLICATION "{reading.name}" ADD TABLE ONLY "public"."b"'),
            ]
            for code, fix in wanted:
                with pytest.raises(FatalError) as caught:
                    reading.source(url=url, tables="a, b", runs=False).check()
                assert (code_of(caught), caught.value.fix) == (code, fix)
                reading.execute(fix.partition(": ")[2] or fix.partition(";")[0])
                if code == "postgres.wal_level":
                    _restart(server)
            reading.source(url=url, tables="a, b", runs=False).check()
            assert reading.execute("SELECT count(*) FROM pg_replication_slots") == [(0,)]
