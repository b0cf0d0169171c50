"""A store is created whole or not at all, knows its version, and is upgraded by Alembic's revisions."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from lab.postgres_server import PostgresServer
from lab.waiting import at_once, wait_until
from sqlalchemy import event

from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state import migrations, tables
from conduit_dagster.state.claim import claim_store
from conduit_dagster.state.database import make_engine, open_database
from conduit_dagster.state.lease import Transactions, acquire
from conduit_dagster.state.steps import Decision, Plan, StagedDelivery, encode
from conduit_dagster.state.store import PipelineStore

NEXT = tables.VERSION + 1
VERSIONS = Path(migrations.__file__).parent / "versions"
REVISION = f"""
from alembic import op
import sqlalchemy as sa
from sqlalchemy import event

revision, down_revision = "{NEXT:04d}", "{tables.VERSION:04d}"

def upgrade():
    op.add_column("conduit_meta", sa.Column("more", sa.Text(), nullable=False, server_default="yes"))
    print("half", flush=True)
    STOP
"""


def version(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        return migrations.version_of(connection)


def differences(connection: sa.Connection) -> list[Any]:
    """Between the store and the tables of this program."""
    options = {"version_table": migrations.VERSION_TABLE, "compare_type": True}
    found: list[Any] = compare_metadata(MigrationContext.configure(connection, opts=options), tables.metadata)
    return found


def test_the_newest_revision_is_the_version_that_new_stores_get() -> None:
    assert ScriptDirectory(str(VERSIONS.parent)).get_current_head() == f"{tables.VERSION:04d}"


def test_a_new_store_has_all_tables_and_the_version(database: sa.Engine) -> None:
    assert version(database) == tables.VERSION
    with database.connect() as connection:
        assert differences(connection) == []


def test_a_store_of_a_newer_version_is_refused(database: sa.Engine, database_url: str) -> None:
    with database.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {migrations.VERSION_TABLE} SET version_num = '0999'")
    with pytest.raises(FatalError, match="version 999") as caught:
        open_database(database_url)
    assert caught.value.code == "state.version"


@pytest.mark.parametrize("made", ["TABLE conduit_steps (a int)", "VIEW conduit_meta AS SELECT 1 AS a"])
def test_a_store_is_not_created_beside_tables_of_others(database_url: str, tmp_path: Path, made: str) -> None:
    (tmp_path / "state.db").touch()
    raw = make_engine(database_url)
    with raw.begin() as connection:
        connection.exec_driver_sql(f"CREATE {made}")
    with pytest.raises(FatalError, match=f"no state store, but has {made.split()[1]}; expected none") as caught:
        open_database(database_url)
    assert caught.value.code == "state.unusable"
    assert sa.inspect(raw).has_table(tables.offsets.name) is False
    raw.dispose()


# opens the store like the next version of the program, whose revision stops where told (STOP)
OPEN = """
import shutil, sys, time
from pathlib import Path
from conduit_dagster.state import tables
from conduit_dagster.state import migrations
from conduit_dagster.state.database import open_database

tables.VERSION = NEXT
migrations.__file__ = sys.argv[2]
engine = open_database(sys.argv[1])
print("open", flush=True)
"""


@pytest.fixture
def next_version(tmp_path: Path) -> Path:
    """The migrations of the next version."""
    folder = tmp_path / "migrations"
    (folder / "versions").mkdir(parents=True)
    (folder / "env.py").write_text((VERSIONS.parent / "env.py").read_text())
    for file in VERSIONS.glob("version_*.py"):
        (folder / "versions" / file.name).write_text(file.read_text())
    return folder / "__init__.py"


def start(url: str, program: Path, stop: str) -> subprocess.Popen[str]:
    (program.parent / "versions" / "next.py").write_text(REVISION.replace("STOP", stop))
    script = OPEN.replace("NEXT", str(NEXT))
    return subprocess.Popen([sys.executable, "-c", script, url, program], stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> list[str]:
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    return said.split()


def more(database: sa.Engine) -> list[str]:
    with database.connect() as connection:
        return list(connection.exec_driver_sql("SELECT more FROM conduit_meta").scalars())


@pytest.fixture
def old(database: sa.Engine) -> sa.Engine:
    """A store of this version, with a row."""
    with database.begin() as connection:
        connection.execute(tables.meta.insert().values(name="x", value="1"))
    return database


def test_an_older_store_is_migrated_by_one_of_many(old: sa.Engine, database_url: str, next_version: Path) -> None:
    processes = [start(database_url, next_version, "pass") for _ in range(3)]
    said = sorted(at_once(lambda number: finish(processes[number]), 3))
    assert said == [["half", "open"], ["open"], ["open"]]
    assert (version(old), more(old)) == (NEXT, ["yes"])


@pytest.mark.slow
def test_a_migration_that_is_killed_has_changed_nothing(old: sa.Engine, database_url: str, next_version: Path) -> None:
    process = start(database_url, next_version, "import time; time.sleep(600)")
    assert process.stdout is not None and process.stdout.readline() == "half\n"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    raw = make_engine(database_url)
    with raw.connect() as connection:
        assert migrations.version_of(connection) == tables.VERSION
        assert differences(connection) == []
    raw.dispose()
    assert finish(start(database_url, next_version, "pass")) == ["half", "open"]
    assert more(old) == ["yes"]


WAITED_FOR = """
    from conduit_dagster.state.timed_connection import TimedConnection
    TimedConnection.seconds = 0.3
    waits = "SELECT 1 FROM pg_locks l JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()"
    waits += " WHERE locktype = 'advisory' AND NOT granted"
    loop = f"WHILE NOT EXISTS ({waits}) LOOP PERFORM pg_sleep(0.02); END LOOP; PERFORM pg_sleep(0.5);"
    op.execute(f"DO $$ BEGIN {loop} END $$")
