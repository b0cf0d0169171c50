"""A run that loses its state store ends with one clear error, and publishes nothing more."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from lab.postgres_server import PostgresServer
from lab.support import Lab, destination, source
from lab.waiting import wait_until
from structlog.testing import capture_logs

from conduit_dagster.engine.bounded import watching
from conduit_dagster.engine.run_jobs import Jobs
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.recovery.policy import PipelineStatus
from conduit_dagster.state.claim import open_store


def deleted(file: Path) -> None:
    file.unlink()


def replaced(file: Path) -> None:
    shutil.copy(file, file.with_name("copy"))
    file.with_name("copy").replace(file)


def _pipeline(lab: Lab) -> None:
    lab.write("in.jsonl", [{"n": number} for number in range(4)])
    lab.pipeline(connectors=[source(), destination()], delivery={"batch-size": 1})


@pytest.mark.parametrize("lose", [deleted, replaced, lambda file: file.write_bytes(b"")])
def test_a_file_that_is_lost_during_a_run_ends_it(lab: Lab, lose: Callable[[Path], Any]) -> None:
    _pipeline(lab)
    done: list[int] = []

    def observe(*_: Any) -> None:
        if not done:
            lose(lab.root / ".conduit" / "state.db")
        done.append(len(lab.lines("out.jsonl")))

    result = lab.run(observe=observe)
    assert (result.status, result.error and result.error.code) == (PipelineStatus.DEGRADED, "state.replaced")
    assert result.error is not None and result.error.place and result.error.fix
    assert lab.lines("out.jsonl")[done[0] :] == [], "what was published after the loss was counted before it"


def test_a_loss_at_the_very_end_is_no_success(lab: Lab) -> None:
    """The last status can't be written: the next run would read everything again."""
    lab.write("in.jsonl", [{"n": 1}])
    lab.pipeline(connectors=[source(), destination()])
    result = lab.run(observe=lambda *_: deleted(lab.root / ".conduit" / "state.db"))
    assert (result.status, result.error and result.error.code) == (PipelineStatus.DEGRADED, "state.replaced")


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_an_idle_run_ends_as_well(lab: Lab, postgres_server: PostgresServer, kind: str) -> None:
    _pipeline(lab)
    if kind == "postgres":
        lab.env["CONDUIT_STATE_URL"] = postgres_server.create_database()

    def observe(*_: Any) -> None:
        if len(lab.lines("out.jsonl")) < 4:
            return
        if kind == "postgres":
            emptied(lab.env["CONDUIT_STATE_URL"])
        else:
            deleted(lab.root / ".conduit" / "state.db")

    stop = StopFlag()
    alarm = threading.Timer(120, stop.request)
    alarm.start()
    result = lab.run(drain=False, stop=stop, observe=observe)
    alarm.cancel()
    assert not stop.requested, "it ends by itself"
    assert (result.status, result.error and result.error.code) == (PipelineStatus.DEGRADED, "state.replaced")


class _Busy:
    """Jobs of a run that takes long to end."""

    pipeline = "p"
    cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


def test_the_loss_is_logged_once(tmp_path: Path) -> None:
    database, jobs = open_store(f"sqlite:///{tmp_path}/state.db", tmp_path), _Busy()
    with capture_logs() as logged, watching(StopFlag(), cast(Jobs, jobs), 5.0, database, "p") as watch:
        deleted(tmp_path / "state.db")
        wait_until(lambda: jobs.cancelled >= 3, "its jobs are cancelled again and again")
        with pytest.raises(FatalError, match="was deleted"):
            watch.require_store()
    assert [line["event"] for line in logged] == ["the run is ended"]


def emptied(url: str) -> None:
    tables = "SELECT string_agg(quote_ident(tablename), ',') FROM pg_tables WHERE tablename LIKE 'conduit%'"
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(tables).fetchone()
        assert row is not None
        connection.execute(f"TRUNCATE {row[0]}".encode())


def test_tables_that_are_emptied_during_a_run_end_it(lab: Lab, postgres_server: PostgresServer) -> None:
    _pipeline(lab)
    url = postgres_server.create_database()
    lab.env["CONDUIT_STATE_URL"] = url
    result = lab.run(observe=lambda *_: emptied(url))
    assert (result.status, result.error and result.error.code) == (PipelineStatus.DEGRADED, "state.replaced")
    with pytest.raises(FatalError) as caught:
        lab.run()
    assert caught.value.code == "state.lost"


def refusing(url: str) -> None:
    """Let the store refuse every further step, as it does once the user's rights were taken."""
    if url.startswith("postgresql"):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ALTER TABLE conduit_steps ADD CHECK (false) NOT VALID")
        return
    refuse = "CREATE TRIGGER refuse BEFORE INSERT ON conduit_steps BEGIN SELECT RAISE(ABORT, 'refused'); END"
    with closing(sqlite3.connect(url)) as connection, connection:
        connection.execute(refuse)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_statement_that_is_refused_is_no_outage(lab: Lab, postgres_server: PostgresServer, kind: str) -> None:
    """Sent again it would be refused again: a run that waits for it, or restarts, would do so for ever."""
    _pipeline(lab)
    url = str(lab.root / ".conduit" / "state.db")
    if kind == "postgres":
        url = lab.env["CONDUIT_STATE_URL"] = postgres_server.create_database()
    done: list[int] = []

    def observe(*_: Any) -> None:
        if not done:
            refusing(url)
        done.append(1)

    result = lab.run(observe=observe)
    assert (result.status, result.error and result.error.code) == (PipelineStatus.DEGRADED, "state.unusable")
    assert result.error is not None and result.error.place and "rights" in str(result.error.fix)
