"""The lifecycle sensor with Dagster's run storage and a real state store."""

from __future__ import annotations

import os

import dagster as dg
import pytest
from lab.sensors_lab import FILES, Location

from conduit_dagster.config import references
from conduit_dagster.config.secret_providers import Unresolved
from conduit_dagster.engine.operate.delete import delete
from conduit_dagster.engine.operate.subject import ask_start, stop, subject
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.recovery.policy import Policy

SENSOR = "conduit_lifecycle"


def test_what_the_file_says_is_running_is_started_once(location: Location) -> None:
    location.write()
    location.write("idle", status="stopped")
    location.write("nightly", trigger='{cron: "0 3 * * *"}')
    (request,) = location.tick(SENSOR)
    assert request.job_name == "orders"
    assert request.tags["conduit/why"] == "it never ran"
    assert [again.run_key for again in location.tick(SENSOR)] == [request.run_key]
    location.launch(request)
    assert location.tick(SENSOR) == []


def test_what_the_system_stopped_comes_back_what_a_user_stopped_does_not(location: Location) -> None:
    location.write()
    location.begin(digest=digest(location))
    location.end("stopped", "system")
    assert len(location.tick(SENSOR)) == 1
    location.end("stopped", "user")
    assert location.tick(SENSOR) == []
    assert ask_start(location.store, "orders", "operator", 10.0)
    (request,) = location.tick(SENSOR)
    location.launch(request)
    assert location.tick(SENSOR) == []


@pytest.mark.parametrize("end", ["drained", "failed", "died"])
def test_what_a_user_stopped_stays_stopped_after_a_drain_by_hand(location: Location, end: str) -> None:
    location.write()
    location.begin(digest=digest(location))
    location.end("stopped", "user")
    location.begin(run="r2", digest=digest(location), drains=True)
    if end == "drained":
        location.end("stopped", "system")
    elif end == "failed":
        location.fail(policy=Policy(max_retries=0))
        location.write(description="another one")
    assert location.tick() == []
    assert location.tick(SENSOR) == []
    assert location.status()[1] == "user"
    location.begin(run="r3", digest=digest(location))
    location.end("stopped", "system")
    assert len(location.tick(SENSOR)) == 1


def stopped(location: Location) -> None:
    """A pipeline that ran, and that a user has stopped."""
    location.write()
    location.begin(digest=digest(location))
    location.end("stopped", "user")


def asked_run(location: Location) -> dg.DagsterRun:
    """The run that is launched for a start that an operator asks for."""
    assert ask_start(location.store, "orders", "operator", 10.0)
    (request,) = location.tick(SENSOR)
    return location.launch(request)


def launched(location: Location, kind: str) -> dg.DagsterRun:
    """A run that was launched and has not begun: a ``first`` start, an ``asked`` one, or a ``restart``."""
    location.write()
    if kind == "restart":
        return location.restart()
    if kind == "asked":
        stopped(location)
        return asked_run(location)
    return location.launch(*location.tick(SENSOR))


@pytest.mark.parametrize("again", [False, True])
def test_a_start_that_waits_in_dagsters_queue_obeys_a_stop(location: Location, again: bool) -> None:
    """It began although its pipeline had been stopped meanwhile."""
    stopped(location)
    run = asked_run(location)
    assert stop(location.store, "orders", "operator", False, 0.1, 5.0)
    if again:
        assert ask_start(location.store, "orders", "operator", 10.0)
    assert location.begins(run) is again
    assert location.status() == (("running", "") if again else ("stopped", "user"))


@pytest.mark.parametrize("again", [False, True])
def test_a_run_by_hand_that_waits_in_dagsters_queue_obeys_a_stop(location: Location, again: bool) -> None:
    """A user launched it, and then stopped the pipeline, wherever it runs; it began as soon as there was room."""
    location.write(status="stopped")
    location.begin(digest=digest(location))
    location.end("stopped", "system")
    run = location.run(status="STARTING")
    assert stop(location.store, "orders", "operator", False, 0.1, 5.0)
    if again:
        assert ask_start(location.store, "orders", "operator", 10.0)
    assert location.begins(run, "stopped") is again
    assert location.status() == (("running", "") if again else ("stopped", "user"))
    location.end("stopped", "user")
    assert location.begins(location.run(), "stopped")  # launched after the stop


@pytest.mark.parametrize("is_launched", [False, True])
def test_the_first_start_obeys_a_stop(location: Location, is_launched: bool) -> None:
    """There was nothing to stop, and it began."""
    location.write()
    run = location.launch(*location.tick(SENSOR)) if is_launched else None
    assert location.store and subject(location.project, "orders").stop("operator")
    assert run is None or not location.begins(run)
    assert location.tick(SENSOR) == location.tick() == []
    assert location.status() == ("stopped", "user")
    if run is not None:
        location.terminate(run)
    assert location.begins(asked_run(location))


