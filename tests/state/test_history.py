"""The history of a pipeline: what is written, what is pruned, what is shown."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from lab.waiting import at_once

from conduit_dagster.recovery.policy import Policy
from conduit_dagster.state.database import open_database
from conduit_dagster.state.history import (
    REMEMBERED,
    HistoryRetention,
    deprovision,
    duration,
    events,
    gone,
    prune,
    record_event,
    restarts_of,
    retain,
    said,
)
from conduit_dagster.state.lease import acquire
from conduit_dagster.state.status_store import RunStart
from conduit_dagster.state.store import PipelineStore
from conduit_dagster.state.tables import history

ERROR = {"code": "x.y", "message": "it broke", "node": "p:in", "place": None, "fix": None, "fatal": False}
DAY_NS = 86_400 * 1_000_000_000


@pytest.fixture
def store(database: sa.Engine) -> Iterator[PipelineStore]:
    """The store of pipeline ``p``, owned."""
    lease = acquire(database, "p", 60.0)
    yield PipelineStore(database, lease)
    lease.release()


def write(database: sa.Engine, events: list[tuple[str, str, int]]) -> None:
    """Rows of pipeline, event and time, without any pruning."""
    rows = [{"pipeline": p, "event": event, "at_ns": at, "detail": "{}"} for p, event, at in events]
    with database.begin() as connection:
        connection.execute(history.insert(), rows)


def stored(database: sa.Engine, pipeline: str) -> list[str]:
    mine = sa.select(history.c.event).where(history.c.pipeline == pipeline).order_by(history.c.id)
    with database.connect() as connection:
        return list(connection.execute(mine).scalars())


def names(database: sa.Engine, pipeline: str = "p") -> list[str]:
    return [one.event for one in events(database, pipeline, 1000)]


# -- what goes ------------------------------------------------------------------------------------------------------


def test_the_newest_are_kept_by_number_and_only_of_this_pipeline(database: sa.Engine) -> None:
    now = time.time_ns()
    write(database, [(p, f"e{n}", now) for n in range(20) for p in ("p", "q")])
    with database.begin() as connection:
        assert prune(connection, "p", HistoryRetention(most=5), now) == 15
    assert stored(database, "p") == [f"e{n}" for n in range(15, 20)]
    assert len(stored(database, "q")) == 20


def test_the_old_ones_go_by_age(database: sa.Engine) -> None:
    now = time.time_ns()
    write(database, [("p", "old", now - 3 * DAY_NS), ("p", "young", now - DAY_NS)])
    with database.begin() as connection:
        assert prune(connection, "p", HistoryRetention(keep=2 * 86_400.0), now) == 1
    assert stored(database, "p") == ["young"]


def test_where_a_source_was_left_outlives_all_of_it(database: sa.Engine) -> None:
    """The registry reads it: without it, a source that means its former data again would read them twice."""
    now = time.time_ns()
    changes = [("p", "source_changed", now - 300 * DAY_NS)] * (REMEMBERED + 7)
    write(database, [*changes, *[("p", "x", now)] * 5])
    with database.begin() as connection:
        prune(connection, "p", HistoryRetention(keep=1.0, most=1), now)
    assert stored(database, "p") == ["source_changed"] * REMEMBERED + ["x"]


def test_an_absurdly_long_time_keeps_everything(database: sa.Engine) -> None:
    write(database, [("p", "first", 0)])
    with database.begin() as connection:
        assert prune(connection, "p", HistoryRetention(keep=1e15), time.time_ns()) == 0


@pytest.mark.parametrize("others", [0, 1, 3])
def test_writing_prunes_now_and_then_whoever_else_writes(database: sa.Engine, others: int) -> None:
    """Pipelines share the numbers of events: none may always miss its turn."""
    retain(database, HistoryRetention(most=10))
    rounds = 400
    with database.begin() as connection:
        for number in range(rounds):
            record_event(connection, "p", "x", number=number)
            for other in range(others):
                record_event(connection, f"q{other}", "x")
    with database.connect() as connection:
        count = connection.execute(sa.select(sa.func.count()).where(history.c.pipeline == "p")).scalar_one()
    # one in 64, and never later than 140 events of its own after the last time
    assert 10 <= count <= 150
    assert [one.detail["number"] for one in events(database, "p", 1000)] == list(range(rounds - 10, rounds))


def test_what_is_to_go_is_not_shown_before_it_goes(database: sa.Engine) -> None:
    now = time.time_ns()
    write(database, [("p", "old", now - 3 * DAY_NS), *[("p", f"e{n}", now) for n in range(9)]])
    assert names(database) == ["old", *(f"e{n}" for n in range(9))]
    retain(database, HistoryRetention(keep=86_400.0))
    assert names(database) == [f"e{n}" for n in range(9)]
    retain(database, HistoryRetention(most=2))
    assert names(database) == ["e7", "e8"]


# -- what is told ---------------------------------------------------------------------------------------------------


def test_the_events_of_a_life_in_order(database: sa.Engine, store: PipelineStore) -> None:
    status = store.status
    status.begin(RunStart("r1", "orders.yaml"))
    for run in ("r2", "r3"):
        failed = status.failed(ERROR, Policy(), run)
        assert failed.wait is not None
        assert status.begin(RunStart(run, restart=failed.failure)) is not None
    status.recovered(2)
    status.ended("stopped", "user")
    status.begin(RunStart("r4", "orders.yaml"))
    status.failed({**ERROR, "fatal": True}, Policy(), "r4")
    failing = ["failed", "waiting", "restarted"]
    ended = ["recovered", "stopped", "started", "failed", "degraded"]
    assert names(database) == ["provisioned", "started", *failing, *failing, *ended]
    restarts = [one.detail["total"] for one in events(database, "p", 100) if one.event == "restarted"]
    assert restarts == [1, 2]


def test_only_newer_ones_and_only_so_many(database: sa.Engine) -> None:
    now = time.time_ns()
    write(database, [("p", f"e{n}", now - (9 - n) * DAY_NS) for n in range(10)])
    assert [one.event for one in events(database, "p", 3)] == ["e7", "e8", "e9"]
    assert [one.event for one in events(database, "p", 100, now - 2 * DAY_NS)] == ["e7", "e8", "e9"]
    assert events(database, "p", 100, now + 1) == []
    assert events(database, "nobody", 100) == []


def test_no_secret_is_told(database: sa.Engine) -> None:
    detail: dict[str, Any] = {"message": "postgresql://me:hunter2@host/db is away", "more": [{"a": "password=hunter2"}]}
    with database.begin() as connection:
        record_event(connection, "p", "failed", **detail, attempt=1, fatal=False, none=None)
    (one,) = events(database, "p", 1)
    assert "hunter2" not in json.dumps(one.detail)
    assert one.detail["message"] == "postgresql://me:***@host/db is away"
    assert (one.detail["attempt"], one.detail["fatal"], one.detail["none"]) == (1, False, None)


# -- there and gone -------------------------------------------------------------------------------------------------


def test_a_pipeline_is_provisioned_once_deprovisioned_once_and_comes_back(
    database: sa.Engine, store: PipelineStore
) -> None:
    assert not deprovision(database, "nobody")
    store.status.begin(RunStart("r1", "a.yaml"))
    store.status.begin(RunStart("r2", "a.yaml"))
    assert gone(database) == set()
    assert [deprovision(database, "p"), deprovision(database, "p")] == [True, False]
    assert gone(database) == {"p"}
    store.status.begin(RunStart("r3", "b.yaml"))
    assert gone(database) == set()
    told = [(one.event, one.detail.get("file")) for one in events(database, "p", 100) if "provision" in one.event]
    assert told == [("provisioned", "a.yaml"), ("deprovisioned", "a.yaml"), ("provisioned", "b.yaml")]


def test_a_long_history_is_not_searched_for_what_is_rare(tmp_path: Path) -> None:
    """``top`` asks every second which pipelines are away, and alerts and scrapes every thirty."""
    engine = open_database(f"sqlite:///{tmp_path}/state.db")
    rare = [(f"p{i}", "provisioned", 1) for i in range(10)]

    def restarts(name: str) -> int | None:
        with engine.connect() as connection:
            return restarts_of(connection, name)

    write(engine, rare)
    short = _work(engine, lambda: gone(engine)), _work(engine, lambda: restarts("p1"))
    write(engine, [(f"p{i % 10}", "started", 1) for i in range(5000)])
    assert _work(engine, lambda: gone(engine)) < 2 * short[0]
    assert _work(engine, lambda: restarts("p1")) < 2 * short[1]
    engine.dispose()


def _work(engine: sa.Engine, ask: Callable[[], object]) -> int:
    """Return the number of instructions of SQLite's virtual machine."""
    steps = count()
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    driver.set_progress_handler(lambda: next(steps) and 0, 1)
    ask()  # in the same connection, the only one of the pool
    driver.set_progress_handler(None, 1)
    done = next(steps)
    assert done > 0
    return done


