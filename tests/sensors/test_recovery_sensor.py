"""The recovery sensor with Dagster's run storage and a real state store."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from lab.sensors_lab import GONE, Location

from conduit_dagster.assets.run_origin import ATTEMPT_TAG, FAILURE_TAG, RESTART_TAG, asked_of
from conduit_dagster.engine.bound_pipeline import open_catalogue
from conduit_dagster.engine.operate.subject import stop
from conduit_dagster.engine.run_status import RunDeath, report_failure
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError
from conduit_dagster.recovery.policy import Policy
from conduit_dagster.resources import spark_resource

FAR = Policy(min_delay=3600, max_delay=3600)


def test_a_start_that_counts_as_failed_does_not_begin_after_all(location: Location) -> None:
    """As one whose Spark session took minutes: Dagster counts it as failed too, and shows nobody what it would do."""
    location.write()
    (request,) = location.tick("conduit_lifecycle")
    slow = location.launch(request)
    death = RunDeath(slow.run_id, GONE, asked_ns=asked_of(slow))
    assert report_failure(location.store, "orders", death, Policy()) is not None
    due_ns = location.recovery().restart_at_ns
    assert not location.begins(slow)
    assert (location.status(), location.recovery().restart_at_ns) == (("recovering", ""), due_ns)
    location.instance.report_run_failed(slow)  # as the sensor does
    (request,) = location.tick()
    assert request.tags[FAILURE_TAG] == "1"


def test_b11_a_failure_is_restarted_once(location: Location) -> None:
    location.write()
    location.begin()
    location.fail()
    (request,) = location.tick()
    state = location.recovery()
    assert request.job_name == "orders"
    assert request.tags[FAILURE_TAG] == "1"
    assert request.tags[ATTEMPT_TAG] == "1"
    assert request.tags[RESTART_TAG] == str(state.restart_at_ns)
    # a lost cursor, a second daemon: the same key, which Dagster takes once
    assert [again.run_key for again in location.tick()] == [request.run_key]
    location.launch(request)
    assert location.tick() == []


@pytest.mark.parametrize("hours", [-8, 0, 9])
def test_a_run_that_never_began_counts_in_any_time_zone_of_the_run_storage(location: Location, hours: int) -> None:
    """One that was refused while the pipeline ran does not."""
    location.write()
    location.run(status="FAILURE")
    location.begin()
    location.end("stopped", "system")
    location.zoned(hours)
    location.tick()
    assert "failed" not in location.events()
    location.run(status="FAILURE")
    location.zoned(hours)
    location.tick()
    assert location.events()[-2:] == ["failed", "waiting"]


def test_what_fails_together_is_restarted_by_one_tick(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"p{number}" for number in range(3)]
    for name in names:
        location.write(name)
        location.begin(name)
    # one has failed when the tick begins, and one more each time that it looks again
    late = list(names)
    location.fail(late.pop(0))
    monkeypatch.setattr("conduit_dagster.sensors.tick._STAY", 60.0)
    looks = SimpleNamespace(**vars(time))
    looks.sleep = lambda _: location.fail(late.pop(0)) if late else None  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr("conduit_dagster.sensors.tick.time", looks)
    requests = location.tick()
    assert [request.job_name for request in requests] == names
    assert len({request.run_key for request in requests}) == 3


@pytest.mark.parametrize(
    ("job", "config", "kept"),
    [
        ("orders", {"ops": {"orders__run": {"config": {"end_after": "1h"}}}}, True),
        ("orders", {"ops": {"orders__run": {"config": {"of_an_older_version": 1}}}}, False),
        ("orders", {"ops": {"orders__run": {"config": {"end_after": {"env": "NO_SUCH_VARIABLE"}}}}}, False),
        ("__ASSET_JOB", {"ops": {"report": {"config": {}}}}, False),
        ("__ASSET_JOB", {"ops": {"orders__run": {"config": {"drain": True}}}}, False),
    ],
)
def test_a_restart_has_the_config_of_its_run_if_it_fits(
    location: Location, job: str, config: dict[str, Any], kept: bool
) -> None:
    """A request with another job's config, or an invalid one, failed the tick: no pipeline was restarted any more."""
    location.write()
    location.instance.add_run(dg.DagsterRun(job, "r1", config, status=dg.DagsterRunStatus.FAILURE))
    location.begin(run="r1")
    location.tick()
    (request,) = location.tick()
    assert request.run_config == (config if kept else {})


@pytest.mark.parametrize("run", ["r1", "once-1"])
def test_a_drain_by_hand_that_was_killed_is_followed_by_a_drain(location: Location, run: str) -> None:
    """Of a pipeline whose file says stopped, such as one that a user's own job runs: it ran on without end."""
    location.write(status="stopped")
    if run == "r1":
        location.instance.add_run(dg.DagsterRun("__ASSET_JOB", run, status=dg.DagsterRunStatus.STARTED))
    (bound,) = open_catalogue(location.project).bound
    location.begin(run=run, digest=bound.digest, drains=True)
    location.tick()
    (request,) = location.tick()
    assert request.run_config == {"ops": {"orders__run": {"config": {"drain": True}}}}


