"""A store of an older version is brought to this one with all its rows, or stays as it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from waiting import at_once

from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state import migrations, schema
from conduit_dagster.state.claim import claim_store
from conduit_dagster.state.database import make_engine, open_database
from conduit_dagster.state.lease import acquire
from conduit_dagster.state.letter_view import STATES, Wanted, newest
from conduit_dagster.state.overview import consumer_rows, newest_events, pipeline_rows, source_rows

RELEASED = (Path(__file__).parent / "version_1.sql").read_text(encoding="utf-8")
ROWS: dict[str, list[dict[str, Any]]] = {
    "pipelines": [
        {
            "pipeline": "p", "epoch": 3, "heartbeat": 9, "owner": "", "status": "stopped", "reason": "user",
            "error": "", "next_step": 5, "window": "010", "file": "p.yaml", "updated_ns": 1,
        }
    ],
    "sources": [
        {
            "pipeline": "p", "source": "in", "generation": 1, "unit": "{}", "position": "7", "records": 7, "acked": 6,
            "filtered": 0, "nacked": 1,
        }
    ],
    "consumers": [{"pipeline": "p", "consumer": "out", "kind": "data", "delivered": 6, "step": 4, "target": ""}],
    "steps": [
        {
            "pipeline": "p", "step": 4, "state": "prepared", "plan": "{}", "decision": "{}", "planned_ns": 1,
            "done_ns": 0,
        }
    ],
    "deliveries": [
        {"pipeline": "p", "step": step, "consumer": consumer, "hash": str(step) * 64, "state": state}
        for step, consumer, state in ((3, "out", "done"), (4, "out", "open"), (4, "dlq", "done"))
    ],
    "dead_letters": [
        {
            "pipeline": "p", "step": 4, "number": 0, "source": "in", "generation": 1, "position": "3", "offset": 2,
            "node": "n", "code": "c", "message": "é", "at_ns": 1,
        }
    ],
    "owners": [{"thing": "/x", "pipeline": "p", "consumer": "out"}],
    "history": [{"pipeline": "p", "at_ns": 1, "event": "stopped", "detail": "{}"}],
}  # fmt: skip


def make_version_1(url: str) -> None:
    """A store as the released program left it, with rows in every table."""
    engine = make_engine(url)
    identity = "INTEGER NOT NULL" if engine.dialect.name == "sqlite" else "BIGSERIAL NOT NULL"
    statements = "\n".join(line for line in RELEASED.splitlines() if not line.startswith("--"))
    with engine.begin() as connection:
        for statement in statements.replace("{identity}", identity).split(";"):
            if statement.strip():
                connection.exec_driver_sql(statement)
        connection.execute(schema.meta.insert().values(name="version", value="1"))
        for name, rows in ROWS.items():
            table = schema.metadata.tables[f"conduit_{name}"]
            known = sa.table(table.name, *(sa.column(column) for column in rows[0]))
            connection.execute(known.insert(), rows)
    engine.dispose()


@pytest.fixture
def old_url(database_url: str) -> str:
    make_version_1(database_url)
    return database_url


@pytest.fixture
def migrated(old_url: str) -> Iterator[sa.Engine]:
    engine = open_database(old_url)
    yield engine
    engine.dispose()


def differences(connection: sa.Connection) -> list[Any]:
    """Of the store from the tables of this program."""
    options = {"version_table": migrations.VERSION_TABLE, "compare_type": True}
    found: list[Any] = compare_metadata(MigrationContext.configure(connection, opts=options), schema.metadata)
    return found


def shape(connection: sa.Connection) -> dict[str, Any]:
    """All that a store's tables are: also keys and defaults, which Alembic does not compare or not well."""
    look = sa.inspect(connection)
    return {
        name: (
            sorted((c["name"], str(c["type"]), c["nullable"], c["default"]) for c in look.get_columns(name)),
            look.get_pk_constraint(name)["constrained_columns"],
            [(index["name"], index["column_names"]) for index in look.get_indexes(name)],
        )
        for name in look.get_table_names()
    }


def rows_of(engine: sa.Engine, name: str) -> list[dict[str, Any]]:
    table = schema.metadata.tables[f"conduit_{name}"]
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(sa.select(table)).mappings()]


def version(engine: sa.Engine) -> tuple[str, str]:
    """Ours and Alembic's."""
    with engine.connect() as connection:
        ours = connection.execute(sa.select(schema.meta.c.value).where(schema.meta.c.name == "version")).scalar_one()
        return ours, connection.exec_driver_sql(f"SELECT version_num FROM {migrations.VERSION_TABLE}").scalar_one()


def upgrade(connection: sa.Connection, revision: str) -> None:
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    command.upgrade(config, revision)