def test_of_many_that_find_a_file_gone_one_says_it(database: sa.Engine, store: PipelineStore) -> None:
    store.status.begin(RunStart("r1", "a.yaml"))
    assert sorted(at_once(lambda _: deprovision(database, "p"), 4)) == [False, False, False, True]


# -- in one line ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "detail", "line"),
    [
        ("failed", {**ERROR, "attempt": 0}, "failed: x.y in p:in: it broke"),
        ("failed", {**ERROR, "node": None, "message": "two\n lines"}, "failed: x.y: two lines"),
        ("waiting", {"attempt": 3, "delay": 4.0, "restart_at_ns": 1, "failure": 3}, "waiting: restart 3 in 4s"),
        ("restarted", {"attempt": 3, "failure": 4, "run": "r"}, "restarted: restart 3, after failure 4, as r"),
        ("recovered", {"attempt": 3}, "recovered: after restart 3"),
        ("degraded", {"error": ERROR}, "degraded: x.y in p:in: it broke"),
        ("degraded", {"error": ERROR, "given_up": "5 restarts"}, "degraded: 5 restarts, x.y in p:in: it broke"),
        ("degraded", {"reason": "user", "error": ERROR}, "degraded: by user, x.y in p:in: it broke"),
        ("stopped", {"reason": "user"}, "stopped: by the user"),
        ("stopped", {}, "stopped"),
        ("started", {"run": "r"}, "started: as r"),
        ("provisioned", {"file": "a.yaml"}, "provisioned: a.yaml"),
        ("deprovisioned", {"file": "a.yaml"}, "deprovisioned: a.yaml is gone"),
        ("asked", {"to": "force", "by": "ann"}, "asked: to stop by force by ann"),
        ("asked", {"to": "start", "by": ""}, "asked: to start"),
        ("marked", {"by": "ann", "records": 2, "last": None}, "marked: by ann, records 2"),
        ("waiting", {"attempt": 3}, "waiting: attempt 3"),
        ("taken_over", {"thing": "t" * 100, "was": "q"}, f"taken_over: thing {'t' * 79}…, was q"),
    ],
)
def test_the_line_of_an_event(event: str, detail: dict[str, Any], line: str) -> None:
    assert said(event, detail) == line


def test_a_line_stays_one_line_and_has_an_end() -> None:
    line = said("failed", {**ERROR, "message": "a\tb\n" * 10_000})
    assert len(line) == 400
    assert line.endswith("…")
    assert not set(line) & set("\n\t")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.25, "250ms"), (4, "4s"), (65, "1m5s"), (600, "10m"), (3605, "1h"), (90_061, "1d1h"), (59.7, "1m")],
)
def test_the_words_of_a_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