def test_a_restart_whose_run_was_deleted_does_what_the_file_says(location: Location) -> None:
    """Only that run's own config says that it drained."""
    location.write(status="stopped")
    drain = {"ops": {"orders__run": {"config": {"drain": True}}}}
    location.instance.add_run(dg.DagsterRun("orders", "r1", drain, status=dg.DagsterRunStatus.STARTED))
    (bound,) = open_catalogue(location.project).bound
    location.begin(run="r1", digest=bound.digest, drains=True)
    location.tick()
    location.instance.delete_run("r1")
    (request,) = location.tick()
    assert request.run_config == {}


def test_the_next_failure_has_another_key(location: Location) -> None:
    location.write()
    location.begin()
    location.fail()
    (first,) = location.tick()
    run = location.launch(first, "STARTED")
    location.fail()
    location.instance.report_run_failed(run)
    (second,) = location.tick()
    assert second.run_key != first.run_key
    assert second.tags[ATTEMPT_TAG] == "2"


def test_a_restart_far_ahead_is_not_launched_yet(location: Location) -> None:
    location.write(recovery="{min-delay: 1h, max-delay: 2h}")
    location.begin()
    location.fail(policy=FAR)
    assert location.tick() == []


def test_b06_a_fatal_failure_is_not_restarted(location: Location) -> None:
    location.write()
    location.begin()
    location.fail(error=FatalError("no", code="x.y"))
    assert location.status() == ("degraded", "")
    assert location.tick() == []


def _newest(location: Location) -> tuple[dg.AssetObservation, bool]:
    """What the acks show last, and the last result of the check ``status``."""
    acks = dg.AssetKey(["orders", "acks"])
    (shown,) = location.instance.fetch_observations(acks, limit=1).records
    status = dg.AssetCheckKey(acks, "status")
    (checked,) = location.instance.event_log_storage.get_asset_check_execution_history(status, 1)
    assert shown.asset_observation is not None and checked.evaluation is not None
    assert shown.asset_observation.description == checked.evaluation.description
    return shown.asset_observation, checked.evaluation.passed


def test_a_pipeline_that_is_degraded_shows_no_restart_and_what_to_do(location: Location) -> None:
    """Its restart failed before it could report: the sensor shows it in its place."""
    location.write()
    run = location.restart()
    location.instance.report_run_failed(run, "the code location does not load")
    location.tick()
    recovering, passed = _newest(location)
    assert (recovering.metadata["status"].value, passed) == ("recovering", False)
    assert "next_restart_at" in recovering.metadata
    location.write(recovery="{max-retries: 0}")
    location.instance.report_run_failed(location.launch(location.tick()[0]))
    location.tick()
    degraded, passed = _newest(location)
    assert (location.status()[0], degraded.metadata["status"].value, passed) == ("degraded", "degraded", False)
    assert "next_restart_at" not in degraded.metadata
    assert "conduit-dagster pipelines start orders" in str(degraded.description)


def test_a_restart_that_a_user_terminated_is_not_shown_any_more(location: Location) -> None:
    location.write()
    run = location.restart()
    location.terminate(run)
    location.tick()
    stopped, passed = _newest(location)
    assert (stopped.description, passed) == ("stopped by the user", True)
    assert "next_restart_at" not in stopped.metadata


def test_a_run_that_died_without_a_word_is_found(location: Location) -> None:
    location.write()
    run = location.run()
    location.begin(run=run.run_id)
    assert location.tick() == []  # reported now; launched at the next tick
    assert location.status() == ("recovering", "")
    found = location.instance.get_run_by_id(run.run_id)
    assert found is not None
    assert found.status is dg.DagsterRunStatus.FAILURE
    (request,) = location.tick()
    assert request.tags["dagster/parent_run_id"] == run.run_id
    assert location.events()[-2:] == ["failed", "waiting"]


def test_a_living_run_is_left_alone(location: Location) -> None:
    location.write()
    run = location.run()
    location.begin(run=run.run_id, alive=True)
    assert location.tick() == []
    assert location.status() == ("running", "")


@pytest.mark.parametrize("tag", [False, True])
def test_a_run_that_failed_before_it_began_is_restarted(location: Location, tag: bool) -> None:
    """No Spark, for example: the store never heard of it."""
    location.write()
    run = location.restart() if tag else location.run()
    location.instance.report_run_failed(run)
    assert location.tick() == []
    assert location.status() == ("recovering", "")
    assert location.recovery().reported == run.run_id
    (request,) = location.tick()
    assert request.tags[FAILURE_TAG] == ("2" if tag else "1")
    assert location.tick() != []  # and not reported again
    assert location.recovery().failure == (2 if tag else 1)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (FatalError("there is no Java", code="environment.java_missing", fix="install it"), "degraded"),
        (TransientError("the server is away", code="spark.unreachable", fix="start it"), "recovering"),
        (RuntimeError("the user's resource"), "recovering"),
    ],
)
def test_a_run_without_spark_says_why(
    location: Location, monkeypatch: pytest.MonkeyPatch, error: Exception, status: str
) -> None:
    """It fails before its step begins: a fatal error is not restarted as if the process had died."""

    def open_session(*_: object) -> None:
        raise error

    monkeypatch.setattr(spark_resource, "open_session", open_session)
    location.write()
    job = location.definitions.resolve_job_def("orders")
    job.execute_in_process(instance=location.instance, raise_on_error=False)
    assert location.tick() == []
    assert location.status()[0] == status
    cause = location.recovery().cause
    expected = (error.code, error.fix) if isinstance(error, ConduitError) else ("dagster.step_failed", None)
    assert (cause["code"], cause["fix"]) == expected
    assert str(error.args[0]) in cause["message"]


