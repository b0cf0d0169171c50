"""Opening a store: by URL, concurrently, without revealing its password; reading; which project owns it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from lab.small_disk import fill, mounted
from lab.waiting import at_once
from sqlalchemy.exc import OperationalError

from conduit_dagster.cli.verb import unforeseen
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError
from conduit_dagster.state import sqlite_store, tables
from conduit_dagster.state.claim import claim_store, open_store
from conduit_dagster.state.database import make_engine, open_database, reading, unreachable
from conduit_dagster.state.history import events, record_event
from conduit_dagster.state.lease import Transactions, acquire
from conduit_dagster.state.recovery_state import record_request
from conduit_dagster.state.row_statements import insert_if_absent

# waits for its input to close, so that all of them open the store at the same moment
OPEN = """
import sys
from conduit_dagster.state.database import open_database
print("ready", flush=True)
sys.stdin.read()
engine = open_database(sys.argv[1])
with engine.connect() as connection:
    count = connection.exec_driver_sql("SELECT count(*) FROM conduit_step_deliveries").scalar_one()
    print(count, "alembic" in sys.modules)
"""


def open_at_once(url: str, count: int) -> list[str]:
    """What each of several processes that open a store at once reports: its deliveries, and whether it migrated."""
    command = [sys.executable, "-c", OPEN, url]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(count)]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    return [process.communicate()[0].strip() for process in processes]


@pytest.mark.slow
def test_a_new_store_may_be_opened_by_many_processes_at_once(database_url: str) -> None:
    """One creates the tables; and none needs Alembic for it."""
    assert open_at_once(database_url, 6) == ["0 False"] * 6


def test_a_store_is_opened_while_somebody_writes(database: sa.Engine, database_url: str) -> None:
    """A verb that only reads does not wait for a run."""
    with database.begin() as writer:
        writer.execute(tables.meta.insert().values(name="x", value="1"))
        second = open_database(database_url)
        with reading(second) as connection:
            assert connection.execute(sa.select(tables.meta.c.name).where(tables.meta.c.name == "x")).first() is None
        second.dispose()


def test_a_reader_sees_one_moment(database: sa.Engine) -> None:
    """Several statements of a reader are consistent, whatever is committed between them."""
    count = sa.select(sa.func.count()).select_from(tables.meta)
    with reading(database) as reader:
        before = reader.execute(count).scalar_one()
        with database.begin() as writer:
            writer.execute(tables.meta.insert().values(name="x", value="1"))
        assert reader.execute(count).scalar_one() == before
    with reading(database) as reader:
        assert reader.execute(count).scalar_one() == before + 1


def test_of_two_that_insert_a_row_one_does(database: sa.Engine) -> None:
    done = list[bool]()

    def insert(number: int) -> None:
        with database.begin() as connection:
            done.append(insert_if_absent(connection, tables.meta, name="x", value=str(number)))

    at_once(insert, 4)
    assert sorted(done) == [False, False, False, True]


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_each_way_to_name_postgresql_is_psycopg(scheme: str) -> None:
    engine = make_engine(f"{scheme}://me:pw@h/d")
    assert (engine.dialect.name, engine.dialect.driver) == ("postgresql", "psycopg")


@pytest.mark.parametrize(("query", "name"), [("", "conduit-dagster"), ("?application_name=mine", "mine")])
def test_settings_of_a_connection_can_be_given_in_the_url(postgres_url: str, query: str, name: str) -> None:
    engine = make_engine(f"{postgres_url}{query}")
    show = "SELECT current_setting('application_name'), current_setting('lock_timeout')"
    with engine.connect() as connection:
        assert connection.exec_driver_sql(show).one() == (name, "10s")
    engine.dispose()


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("postgresql://me:s3cret@127.0.0.1:1/d", "state.unreachable"),
        ("postgresql://me@127.0.0.1:1/d?password=s3cret", "state.unreachable"),
        ("postgresql://me:pw@s3cret@127.0.0.1:1/d", "state.url"),
        ("postgresql://me:pw@127.0.0.1:s3cret/d", "state.url"),
        ("mysql://me:s3cret@h/d", "state.url"),
        ("s3cret", "state.url"),
    ],
)
def test_a_store_that_cannot_be_opened_is_named_without_its_password(url: str, code: str) -> None:
    with pytest.raises(ConduitError) as caught:
        open_database(url)
    error = caught.value
    assert error.code == code
    assert error.fix
    assert "s3cret" not in f"{error.message} {error.place} {error.fix} {error.__cause__}"


def test_a_wrong_password_is_not_repeated(postgres_url: str) -> None:
    wrong = sa.make_url(postgres_url).set(password="s3cret")
    with pytest.raises(TransientError, match="password authentication failed") as caught:
        open_database(wrong.render_as_string(hide_password=False))
    assert "s3cret" not in str(caught.value) + str(caught.value.place) + str(caught.value.__cause__)


def test_a_folder_that_cannot_be_made_is_named() -> None:
    with pytest.raises(TransientError) as caught:
        open_database("sqlite:////proc/nothing/state.db")
    assert caught.value.code == "state.unreachable"
    assert caught.value.fix


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    file.write_bytes(b"something else" * 100)
    with pytest.raises(FatalError, match="not a database") as caught:
        open_database(f"sqlite:///{file}")
    assert caught.value.code == "state.damaged"
    assert caught.value.fix and "backup" in caught.value.fix and "right" not in caught.value.fix
    assert file.read_bytes() == b"something else" * 100


def test_a_home_and_a_new_store_know_each_other(database: sa.Engine, tmp_path: Path) -> None:
    home = tmp_path / "home"
    mine = claim_store(database, home)
    assert (home / "project").read_text().strip() == mine
    assert claim_store(database, home) == mine
    assert [file.name for file in home.iterdir()] == ["project"]


def test_a_home_without_an_id_adopts_the_stores(database: sa.Engine, tmp_path: Path) -> None:
    """A fresh container, or a home that was deleted."""
    mine = claim_store(database, tmp_path / "one")
    assert claim_store(database, tmp_path / "two") == mine
    assert (tmp_path / "two" / "project").read_text().strip() == mine


def test_a_new_store_takes_the_id_of_its_home_once_it_is_accepted(database: sa.Engine, tmp_path: Path) -> None:
    """A project that moves to another database is still the same project."""
    first = open_database(f"sqlite:///{tmp_path}/first.db")
    mine = claim_store(first, tmp_path / "home")
    with pytest.raises(FatalError) as caught:
        claim_store(database, tmp_path / "home")
    assert caught.value.code == "state.lost"
    assert claim_store(database, tmp_path / "home", accept_new=True) == mine
    assert claim_store(database, tmp_path / "home") == mine
    first.dispose()


def test_a_foreign_store_is_refused(database: sa.Engine, database_url: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "project").write_text("0ther\n")
    mine = claim_store(database, tmp_path / "home")
    with pytest.raises(FatalError) as caught:
        claim_store(database, tmp_path / "other")
    error = caught.value
    assert error.code == "state.foreign"
    assert mine in error.message and "0ther" in error.message
    assert error.fix and "other/project" in error.fix
    secret = sa.make_url(database_url).password
    assert secret is None or str(secret) not in f"{error.message} {error.place} {error.fix}"
    (tmp_path / "other" / "project").unlink()
    assert claim_store(database, tmp_path / "other") == mine


def test_many_that_claim_at_once_agree(database: sa.Engine, tmp_path: Path) -> None:
    """Of several homes of one store, each claimed twice at once."""
    found = list[str]()
    at_once(lambda number: found.append(claim_store(database, tmp_path / str(number // 2))), 6)
    homes = {(tmp_path / str(number) / "project").read_text().strip() for number in range(3)}
    assert len(found) == 6
    assert set(found) == homes
    assert len(homes) == 1


def test_one_home_belongs_to_one_of_two_stores_that_are_claimed_at_once(tmp_path: Path) -> None:
    engines = [open_database(f"sqlite:///{tmp_path}/{number}.db") for number in range(2)]
    found, refused = list[str](), list[FatalError]()

    def claim(number: int) -> None:
        try:
            found.append(claim_store(engines[number], tmp_path / "home"))
        except FatalError as error:
            refused.append(error)

    at_once(claim, 2)
    assert len(found) + len(refused) == 2
    assert set(found) == {(tmp_path / "home" / "project").read_text().strip()}
    for engine in engines:
        engine.dispose()


NAMES = [
    "a'b", 'a"b', "'; DROP TABLE conduit_meta; --", "a\\b", "%s %(x)s", ":name", "a\nb", "\u202eünï😀", "x" * 256, "\0",
    "\ud800", "$1", "?", "{}",
]  # fmt: skip


def test_any_name_is_only_a_value(database: sa.Engine) -> None:
    """For a collection, and for what a destination owns; each is found again by it, and by no other."""
    namespaces, owners = tables.collections.c, tables.owners.c
    own = {"pipeline": "p", "source": "in", "mode": "copy", "at_ns": 1}
    with database.begin() as connection:
        for number, name in enumerate(NAMES):
            connection.execute(tables.collections.insert().values(**own, namespace=name, offset=number))
            connection.execute(tables.owners.insert().values(thing=name, pipeline="p", consumer=str(number)))
        for number, name in enumerate(NAMES):
            found = connection.execute(sa.select(owners.consumer).where(owners.thing == name)).scalars().all()
            same = connection.execute(sa.select(namespaces.offset).where(namespaces.namespace == name)).scalars().all()
            assert (found, same) == ([str(number)], [number]), name
        assert connection.execute(sa.select(sa.func.count()).select_from(tables.meta)).scalar_one() == 0


def test_long_paths_of_two_destinations_stay_two(database: sa.Engine) -> None:
    """A path is longer than a column on PostgreSQL may be; none is shortened to another's."""
    first, second = ("/x" * 1_000 + end for end in ("/a", "/b"))
    with database.begin() as connection:
        for thing in (first, second):
            assert insert_if_absent(connection, tables.owners, thing=thing, pipeline="p", consumer=thing[-1])
        found = sa.select(tables.owners.c.consumer).where(tables.owners.c.thing == second)
        assert connection.execute(found).scalars().all() == ["b"]
        assert connection.execute(sa.delete(tables.owners).where(tables.owners.c.thing.not_in([first]))).rowcount == 1