"""


@pytest.mark.slow
def test_a_migration_may_take_longer_than_any_other_answer(postgres_url: str, next_version: Path) -> None:
    """An index of a large table is one statement: each attempt was undone after the same time. Others wait for it."""
    open_database(postgres_url).dispose()
    url = f"{postgres_url}?options=-clock_timeout%3D100"
    first = start(url, next_version, WAITED_FOR)
    assert first.stdout is not None and first.stdout.readline() == "half\n"
    second = subprocess.Popen(first.args, stdout=subprocess.PIPE, text=True)
    assert [finish(first), finish(second)] == [["open"], ["open"]]


def test_a_user_who_may_not_migrate_a_store_is_told_who_may(postgres_server: PostgresServer) -> None:
    """Rights on its tables are not enough: the fix was to give them."""
    url = postgres_server.create_database()
    older = open_database(url)
    user = f"u_{secrets.token_hex(6)}"
    with older.begin() as connection:
        connection.exec_driver_sql("DROP INDEX conduit_history_by_event")
        connection.exec_driver_sql(f"UPDATE {migrations.VERSION_TABLE} SET version_num = '0004'")
        connection.exec_driver_sql(f"CREATE ROLE {user} LOGIN PASSWORD 'x'")
        connection.exec_driver_sql(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}")
        connection.exec_driver_sql(f"GRANT ALL ON SCHEMA public TO {user}")
    older.dispose()
    with pytest.raises(
        FatalError, match=r"has version 4, and can't be migrated to version \d+: must be owner"
    ) as caught:
        open_database(sa.make_url(url).set(username=user, password="x").render_as_string(hide_password=False))
    assert caught.value.code == "state.unusable"
    assert caught.value.fix is not None and "who owns the store's tables" in caught.value.fix
    open_database(url).dispose()


def test_an_owner_writes_nothing_once_a_newer_program_has_migrated_the_store(
    old: sa.Engine, database_url: str, next_version: Path, tmp_path: Path
) -> None:
    """The migration waits for its transaction; what began before an upgrade then ends with one error."""
    claim_store(old, tmp_path / "home")
    lease = acquire(old, "p", 60.0)
    store = Transactions(old, lease)
    processes = list[subprocess.Popen[str]]()

    def upgraded(connection: sa.Connection) -> None:
        processes.append(start(database_url, next_version, "pass"))
        if connection.dialect.name == "postgresql":  # SQLite has one writer
            waits = "SELECT 1 FROM pg_locks WHERE relation = 'conduit_pipelines'::regclass AND NOT granted"
            wait_until(lambda: connection.exec_driver_sql(waits).scalar(), "the migration waits")

    store.run(upgraded)
    assert finish(processes[0]) == ["half", "open"]
    for refused in (lambda: store.run(lambda _: None), lambda: acquire(old, "q", 60.0)):
        with pytest.raises(FatalError, match=f"version {NEXT}, this program knows") as caught:
            refused()
        assert caught.value.code == "state.version"
    lease.release()


def test_a_table_that_a_newer_program_renamed_is_not_lost(database: sa.Engine) -> None:
    """The fix for a lost store would be wrong: to restore a backup, or to deliver everything again."""
    store = Transactions(database, acquire(database, "p", 60.0))
    with database.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE conduit_steps RENAME TO conduit_turns")
        connection.exec_driver_sql(f"UPDATE {migrations.VERSION_TABLE} SET version_num = '{NEXT:04d}'")
    with pytest.raises(FatalError, match=f"version {NEXT}, this program knows") as caught:
        store.read(lambda connection: connection.execute(sa.select(tables.steps)))
    assert caught.value.code == "state.version"


def test_opening_a_store_again_writes_nothing(database: sa.Engine, database_url: str) -> None:
    """It checks the version, and needs neither Alembic nor the writers' lock."""
    said = list[str]()

    def heard(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        said.append(statement.split()[0].upper())

    event.listen(sa.Engine, "before_cursor_execute", heard)
    try:
        open_database(database_url).dispose()
    finally:
        event.remove(sa.Engine, "before_cursor_execute", heard)
    assert "SELECT" in said
    assert not {"INSERT", "UPDATE", "DELETE", "CREATE", "ALTER"} & set(said)


def test_letters_of_a_store_of_version_1_count_as_indexed(database: sa.Engine, database_url: str) -> None:
    part = {"pipeline": "p", "part": "a", "step": 1, "letters": 7, "bytes": 1, "sha256": "0" * 64}
    with database.begin() as connection:
        connection.exec_driver_sql("DROP INDEX conduit_dead_letters_by_part")
        connection.exec_driver_sql("DROP INDEX conduit_dead_letters_by_end")
        connection.exec_driver_sql("ALTER TABLE conduit_dead_letter_parts DROP COLUMN indexed")
        connection.exec_driver_sql("DROP INDEX conduit_history_by_event")
        connection.exec_driver_sql("DROP TABLE conduit_launches")
        connection.exec_driver_sql("DROP TABLE conduit_kept_values")
        connection.exec_driver_sql("ALTER TABLE conduit_step_deliveries RENAME TO conduit_deliveries")
        connection.exec_driver_sql(f"UPDATE {migrations.VERSION_TABLE} SET version_num = '0001'")
        older = tables.dead_letter_parts
        connection.execute(sa.insert(sa.table(older.name, *map(sa.column, part))).values(**part))
    database.dispose()
    opened = open_database(database_url)
    with opened.connect() as connection:
        assert differences(connection) == []
        assert connection.execute(sa.select(older.c.indexed)).scalar_one() == 7
    opened.dispose()


def test_a_store_of_version_2_gets_a_table_of_values(database: sa.Engine, database_url: str) -> None:
    """Its rows stay as they are; its own program refuses the store from then on, as it would not find the values."""
    position = '{"seen": 1, "files": []}'
    row = {"pipeline": "p", "source": "in", "next_offset": 1, "position": position}
    with database.begin() as connection:
        connection.exec_driver_sql("DROP INDEX conduit_history_by_event")
        connection.exec_driver_sql("DROP TABLE conduit_launches")
        connection.exec_driver_sql("DROP TABLE conduit_kept_values")
        connection.exec_driver_sql("ALTER TABLE conduit_step_deliveries RENAME TO conduit_deliveries")
        connection.exec_driver_sql(f"UPDATE {migrations.VERSION_TABLE} SET version_num = '0002'")
        connection.execute(sa.insert(tables.logs).values(**row))
    database.dispose()
    opened = open_database(database_url)
    with opened.connect() as connection:
        assert differences(connection) == []
        assert connection.execute(sa.select(tables.logs.c.position)).scalar_one() == position
    assert version(opened) == tables.VERSION > 2
    opened.dispose()


@pytest.mark.parametrize("column", ["plan", "decision"])
def test_a_step_with_a_field_that_only_a_newer_version_knows_is_refused(database: sa.Engine, column: str) -> None:
    """Such a field came before without another version of the tables: an older program would lose what it says."""
    store = PipelineStore(database, acquire(database, "p", 60.0))
    store.plan(Plan(1, 1, []))
    store.prepare(Plan(1, 1, []), Decision([], {}, [StagedDelivery("out", "data", "h", "s", [], {})], ""), [])
    store.load()
    values = {"plan": encode(Plan(1, 1, [])), "decision": encode(Decision([], {}, [], ""))}
    newer = values[column].removesuffix("}") + ',"more":[[3,"a","b"]]}'
    with database.begin() as connection:
        connection.execute(sa.update(tables.steps).values({column: newer}))
    with pytest.raises(FatalError, match="unknown field `more`") as caught:
        store.load()
    assert caught.value.code == "state.version"
