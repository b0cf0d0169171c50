"""``pipelines start`` and ``stop``."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.as_owner import ERROR, owned
from lab.stored_events import newest_events

from conduit_dagster.config.project import Project
from conduit_dagster.recovery.policy import Policy
from conduit_dagster.state.claim import open_store
from conduit_dagster.state.lease import acquire
from conduit_dagster.state.overview import pipeline_rows
from conduit_dagster.state.recovery_state import recovery_rows
from conduit_dagster.state.status_store import RunStart


@pytest.fixture
def waiting(project: Path) -> Project:
    """A project whose pipeline is waiting for a restart in an hour."""
    with owned(project) as store:
        store.status.begin(RunStart("first", "pipelines/orders.yaml"))
        store.status.failed({**ERROR, "fatal": False}, Policy(min_delay=3600, max_delay=3600), "first")
    return Project.find(project)


def test_start_leaves_word_for_whoever_starts_pipelines(run, waiting: Project) -> None:
    ran = run("pipelines", "start", "orders", "--json")
    assert (ran.code, ran.envelope["result"]) == (0, {"asked": True})
    assert "lifecycle sensor" in ran.envelope["summary"]
    database = open_store(waiting.state_url, waiting.home)
    assert recovery_rows(database)["orders"].asked == "start"
    newest = newest_events(database, "orders", 1)[0]
    assert (newest["event"], newest["detail"]["to"]) == ("asked", "start")
    assert newest["detail"]["by"]


def test_start_of_one_that_runs_asks_for_nothing(run, waiting: Project) -> None:
    with owned(waiting.root) as store:
        store.status.begin(RunStart("second"))
        ran = run("pipelines", "start", "orders", "--json")
        assert recovery_rows(store.engine)["orders"].asked == ""
    assert (ran.code, ran.envelope["result"]) == (0, {"asked": False})


def test_stop_ends_a_pending_restart_at_once(run, waiting: Project) -> None:
    ran = run("pipelines", "stop", "orders", "--json")
    assert (ran.code, ran.envelope["result"]) == (0, {"stopped": True, "status": "stopped"})
    database = open_store(waiting.state_url, waiting.home)
    row = pipeline_rows(database)["orders"]
    assert (row["status"], row["reason"]) == ("stopped", "user")
    assert recovery_rows(database)["orders"].restart_at_ns == 0
    again = run("pipelines", "stop", "orders")
    assert (again.code, again.out.strip()) == (0, "orders was stopped already")


def test_stop_of_one_that_never_ran_is_one_clear_error(run, project: Path) -> None:
    ran = run("pipelines", "stop", "orders")
    assert ran.code == 1
    assert "orders never ran" in ran.err
    assert "Traceback" not in ran.err
    assert not (project / ".conduit").exists()


def test_stop_withdraws_the_start_of_one_that_never_ran(run, project: Path) -> None:
    assert run("pipelines", "start", "orders").code == 0
    ran = run("pipelines", "stop", "orders", "--json")
    assert (ran.code, ran.envelope["result"]) == (0, {"stopped": True, "status": "stopped"})
    found = Project.find(project)
    database = open_store(found.state_url, found.home)
    assert recovery_rows(database)["orders"].asked == ""
    row = pipeline_rows(database)["orders"]
    assert (row["status"], row["reason"]) == ("stopped", "user")


@pytest.mark.parametrize("extra", ["", "trigger: {every: 5m}"])
@pytest.mark.parametrize("has_row", [False, True])
def test_stop_of_one_that_never_ran_keeps_it_from_starting(run, project: Path, pipeline, has_row, extra) -> None:
    """It has a row as soon as a command has worked on it."""
    (project / "pipelines" / "orders.yaml").write_text(pipeline(extra=extra))
    found = Project.find(project)
    database = open_store(found.state_url, found.home)
    if has_row:
        acquire(database, "orders", 1.0).release()
    ran = run("pipelines", "stop", "orders", "--json")
    assert (ran.code, ran.envelope["result"]) == (0, {"stopped": True, "status": "stopped"})
    assert recovery_rows(database)["orders"].asked == ""
    again = run("pipelines", "stop", "orders")
    assert (again.code, again.out.strip()) == (0, "orders was stopped already")


def test_stop_of_one_that_would_not_start_says_that_it_never_ran(run, project: Path, pipeline) -> None:
    found = Project.find(project)
    open_store(found.state_url, found.home)
    (project / "pipelines" / "orders.yaml").write_text(pipeline(extra="status: stopped"))
    ran = run("pipelines", "stop", "orders", "--json")
    assert ran.envelope["error"]["code"] == "pipeline.never_ran"


@pytest.mark.parametrize("verb", ["start", "stop"])
def test_one_that_nobody_knows_is_one_clear_error(run, project: Path, verb: str) -> None:
    ran = run("pipelines", verb, "orderz", "--json")
    assert ran.code == 2
    assert ran.envelope["error"]["code"] == "usage.unknown_pipeline"
    assert "orders" in ran.envelope["error"]["fix"]


def test_start_of_one_with_mistakes_says_so(run, project: Path, pipeline) -> None:
    (project / "pipelines" / "orders.yaml").write_text(pipeline().replace("json.decode", "json.decod"))
    ran = run("pipelines", "start", "orders", "--json")
    assert ran.code == 2
    assert ran.envelope["error"]["code"] == "validation.failed"