def test_options_of_the_url_stand_beside_ours(postgres_url: str) -> None:
    """A schema of its own takes no limit away: without them a frozen owner would block everybody."""
    with make_engine(postgres_url).begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA mine")
    engine = open_database(f"{postgres_url}?options=-csearch_path%3Dmine")
    with engine.connect() as connection:
        names = ("search_path", "lock_timeout", "idle_in_transaction_session_timeout")
        assert [connection.exec_driver_sql(f"SHOW {name}").scalar() for name in names] == ["mine", "10s", "10s"]
        assert sa.inspect(connection).has_table(tables.meta.name, schema="mine")
    engine.dispose()


def in_encoding(url: str, encoding: str) -> str:
    """Return the URL of a new database with this encoding beside the database at ``url``."""
    place = sa.make_url(url)
    name = f"{place.database}_{encoding.lower()}"
    with make_engine(url).connect() as connection:
        outside = connection.execution_options(isolation_level="AUTOCOMMIT")
        outside.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}'")
    return place.set(database=name).render_as_string(hide_password=False)


def test_a_database_without_a_locale_holds_a_store(postgres_url: str, tmp_path: Path) -> None:
    """A server that was initialised without a locale has the encoding SQL_ASCII, in which the driver gives bytes."""
    url = in_encoding(postgres_url, "SQL_ASCII")
    engine = open_store(url, tmp_path)
    lease = acquire(engine, "orders", 5.0)
    detail = {"to": "stop", "by": "Ωμέγα"}
    Transactions(engine, lease).run(lambda connection: record_event(connection, "orders", "asked", **detail))
    assert [event.detail for event in events(engine, "orders", 5)] == [detail]
    lease.release()
    engine.dispose()
    open_store(url, tmp_path).dispose()


