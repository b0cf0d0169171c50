"""A job run in this process, on real Spark: what moved, what Dagster shows, how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest
from dagster import DagsterEventType as EventType
from dagster_layer.project_folder import Folder
from pyspark.sql import SparkSession

from conduit_dagster.engine.report import RunProgress, RunResult
from conduit_dagster.engine.restart_loop import RestartLoop
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.recovery.policy import PipelineStatus

pytestmark = pytest.mark.usefixtures("spark")
Evaluations = Callable[[dg.ExecuteInProcessResult], dict[str, list[bool]]]


def _failure(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = [event for event in result.all_events if event.is_step_failure]
    data = event.step_failure_data.user_failure_data
    assert data is not None
    return {name: value.value for name, value in data.metadata.items()}


def _materialized(result: dg.ExecuteInProcessResult) -> list[str]:
    events = [event for event in result.all_events if event.is_step_materialization]
    return [event.asset_key.to_user_string() for event in events if event.asset_key is not None]


def test_a_run_drains_its_source_and_shows_numbers_that_plot(folder: Folder) -> None:
    folder.numbers()
    assert folder.run().success
    acks = folder.newest("numbers", "acks")
    counts = {name: acks[f"records_{name}"] for name in ("read", "acked", "filtered", "nacked", "dead_lettered")}
    assert counts == {"read": 100, "acked": 90, "filtered": 50, "nacked": 10, "dead_lettered": 10}
    assert acks["lag_bytes"] == 0
    assert acks["batch_seconds"] > 0
    assert acks["positions"]["in"]["files"][0]["line"] == 100
    assert folder.newest("numbers", "out")["records_delivered"] == 40
    assert folder.newest("numbers", "in")["records_read"] == 100
    assert len((folder.root / "out.jsonl").read_text().splitlines()) == 40


def test_dead_letters_by_reason_and_the_newest_in_a_table(folder: Folder) -> None:
    folder.numbers()
    folder.run()
    letters = folder.newest("numbers", "dead_letters")
    (reason,) = letters["nacks_by_reason"].records
    assert reason.data["node"] == "numbers:bad"
    assert reason.data["records"] == 10
    offsets = [row.data["offset"] for row in letters["newest"].records]
    assert offsets == [93, 83, 73, 63, 53, 43, 33, 23, 13, 3]
    assert letters["newest"].records[0].data["message"] == "a three"


def test_counts_of_all_runs_go_on_in_the_next_one(folder: Folder) -> None:
    folder.numbers()
    folder.run()
    folder.append(range(100, 110))
    folder.run()
    out = folder.newest("numbers", "out")
    assert (out["records_delivered"], out["records_delivered_all_runs"]) == (4, 44)


def test_upstream_is_materialised_first_and_the_acks_last(folder: Folder) -> None:
    """In any other order Dagster shows assets as out of date."""
    folder.numbers()
    newest_first = dict.fromkeys(reversed(_materialized(folder.run())))
    assert list(newest_first) == ["numbers/acks", "numbers/dead_letters", "numbers/out", "numbers/in"]


def test_assets_are_materialised_once_per_interval_and_at_the_end(folder: Folder) -> None:
    folder.numbers(trigger="available-now\n    delivery: {batch-size: 10}")
    result = folder.run(materialize_every="1h")
    assert folder.newest("numbers", "acks")["steps"] == 10
    assert _materialized(result).count("numbers/acks") <= 2


def test_a_run_without_anything_new_still_materialises(folder: Folder) -> None:
    folder.numbers(count=0)
    assert folder.run().success
    assert folder.newest("numbers", "acks")["records_read"] == 0


def test_every_check_is_evaluated_early_and_at_the_end(folder: Folder, evaluations: Evaluations) -> None:
    folder.numbers()
    found = evaluations(folder.run())
    dead_letters = {"no_dead_letters", "open_dead_letters", "nack_rate"}
    assert found.pop("readable") == [True]  # of the source, which is not an asset of the run: when it was read
    assert set(found) == {"status", *dead_letters, "ack_lag", "no_offset_gap"}
    assert all(len(outcomes) >= 2 for outcomes in found.values())


def test_dead_letters_warn_while_they_are_open(folder: Folder, evaluations: Evaluations) -> None:
    """Accepted dead letters fail the check, never the run."""
    folder.numbers()
    first = folder.run()
    assert first.success
    assert evaluations(first)["no_dead_letters"][-1] is False
    (warning,) = {e.severity for e in first.get_asset_check_evaluations() if not e.passed}
    assert warning is dg.AssetCheckSeverity.WARN
    folder.append(range(104, 106))
    assert set(evaluations(folder.run())["no_dead_letters"]) == {False}


def test_a_gap_in_the_offsets_is_an_error(folder: Folder, evaluations: Evaluations) -> None:
    import sqlalchemy as sa

    from conduit_dagster.state.tables import sources

    folder.numbers()
    folder.run()
    with folder.store.begin() as connection:
        connection.execute(sa.update(sources).values(records=sources.c.records + 1))
    result = folder.run()
    failed = [e for e in result.get_asset_check_evaluations() if e.check_name == "no_offset_gap"]
    assert [e.passed for e in failed] == [False, False]
    assert failed[-1].severity is dg.AssetCheckSeverity.ERROR
    assert "stands at 101, the step before it ended at 100" in str(failed[-1].description)


def test_an_exceeded_threshold_fails_the_run_for_good(folder: Folder, evaluations: Evaluations) -> None:
    queue = "{plugin: builtin:file, window-size: 25, window-nack-threshold: 2, settings: {path: ./dead.jsonl}}"
    folder.numbers(queue=queue)
    result = folder.run()
    assert not result.success
    facts = _failure(result)
    assert facts["conduit/fatal"] is True
    assert facts["conduit/error_code"] == "nacks.threshold_exceeded"
    assert facts["conduit/command"] == "conduit-dagster pipelines start numbers"
    assert "nothing is lost" in facts["conduit/safe"]
    assert abs(facts["conduit/since"] - time.time()) < 600
    assert facts["conduit/node"] == "numbers:bad"
    assert facts["conduit/status"] == "degraded"
    assert evaluations(result)["nack_rate"][-1] is False
    assert folder.newest("numbers", "acks")["records_read"] == 23


def test_a_missing_file_is_transient_and_materialises_nothing(folder: Folder) -> None:
    folder.numbers()
    (folder.root / "in.jsonl").unlink()
    result = folder.run()
    facts = _failure(result)
    assert (facts["conduit/fatal"], facts["conduit/error_code"]) == (False, "file.missing")
    assert "create it" in facts["conduit/fix"]
    assert _materialized(result) == []


def test_a_failure_has_no_stack_trace_of_spark_and_no_retries(folder: Folder) -> None:
    folder.numbers()
    (folder.root / "in.jsonl").unlink()
    (event,) = [event for event in folder.run().all_events if event.is_step_failure]
    error = event.step_failure_data.error
    assert error is not None
    assert "java" not in error.to_string()
    assert error.cause is None


def test_a_run_reads_its_file_again(folder: Folder) -> None:
    """The code location knows the file as it was when it was loaded."""
    folder.numbers()
    job = folder.definitions.resolve_job_def("numbers")
    file = folder.root / "pipelines" / "numbers.yaml"
    file.write_text(file.read_text().replace("after.n % 2 == 0", "after.n % 2 == 1"))
    assert job.execute_in_process(instance=folder.instance).success
    # the ten that are nacked are odd
    assert folder.newest("numbers", "out")["records_delivered"] == 50


def test_a_file_that_was_broken_meanwhile_fails_the_run_by_name(folder: Folder) -> None:
    folder.numbers()
    job = folder.definitions.resolve_job_def("numbers")
    folder.write("numbers.yaml", "version: '2.2'\npipelines: [\n")
    facts = _failure(job.execute_in_process(instance=folder.instance, raise_on_error=False))
    assert (facts["conduit/fatal"], facts["conduit/error_code"]) == (True, "pipeline.invalid")
    assert "numbers.yaml:" in facts["conduit/message"]


def test_what_the_engine_cannot_do_yet_is_refused_by_name(folder: Folder) -> None:
    folder.numbers(trigger="available-now\n    delivery: {drift: true}")
    facts = _failure(folder.run())
    assert facts["conduit/error_code"] == "option.not_yet"


def test_a_wrong_duration_in_the_config_says_which(folder: Folder) -> None:
    folder.numbers()
    facts = _failure(folder.run(end_after="soon"))
    assert facts["conduit/error_code"] == "run.config"
    assert "end_after" in facts["conduit/message"]


def test_materialising_a_continuous_pipeline_drains_it_once(folder: Folder) -> None:
    folder.numbers(trigger="continuous")
    job = folder.definitions.resolve_implicit_global_asset_job_def()
    keys = [dg.AssetKey(["numbers", name]) for name in ("out", "dead_letters", "acks")]
    assert job.execute_in_process(instance=folder.instance, asset_selection=keys).success
    assert folder.newest("numbers", "acks")["records_read"] == 100


def test_a_pipeline_that_moved_to_another_file_is_found_there(folder: Folder) -> None:
    """The sensors know it there: as a failure it would be degraded the next time that it is started."""
    folder.numbers()
    job = folder.definitions.resolve_job_def("numbers")
    (folder.root / "pipelines" / "numbers.yaml").rename(folder.root / "pipelines" / "all.yaml")
    assert job.execute_in_process(instance=folder.instance, raise_on_error=False).success
    assert folder.delivered == folder.passed(range(100))


@pytest.mark.parametrize("broken", [False, True])
def test_dagster_does_not_retry_a_fatal_error_of_materialised_assets(folder: Folder, broken: bool) -> None:
    """Their run has no tags of the pipeline's job, and an instance may retry every run that failed."""
    folder.numbers(queue="{window-size: 1, window-nack-threshold: 0}")
    job = folder.definitions.resolve_implicit_global_asset_job_def()
    if broken:
        folder.write("numbers.yaml", "pipelines: [")
    keys = [dg.AssetKey(["numbers", name]) for name in ("out", "dead_letters", "acks")]
    result = job.execute_in_process(instance=folder.instance, asset_selection=keys, raise_on_error=False)
    assert not result.success
    (run,) = folder.instance.get_runs()
    assert run.tags["dagster/max_retries"] == "0"