@pytest.mark.parametrize("status", ["FAILURE", "STARTING"])
def test_a_drain_by_hand_that_never_began_restarts_nothing(
    location: Location, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """It failed without Spark, or was lost: what a user stopped stays stopped."""
    location.write()
    location.begin()
    location.end("stopped", "user")
    job = location.definitions.resolve_job_def("orders")
    config = {"ops": {"orders__run": {"config": {"drain": True}}}}
    begun = dg.DagsterRunStatus(status)
    run = location.instance.create_run_for_job(job, run_config=config, tags=dict(job.run_tags), status=begun)
    assert location.tick_later(monkeypatch) == []
    assert location.status() == ("stopped", "user")
    assert location.dagster_status(run).value == ("FAILURE" if status == "FAILURE" else "CANCELED")
    assert location.tick() == location.tick("conduit_lifecycle") == []


def test_b09_a_run_that_a_user_terminated_is_not_restarted(location: Location) -> None:
    location.write()
    run = location.run()
    location.begin(run=run.run_id)
    location.terminate(run)
    assert location.tick() == []
    assert location.status() == ("stopped", "user")
    assert location.tick() == location.tick("conduit_lifecycle") == []


def test_b10_a_restart_that_a_user_terminated_never_happens(location: Location) -> None:
    location.write()
    run = location.restart()
    location.terminate(run)
    assert location.tick() == []
    assert location.status() == ("stopped", "user")
    assert location.recovery().restart_at_ns == 0


def test_a_broken_pipeline_does_not_block_the_others(location: Location) -> None:
    location.write()
    location.write("broken")
    location.begin()
    location.fail()
    assert location.definitions
    (location.root / "pipelines" / "broken.yaml").write_text("pipelines: [")
    assert [request.job_name for request in location.tick()] == ["orders"]


@pytest.mark.slow
def test_a_tick_of_many_pipelines_is_short(location: Location) -> None:
    """200 pipelines in one location, 20 of them failing: under 5 s (issue: Proof)."""
    for i in range(200):
        location.write(f"p{i:03}")
    for i in range(0, 200, 10):
        location.begin(f"p{i:03}", run=f"r{i}")
        location.fail(f"p{i:03}")
    assert location.definitions
    began = time.process_time()
    requests = location.tick()
    took = time.process_time() - began  # other tests run on this machine at the same time
    assert len(requests) == 20
    assert took < 5


def test_a_restart_that_waits_in_dagsters_queue_is_left_there(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conduit_dagster.sensors.dagster_runs.start_limit_ns", lambda instance: 0)
    location.write()
    location.begin()
    location.fail(policy=Policy(min_delay=0.001))
    (request,) = location.tick()
    job = location.definitions.resolve_job_def("orders")
    place = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("here"), "repository")
    run = location.instance.create_run_for_job(
        job,
        tags={**job.run_tags, **request.tags},
        status=dg.DagsterRunStatus.QUEUED,
        remote_job_origin=RemoteJobOrigin(place, "orders"),
    )
    assert location.tick() == []
    assert location.recovery().failure == 1
    location.instance.report_dagster_event(dg.DagsterEvent("PIPELINE_STARTING", run.job_name), run.run_id)
    location.tick()
    assert location.recovery().failure == 2


@pytest.mark.parametrize("failed", ["recovering", "degraded"])
def test_a_stop_in_a_shell_shows_in_dagster(location: Location, failed: str) -> None:
    """The check announced a restart, and said how to have it now, for ever."""
    location.write(recovery="{min-delay: 5m}" if failed == "recovering" else "{max-retries: 0}")
    location.begin()
    location.tick()
    before, passed = _newest(location)
    assert (before.metadata["status"].value, passed) == (failed, False)
    location.tick("conduit_lifecycle")
    assert stop(location.store, "orders", "operator", False, 10.0, 10.0)
    location.tick("conduit_lifecycle")
    shown, passed = _newest(location)
    assert (shown.description, passed) == ("stopped by the user", True)
    location.tick("conduit_lifecycle")
    assert location.evaluated(dg.AssetKey(["orders", "acks"]), "status") == [True, False]


def test_a_degraded_pipeline_whose_run_died_is_not_said_to_be_restarted(location: Location) -> None:
    """In its alert too: the fix said that there was nothing to do."""
    location.write(recovery="{max-retries: 0}")
    location.begin()
    location.tick()
    assert location.status()[0] == "degraded"
    assert location.recovery().cause["fix"] == "look for what ended it: memory, the system's log"
    assert "is restarted" not in str(_newest(location)[0].description)