def test_a_start_that_waits_in_dagsters_queue_obeys_its_file(location: Location) -> None:
    location.write()
    run = location.launch(*location.tick(SENSOR))
    location.write(status="stopped")
    assert not location.begins(run, "stopped")
    location.terminate(run)
    assert location.begins(asked_run(location), "stopped")


def test_a_start_that_a_user_cancels_in_dagster_is_cancelled(location: Location) -> None:
    """It was launched again at the next tick."""
    stopped(location)
    location.terminate(asked_run(location))
    assert location.tick() == location.tick(SENSOR) == []
    assert location.recovery().asked == ""
    assert location.status() == ("stopped", "user")


@pytest.mark.parametrize("kind", ["first", "asked", "restart"])
def test_a_run_whose_cancellation_never_ends_holds_up_no_start(
    location: Location, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process got the signal before Dagster's handler: without run monitoring it is being cancelled for ever."""
    run = launched(location, kind)
    location.instance.report_run_canceling(run)
    location.tick()
    assert ask_start(location.store, "orders", "operator", 10.0)
    assert location.tick(SENSOR) == []  # it may still be about to end
    location.tick_later(monkeypatch)
    assert location.dagster_status(run) is dg.DagsterRunStatus.CANCELED
    assert [request.job_name for request in location.tick(SENSOR)] == ["orders"]


def test_a_run_that_drains_after_its_cancellation_is_left_alone(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    location.write()
    run = location.launch(*location.tick(SENSOR))
    location.begin(run=run.run_id)
    location.end("stopped", "user")
    location.instance.report_run_canceling(run)
    location.tick_later(monkeypatch)
    assert location.dagster_status(run) is dg.DagsterRunStatus.CANCELING


@pytest.mark.parametrize("kind", ["first", "asked", "restart"])
def test_a_run_that_was_lost_after_its_pipeline_was_stopped_restarts_nothing(
    location: Location, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as a failure, which started what a user had stopped; as a restart it held up every start for ever."""
    run = launched(location, kind)
    assert subject(location.project, "orders").stop("operator")
    location.tick_later(monkeypatch)
    assert location.dagster_status(run) is dg.DagsterRunStatus.CANCELED
    assert location.status() == ("stopped", "user")
    assert location.tick() == location.tick(SENSOR) == []
    assert location.begins(asked_run(location))


@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_start_that_cannot_begin_is_a_failure_with_backoff(location: Location, is_waiting: bool) -> None:
    """No Spark, for example: it was launched again at each tick, and the pipeline seemed to be stopped."""
    stopped(location)
    if is_waiting:
        location.begin()
        location.fail(policy=Policy(min_delay=3600, max_delay=3600))
    location.instance.report_run_failed(asked_run(location))
    assert location.tick(SENSOR) == location.tick() == location.tick(SENSOR) == []
    assert location.recovery().asked == ""
    assert location.status() == ("recovering", "")
    assert location.events()[-2:] == ["failed", "waiting"]


def test_a_drain_after_a_start_was_asked_for_is_that_start(location: Location) -> None:
    location.write()
    location.begin(digest=digest(location))
    location.end("stopped", "user")
    assert ask_start(location.store, "orders", "operator", 10.0)
    location.begin(run="r2", digest=digest(location), drains=True)
    location.end("stopped", "system")
    assert len(location.tick(SENSOR)) == 1


def test_a_pipeline_that_only_a_user_drained_is_started(location: Location) -> None:
    location.write()
    location.begin(digest=digest(location), drains=True)
    location.end("stopped", "system")
    assert len(location.tick(SENSOR)) == 1


def digest(location: Location) -> str:
    from conduit_dagster.engine.bound_pipeline import open_catalogue

    bound = open_catalogue(location.project).get("orders")
    assert bound is not None
    return bound.digest


def test_a_changed_file_restarts_its_own_pipeline_only(location: Location) -> None:
    location.write()
    location.begin(digest=digest(location), alive=True)
    assert location.tick(SENSOR) == []
    assert location.recovery().asked == ""
    location.write("other", status="stopped")
    assert location.tick(SENSOR) == []
    assert location.recovery().asked == ""
    location.write(description="another one")
    assert location.tick(SENSOR) == []
    assert location.recovery().asked == "renew"


def test_a_changed_module_of_a_processor_restarts_its_pipeline_once(location: Location) -> None:
    location.write()
    path, module = location.root / "pipelines" / "orders.yaml", location.root / "own.py"
    own = "    processors:\n      - {id: own, plugin: python, settings: {function: 'own:f'}}\n"
    path.write_text(path.read_text() + own)
    module.write_text("def f(record):\n    return record\n")
    location.begin(digest=digest(location), alive=True)
    location.tick(SENSOR)
    assert location.recovery().asked == ""
    module.write_text("def f(record):\n    return [record]\n")
    location.tick(SENSOR)
    assert location.recovery().asked == "renew"
    location.begin(digest=digest(location), alive=True)
    location.tick(SENSOR)
    assert location.recovery().asked == ""


def test_a_run_that_has_the_current_file_is_not_renewed(location: Location) -> None:
    """Whatever the sensor has read before: it would be stopped and started without end."""
    location.write(description="aaaa")
    path = location.root / "pipelines" / "orders.yaml"
    location.begin(digest=digest(location), alive=True)
    location.tick(SENSOR)
    times = path.stat()
    location.write(description="bbbb")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    location.begin(digest=digest(location), alive=True)
    location.tick(SENSOR)
    assert location.recovery().asked == ""


def test_a_run_of_another_version_of_the_package_is_renewed_once(location: Location) -> None:
    """After an upgrade under a running daemon, new runs tell the same file by another digest than its code server."""
    location.write()
    asked = list[str]()
    for run in ("r1", "r2", "r3"):
        location.begin(run=run, digest="of another version", alive=True)
        location.tick(SENSOR)
        asked.append(location.recovery().asked)
    assert asked == ["renew", "", ""]
    location.write(description="another one")
    location.tick(SENSOR)
    assert location.recovery().asked == "renew"


def test_another_secret_in_its_file_restarts_a_pipeline(location: Location) -> None:
    secret = location.root / "secret"
    secret.write_text("hunter22")
    location.write(description="${file:secret}")
    location.begin(digest=digest(location), alive=True)
    location.tick(SENSOR)
    assert location.recovery().asked == ""
    secret.unlink()
    location.tick(SENSOR)
    assert location.recovery().asked == ""  # its file is broken for now
    secret.write_text("hunter23")
    location.tick(SENSOR)
    assert location.recovery().asked == "renew"


def test_a_provider_is_asked_again_until_it_answers(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[str | Unresolved] = ["one-token"]
    monkeypatch.setattr(references, "ask_provider", lambda name, reference: answers[0])
    location.write(description="${vault:x}")
    location.begin(digest=digest(location), alive=True)
    location.tick(SENSOR)
    answers[0] = Unresolved("config.secret_failed", "away")
    location.write(description="${vault:x} ")
    for _ in range(3):
        location.tick(SENSOR)
    # failed once: nothing has changed since
    assert location.evaluated(FILES, "no_broken_files") == [False, True]
    answers[0] = "another-token"
    location.tick(SENSOR)
    assert location.evaluated(FILES, "no_broken_files") == [True, False, True]
    assert location.recovery().asked == ""


def test_a_file_that_says_stopped_now_stops_its_pipeline(location: Location) -> None:
    location.write()
    location.begin(digest=digest(location), alive=True)
    location.write(status="stopped")
    assert location.tick(SENSOR) == []
    assert location.recovery().asked == "stop"


def test_a_degraded_pipeline_is_started_when_its_file_was_mended(location: Location) -> None:
    location.write()
    location.begin(digest=digest(location))
    location.fail(error=FatalError("no", code="x.y"))
    assert location.tick(SENSOR) == []
    location.write(description="mended")
    assert len(location.tick(SENSOR)) == 1


def test_a_pipeline_that_never_ran_starts_when_asked(location: Location) -> None:
    location.write(status="stopped")
    assert location.tick(SENSOR) == []
    assert ask_start(location.store, "orders", "operator", 10.0)
    (request,) = location.tick(SENSOR)
    location.launch(request)
    assert location.tick(SENSOR) == []
    location.begin(digest=digest(location), alive=True)
    assert location.recovery().asked == ""


@pytest.mark.parametrize("asked", [True, False])
def test_a_drained_pipeline_runs_again_when_asked(location: Location, asked: bool) -> None:
    location.write(trigger="available-now")
    assert len(location.tick(SENSOR)) == 1
    location.begin(digest=digest(location))
    location.end("stopped", "system")
    if asked:
        ask_start(location.store, "orders", "operator", 10.0)
    assert len(location.tick(SENSOR)) == (1 if asked else 0)


def test_a_pipeline_whose_file_is_gone_is_deprovisioned_once(location: Location) -> None:
    location.write()
    location.write("other", status="stopped")
    location.begin()
    location.end("stopped", "user")
    assert location.definitions
    (location.root / "pipelines" / "other.yaml").write_text("pipelines: [")
    (location.root / "pipelines" / "orders.yaml").unlink()
    location.tick(SENSOR)
    assert "deprovisioned" not in location.events()  # the broken file may be its own
    location.write("other", status="stopped")
    location.tick(SENSOR)
    location.tick(SENSOR)
    assert location.events().count("deprovisioned") == 1


def test_a_deleted_pipeline_is_not_started_by_itself(location: Location) -> None:
    location.write()
    location.begin(digest=digest(location))
    location.end("stopped", "system")
    assert len(location.tick(SENSOR)) == 1
    delete(subject(location.project, "orders"), "operator")
    assert location.tick(SENSOR) == []
    assert ask_start(location.store, "orders", "operator", 10.0)
    assert len(location.tick(SENSOR)) == 1


def test_a_folder_without_pipelines_has_no_sensors(location: Location) -> None:
    """They would make a state store in whatever folder the code location was loaded."""
    assert list(location.definitions.get_repository_def().sensor_defs) == []