def test_the_job_of_a_continuous_pipeline_runs_on_until_it_is_to_be_started_anew(folder: Folder) -> None:
    folder.numbers(trigger="continuous")
    assert folder.run(end_after="100ms").success
    assert folder.status("numbers") == ("stopped", "system")


def test_a_second_run_is_refused_while_the_first_one_lives(folder: Folder, evaluations: Evaluations) -> None:
    from conduit_dagster.state.lease import acquire

    folder.numbers()
    (folder.root / "conduit.yaml").write_text("state: {lease: 30s}\n")
    lease = acquire(folder.store, "numbers", 1.0)
    try:
        result = folder.run()
    finally:
        lease.release()
    facts = _failure(result)
    assert (facts["conduit/error_code"], facts["conduit/status"]) == ("lease.held", "running")
    assert evaluations(result)["ack_lag"] == [True, True]


def test_the_session_is_the_one_of_this_process(spark: SparkSession, folder: Folder) -> None:
    """The resource opens no second one and leaves a classic one open."""
    folder.numbers(count=1)
    folder.run()
    assert spark.range(3).count() == 3


def test_the_log_says_that_spark_is_opened_before_the_step_begins(folder: Folder) -> None:
    folder.numbers(count=1)
    logged = folder.instance.all_logs(folder.run().run_id)
    at = {
        name: next(place for place, entry in enumerate(logged) if name in entry.user_message)
        for name in ("opening a Spark session: master local", "the Spark session is open after ")
    }
    begins = next(place for place, entry in enumerate(logged) if entry.dagster_event_type is EventType.STEP_START)
    opening, opened = at.values()
    assert opening < opened < begins


