"""A pipeline of chaos connectors that is kept running in this process, and its events in the store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from conduit_dagster.engine.report import RunProgress, RunResult, StepReport
from conduit_dagster.engine.restart_loop import RestartLoop
from conduit_dagster.engine.run_options import Listen, RunOptions, RunRequest, ignore_run
from conduit_dagster.engine.run_status import RunOrigin
from conduit_dagster.engine.stop import StopFlag
from conduit_dagster.recovery.policy import Policy
from conduit_dagster.state.claim import open_store
from conduit_dagster.state.overview import pipeline_rows
from conduit_dagster.state.recovery_state import recovery_rows
from lab.support import Lab, queue

from .stored_events import newest_events

QUICK = Policy(min_delay=0.05, max_delay=0.4, window=300)
NEVER = Policy(min_delay=3600, max_delay=3600)
TOTAL = 60
ALL = list(range(1, TOTAL + 1))


def build(lab: Lab, source: dict[str, Any] | None = None, out: dict[str, Any] | None = None, **config: Any) -> None:
    connectors = [
        {"id": "in", "type": "source", "plugin": "chaos", "settings": {"records": TOTAL, **(source or {})}},
        {"id": "out", "type": "destination", "plugin": "chaos", "settings": {"path": "out.jsonl", **(out or {})}},
    ]
    delivery = {"strategy": "exactly-once", "batch-size": 20}
    config.setdefault("dead-letter-queue", queue())
    lab.pipeline(connectors=connectors, delivery=delivery, **config)


@contextmanager
def keeper(
    lab: Lab,
    policy: Policy | None = QUICK,
    flag: StopFlag | None = None,
    tell: Callable[[RunResult], None] = lambda result: None,
    observe: Callable[[StepReport, RunProgress], None] = lambda step, progress: None,
    drain: bool = True,
    listen: Listen = ignore_run,
    pending: Policy | None = None,
) -> Iterator[RestartLoop]:
    catalogue = lab.catalogue()
    bound = catalogue.get("p")
    assert bound is not None, "\n".join(finding.render() for finding in catalogue.findings)
    project = catalogue.project
    origin = RunOrigin(policy, "run-1", pending=pending)
    options = RunOptions(project.staging_url, drain=drain, log=project.log_url, origin=origin, listen=listen)
    database = open_store(project.state_url, project.home)
    try:
        yield RestartLoop(RunRequest(bound, database, options, flag or StopFlag(), observe, tell))
    finally:
        database.dispose()


def keep(lab: Lab, policy: Policy | None = QUICK, **more: Any) -> RunResult:
    assert lab._spark is not None
    with keeper(lab, policy, **more) as one:
        return one.run(lambda: lab._spark)  # type: ignore[arg-type, return-value]


def events(lab: Lab) -> list[tuple[str, dict[str, Any]]]:
    """Return the history, the oldest event first."""
    with lab.store() as database:
        return [(row["event"], row["detail"]) for row in reversed(newest_events(database, "p", 1000))]


def names(lab: Lab) -> list[str]:
    life = {"started", "restarted", "failed", "waiting", "recovered", "degraded", "stopped", "asked"}
    return [event for event, _ in events(lab) if event in life]


def status(lab: Lab) -> tuple[str, str]:
    with lab.store() as database:
        row = pipeline_rows(database)["p"]
    return row["status"], row["reason"]


def ids(lab: Lab) -> list[int]:
    return [row["id"] for row in lab.documents("out.jsonl")]


def in_background(work: Callable[[], RunResult]) -> tuple[threading.Thread, list[RunResult]]:
    results: list[RunResult] = []
    # a failed test leaves it behind, which must not keep the tests' process from ending
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    return thread, results


def waits(lab: Lab) -> bool:
    with lab.store() as database:
        return any(state.restart_at_ns for state in recovery_rows(database).values())