def test_a_store_is_not_created_where_characters_are_missing(postgres_url: str) -> None:
    url = in_encoding(postgres_url, "LATIN1")
    with pytest.raises(FatalError, match="encoding is LATIN1; expected UTF8") as caught:
        open_database(url)
    assert caught.value.code == "state.unusable"


def test_the_encoding_of_a_role_is_not_that_of_a_store(postgres_url: str) -> None:
    with make_engine(postgres_url).begin() as connection:
        name = sa.make_url(postgres_url).database
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET client_encoding = 'LATIN1'")
    engine = open_database(postgres_url)
    with engine.connect() as connection:
        assert connection.execute(sa.select(sa.literal("Ω"))).scalar_one() == "Ω"
    engine.dispose()


@pytest.mark.parametrize(("given", "used"), [("off", "on"), ("local", "local")])
def test_what_is_committed_survives_a_crash_whatever_the_databases_default(
    postgres_url: str, given: str, used: str
) -> None:
    with make_engine(postgres_url).begin() as connection:
        name = sa.make_url(postgres_url).database
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET synchronous_commit = {given}")
    engine = open_database(postgres_url)
    for connected in (engine.connect(), engine.begin(), reading(engine)):
        with connected as connection:
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == used
    engine.dispose()


def test_a_store_is_written_on_each_connection_whatever_the_databases_default(postgres_url: str) -> None:
    """A connection that had read once wrote all the same, and a new one, such as that of a heartbeat, did not."""
    with make_engine(postgres_url).begin() as connection:
        name = sa.make_url(postgres_url).database
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    engine = open_database(postgres_url)
    with reading(engine), engine.begin() as connection:
        insert_if_absent(connection, tables.meta, name="x", value="y")
        assert connection.execute(sa.select(tables.meta.c.value).filter_by(name="x")).scalar_one() == "y"
    engine.dispose()