def test_a_degraded_pipeline_shows_no_restart_that_is_past(folder: Folder, evaluations: Evaluations) -> None:
    """The recovery sensor's observation of the acks is no longer the newest."""
    queue = "{plugin: builtin:file, window-size: 1, settings: {path: ./dead.jsonl}}"
    folder.numbers(queue=queue)
    (folder.root / "in.jsonl").rename(folder.root / "away")
    assert _failure(folder.run())["conduit/status"] == "recovering"
    sensor = folder.definitions.get_repository_def().get_sensor_def("conduit_recovery")
    context = dg.build_sensor_context(instance=folder.instance, definitions=folder.definitions)
    for event in sensor.evaluate_tick(context).asset_events:  # as the daemon does
        folder.instance.report_runless_asset_event(event)
    assert "next_restart_at" in _observed(folder).metadata
    (folder.root / "away").rename(folder.root / "in.jsonl")
    result = folder.run()
    assert _failure(result)["conduit/status"] == "degraded"
    shown = _observed(folder)
    assert shown.metadata["status"].value == "degraded"
    assert "next_restart_at" not in shown.metadata
    assert shown.metadata["command"].value == "conduit-dagster pipelines start numbers"
    assert evaluations(result)["status"] == [True, False]


def _observed(folder: Folder) -> dg.AssetObservation:
    (newest,) = folder.instance.fetch_observations(dg.AssetKey(["numbers", "acks"]), limit=1).records
    assert newest.asset_observation is not None
    return newest.asset_observation


def test_a_store_that_cannot_be_opened_is_one_clear_failure(folder: Folder) -> None:
    folder.numbers()
    (folder.root / "conduit.yaml").write_text("state: {url: 'mysql://u@h/d'}\n")
    facts = _failure(folder.run())
    assert (facts["conduit/error_code"], facts["conduit/fatal"]) == ("state.url", True)
    assert facts["conduit/fix"]


@pytest.mark.parametrize("error", [FatalError("too many", code="nacks.threshold_exceeded", fix="fewer"), None])
def test_a_store_that_is_away_at_the_end_of_a_run_hides_no_error(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, error: FatalError | None
) -> None:
    """Nor does it show a stack trace, of which a sensor can't tell whether a restart helps."""

    def end(loop: RestartLoop, *_: object) -> RunResult:
        with loop._database.begin() as connection:
            connection.exec_driver_sql("DROP TABLE conduit_sources")
        status = PipelineStatus.STOPPED if error is None else PipelineStatus.DEGRADED
        return RunResult("numbers", status, "", error, RunProgress(), drained=error is None)

    folder.numbers()
    monkeypatch.setattr(RestartLoop, "once", end)
    facts = _failure(folder.run())
    assert facts["conduit/error_code"] == ("state.replaced" if error is None else error.code)
    assert facts["conduit/fix"]