def test_a_migrated_store_is_like_a_new_one(migrated: sa.Engine) -> None:
    assert version(migrated) == (str(schema.VERSION), f"{schema.VERSION:04d}")
    with migrated.begin() as connection:
        assert differences(connection) == []
        found = shape(connection)
        everything = sa.MetaData()
        everything.reflect(connection)
        everything.drop_all(connection)
        migrations.bring(connection, "")
        assert found == shape(connection)


def test_a_new_store_is_stamped(database: sa.Engine) -> None:
    """The next version's migration starts from here."""
    with database.begin() as connection:
        before = shape(connection)
        assert differences(connection) == []
        upgrade(connection, "head")
        assert shape(connection) == before
    assert version(database) == (str(schema.VERSION), f"{schema.VERSION:04d}")


def test_the_first_revision_makes_the_released_store(old_url: str) -> None:
    engine = make_engine(old_url)
    released = sa.MetaData()
    with engine.begin() as connection:
        before = shape(connection)
        released.reflect(connection)
        released.drop_all(connection)
        upgrade(connection, "0001")
        connection.exec_driver_sql(f"DROP TABLE {migrations.VERSION_TABLE}")
        assert shape(connection) == before
    engine.dispose()


def test_no_row_is_lost(migrated: sa.Engine) -> None:
    for name, rows in ROWS.items():
        found = rows_of(migrated, name)
        assert len(found) == len(rows)
        for row in rows:
            assert any(row.items() <= other.items() for other in found)


def test_old_deliveries_are_whole_ones(migrated: sa.Engine) -> None:
    fresh = {"skip": 0, "handled": 0, "pending": "", "staged": ""}
    assert all(fresh.items() <= row.items() for row in rows_of(migrated, "deliveries"))


def test_a_migrated_store_can_be_used(migrated: sa.Engine) -> None:
    lease = acquire(migrated, "p", 60.0)
    with migrated.begin() as connection:
        lease.guard(connection, txn="x")
        row = {"pipeline": "p", "at_ns": 2, "event": "running", "detail": json.dumps({})}
        connection.execute(schema.history.insert().values(**row))
    assert lease.epoch == 4
    assert pipeline_rows(migrated)["p"]["step"] == 4
    assert [row["event"] for row in newest_events(migrated, "p", 5)] == ["running", "stopped"]
    assert [row["id"] for row in source_rows(migrated, "p")] == ["in"]
    assert [row["id"] for row in consumer_rows(migrated, "p")] == ["out"]
    assert [row["message"] for row in newest(migrated, "p", Wanted(STATES), 5)] == ["é"]
    lease.release()


def test_a_migrated_store_is_not_taken_by_another_project(migrated: sa.Engine, tmp_path: Path) -> None:
    """Its own project has no id yet and adopts the store's; one that has an id is another one."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "project").write_text("0ther\n")
    with pytest.raises(FatalError, match="0ther"):
        claim_store(migrated, tmp_path / "other")
    assert claim_store(migrated, tmp_path / "own")


def test_a_store_of_a_newer_version_is_refused(database: sa.Engine, database_url: str) -> None:
    with database.begin() as connection:
        connection.execute(sa.update(schema.meta).values(value="999"))
    with pytest.raises(FatalError, match="version 999") as caught:
        open_database(database_url)
    assert caught.value.code == "state.version"


def test_an_old_store_may_be_opened_by_many_at_once(old_url: str) -> None:
    def opened(_: int) -> tuple[str, str]:
        engine = open_database(old_url)
        try:
            return version(engine)
        finally:
            engine.dispose()

    assert at_once(opened, 5) == [(str(schema.VERSION), f"{schema.VERSION:04d}")] * 5


# stops in the middle of the migration and says so
HALF = """
import sys, time
from alembic import op
from conduit_dagster.state.database import open_database

drop = op.drop_table
def stop(name):
    drop(name)
    print("half", flush=True)
    time.sleep(600)
op.drop_table = stop
open_database(sys.argv[1])
"""


def test_a_migration_that_is_killed_has_changed_nothing_and_is_done_at_the_next_open(old_url: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", HALF, old_url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "half\n"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    raw = make_engine(old_url)
    with raw.connect() as connection:
        names = set(sa.inspect(connection).get_table_names())
        assert migrations.version_of(connection) == 1
        assert names == {f"conduit_{name}" for name in (*ROWS, "meta")}
    raw.dispose()
    engine = open_database(old_url)
    assert len(rows_of(engine, "deliveries")) == len(ROWS["deliveries"])
    with engine.connect() as connection:
        assert differences(connection) == []
    engine.dispose()


def test_opening_a_store_again_writes_nothing(database: sa.Engine, database_url: str) -> None:
    """It looks at the version, and needs neither Alembic nor the writers' lock."""
    said = list[str]()

    def heard(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        said.append(statement.split()[0].upper())

    sa.event.listen(sa.Engine, "before_cursor_execute", heard)
    try:
        open_database(database_url).dispose()
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", heard)
    assert "SELECT" in said
    assert not {"INSERT", "UPDATE", "DELETE", "CREATE", "ALTER"} & set(said)