@pytest.mark.parametrize(("options", "used"), [("", "0"), ("?options=-c%20statement_timeout%3D2s", "2s")])
def test_no_statement_is_limited_by_the_databases_default(postgres_url: str, options: str, used: str) -> None:
    """One for many dead letters was ended, and repeated, each time that the command was."""
    with make_engine(postgres_url).begin() as connection:
        name = sa.make_url(postgres_url).database
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET statement_timeout = '50ms'")
    engine = open_database(postgres_url + options)
    for connected in (engine.connect(), engine.begin(), reading(engine)):
        with connected as connection:
            assert connection.exec_driver_sql("SHOW statement_timeout").scalar_one() == used
            connection.exec_driver_sql("SELECT pg_sleep(0.2)")
    engine.dispose()


def test_no_statement_is_prepared_on_the_server(postgres_url: str) -> None:
    """Behind a pooler another client's statement of the same name could be executed."""
    engine = open_database(postgres_url)
    with engine.connect() as connection:
        for _ in range(10):
            connection.execute(sa.select(tables.meta.c.value).where(tables.meta.c.name == "project")).first()
        assert connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar_one() == 0
    engine.dispose()


def test_a_pooler_that_refuses_the_limits_is_told_as_that() -> None:
    """PgBouncer's answer, which it would repeat: no restart helps."""
    said = "connection failed: FATAL:  unsupported startup parameter: options"
    error = unreachable(None, OperationalError("", {}, psycopg.OperationalError(said)), "opening")
    assert (error.code, error.fatal) == ("state.unusable", True)
    assert "ignore_startup_parameters" in str(error.fix)


def test_a_disk_that_is_full_or_read_only_is_named(tmp_path: Path) -> None:
    """SQLite says only that there is a disk I/O error, or that it can't open the file."""
    with mounted(tmp_path / "disk", "2m") as disk:
        url = f"sqlite:///{disk / 'home' / 'state.db'}"
        open_database(url).dispose()
        ballast = fill(disk, 0)
        with pytest.raises(TransientError, match="its disk is full") as full:
            open_database(url)
        ballast.unlink()
        open_database(url).dispose()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(TransientError, match="its file system is read-only") as unwritable:
            open_database(url)
    found = [(one.value.code, (one.value.fix or "").partition(" ")[0]) for one in (full, unwritable)]
    assert found == [("state.unreachable", "free"), ("state.unreachable", "mount")]


def test_a_request_to_a_store_that_another_process_keeps_locked_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a request is no transaction of a lease, whose errors have the store's place: a command tells it."""
    monkeypatch.setattr(sqlite_store, "_BUSY_MS", 1)
    engine = open_database(f"sqlite:///{tmp_path}/state.db")
    with closing(sqlite3.connect(tmp_path / "state.db")) as shell:
        shell.execute("BEGIN EXCLUSIVE")
        with pytest.raises(OperationalError) as caught:
            record_request(engine, "p", "stop", "me")
    engine.dispose()
    error = unforeseen(caught.value)
    assert (error.code, error.place) == ("state.unreachable", f"sqlite:///{tmp_path}/state.db")
    assert f"fuser {tmp_path}/state.db" in str(error.fix)
