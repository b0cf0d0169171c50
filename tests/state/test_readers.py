"""Readers of another pipeline's log, as the state store knows them: on SQLite and on PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from lab.commit_log_lab import PIPELINE, LogLab
from lab.stored_events import newest_events
from lab.waiting import wait_until

from conduit_dagster.state.catch_ups import held_from
from conduit_dagster.state.connector_registrations import SourceUnit
from conduit_dagster.state.database import reading
from conduit_dagster.state.lease import acquire
from conduit_dagster.state.pipeline_state import load
from conduit_dagster.state.readers import ReadingSource, drop, log_unit, readers_of
from conduit_dagster.state.store import PipelineStore
from conduit_dagster.state.tables import pipelines, sources

UNIT = log_unit(PIPELINE, "in")
LOGGED = {"log": "records"}


@pytest.fixture
def log(database: sa.Engine, tmp_path: Path) -> LogLab:
    """A log of three segments, all handled by its consumer."""
    lab = LogLab(str(tmp_path / "log"), database, "in")
    for _ in range(3):
        lab.append(["a"] * 10, size=0)
    lab.move("out", all=29)
    return lab


@pytest.fixture
def store(database: sa.Engine) -> Iterator[PipelineStore]:
    """The registration of the reading pipeline."""
    lease = acquire(database, "q", 60.0)
    yield PipelineStore(database, lease)
    lease.release()


def register(store: PipelineStore, unit: dict[str, Any] = UNIT, logs: bool = False) -> None:
    def work(registry: Any, log_registry: Any) -> None:
        registry.readers.retire({"x"})
        initial = registry.readers.admit("x", unit, 0)
        (log_registry.register if logs else registry.register_source)("x", SourceUnit(unit, "/"), initial)

    store.registering(work)


def known(database: sa.Engine) -> list[ReadingSource]:
    with reading(database) as connection:
        return readers_of(connection, PIPELINE, "in")


def move(database: sa.Engine, position: int) -> None:
    with database.begin() as connection:
        connection.execute(sa.update(sources).where(sources.c.pipeline == "q").values(position=str(position)))


def parts(log: LogLab) -> list[int]:
    return [part.entries for part in log.parts()]


def test_a_reader_is_known_from_its_registration_on(database: sa.Engine, log: LogLab, store: PipelineStore) -> None:
    register(store)
    assert known(database) == [ReadingSource("q", "x", (PIPELINE, "in"), 0)]
    log.compact("out")
    assert parts(log) == [10, 10, 10]
    move(database, 19)
    log.compact("out")
    assert parts(log) == [1, 10, 10]
    move(database, 20)
    log.compact("out")
    assert parts(log) == [1, 1, 10]


def test_it_begins_at_the_oldest_offset_from_which_on_nothing_is_missing(
    database: sa.Engine, log: LogLab, store: PipelineStore
) -> None:
    log.compact("out")
    register(store)
    assert [reader.offset for reader in known(database)] == [20]
    log.append(["a"] * 10, size=0)
    register(store)  # as at every start
    assert [reader.offset for reader in known(database)] == [20]


def test_of_one_that_logs_its_records_its_own_log_counts(
    database: sa.Engine, log: LogLab, store: PipelineStore
) -> None:
    register(store, logs=True)
    with database.begin() as connection:
        row = "UPDATE conduit_logs SET position = '15', next_offset = 15 WHERE pipeline = 'q'"
        connection.exec_driver_sql(row)
    assert [reader.offset for reader in known(database)] == [15]
    log.compact("out")
    assert parts(log) == [1, 10, 10]


def test_one_that_was_dropped_keeps_its_place(database: sa.Engine, log: LogLab, store: PipelineStore) -> None:
    register(store)
    move(database, 12)
    (reader,) = known(database)
    store.transactions.run(lambda connection: drop(connection, reader, "me"))
    assert known(database) == []
    with reading(database) as connection:
        state = load(connection, "q").sources["x"]
        assert held_from(connection, PIPELINE, "in") is None
    assert (state.unit, state.position) == (UNIT, 12)
    generation = state.generation
    register(store)
    assert [reader.offset for reader in known(database)] == [12]
    with reading(database) as connection:
        assert load(connection, "q").sources["x"].generation == generation
    told = [(row["event"], row["detail"]["offset"]) for row in newest_events(database, "q", 10)]
    assert told == [("reader_back", 12), ("reader_dropped", 12)]


def test_one_whose_source_reads_something_else_is_none(database: sa.Engine, log: LogLab, store: PipelineStore) -> None:
    register(store)
    register(store, {"plugin": "file", "path": "/x"})
    assert known(database) == []
    # a project's plugin that is also called pipeline
    register(store, {"plugin": "pipeline", "stage": 4})
    assert known(database) == []


def test_readers_of_other_logs_hold_nothing_here(database: sa.Engine, log: LogLab, store: PipelineStore) -> None:
    register(store, log_unit(PIPELINE, "two"))
    assert known(database) == []
    log.compact("out")
    assert parts(log) == [1, 1, 10]


def test_one_that_comes_while_the_log_is_compacted_is_seen_before_anything_goes(
    database: sa.Engine, log: LogLab, store: PipelineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It registers after the compaction has checked, and before the new file replaces the old ones."""
    from lab.kills import at

    with at("after-compact-write", lambda: register(store)):
        log.compact("out")
    assert parts(log) == [10, 10, 10]
    assert [reader.offset for reader in known(database)] == [0]


def test_a_registration_waits_for_the_transaction_of_whoever_compacts(postgres_url: str, tmp_path: Path) -> None:
    """SQLite has one writer at a time; on PostgreSQL they meet at the pipeline's row."""
    from conduit_dagster.state.database import open_database

    database = open_database(postgres_url)
    log = LogLab(str(tmp_path / "log"), database, "in")
    log.append(["a"] * 10)
    lease, other = acquire(database, "q", 60.0), acquire(database, PIPELINE, 60.0)
    done = threading.Event()

    def registering() -> None:
        register(PipelineStore(database, lease))
        done.set()

    with database.begin() as connection:
        other.guard(connection)
        thread = threading.Thread(target=registering)
        thread.start()
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        # each look is a transaction of its own: within one, that view stays as it was at the first
        with database.connect().execution_options(isolation_level="AUTOCOMMIT") as look:
            wait_until(lambda: look.exec_driver_sql(waits).scalar(), "the registration waits")
        assert not done.is_set()
        connection.execute(sa.select(pipelines.c.epoch)).all()
    thread.join(120)
    assert done.is_set()
    for one in (lease, other):
        one.release()
    database.dispose()
