"""The operator's jobs of a project: start, stop, rewind and compact, from Dagster's form, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest
from dagster_layer.project_folder import NUMBERS, TAKES_ALL, Folder
from pyspark.sql import SparkSession

from conduit_dagster.assets.operator_jobs import operator_jobs
from conduit_dagster.resources import spark_resource
from conduit_dagster.state.history import events
from conduit_dagster.state.lease import acquire
from conduit_dagster.state.recovery_state import recovery_rows

JOBS = {"conduit__start", "conduit__stop", "conduit__rewind", "conduit__compact"}
OPS = {"start": "start_pipeline", "stop": "stop_pipeline", "rewind": "rewind_source", "compact": "compact_log"}
LOGGED = "available-now\n    delivery: {log: records, batch-size: 20, log-segment-size: 1KB, log-retention: {time: 1h}}"


class Operator:
    """The jobs, run as from the Launchpad; none of them may open a Spark session."""

    def __init__(self, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = folder, monkeypatch

    def job(self, name: str, pipeline: str = "numbers", **config: Any) -> dg.ExecuteInProcessResult:
        with self._monkeypatch.context() as patch:
            patch.setattr(spark_resource, "open_session", _no_spark)
            job = self._folder.definitions.resolve_job_def(f"conduit__{name}")
            form = {"ops": {f"conduit__{OPS[name]}": {"config": {"pipeline": pipeline, **config}}}}
            return job.execute_in_process(form, self._folder.instance, raise_on_error=False)

    def summary(self, name: str, **config: Any) -> str:
        """What a successful job reports."""
        result = self.job(name, **config)
        assert result.success
        (output,) = [event for event in result.all_events if event.event_type_value == "STEP_OUTPUT"]
        return str(output.step_output_data.metadata["summary"].value)

    def error(self, name: str, **config: Any) -> dict[str, Any]:
        """The metadata of a job's failure."""
        result = self.job(name, **config)
        assert not result.success
        (event,) = [event for event in result.all_events if event.is_step_failure]
        data = event.step_failure_data.user_failure_data
        assert data is not None
        return {name.partition("/")[2]: value.value for name, value in data.metadata.items()}


def _no_spark(*_: object) -> SparkSession:
    raise AssertionError("this needs no Spark")


@pytest.fixture
def operator(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Operator:
    return Operator(folder, monkeypatch)


@pytest.fixture
def ran(folder: Folder, spark: SparkSession) -> Iterator[Folder]:
    """A project whose pipeline has run."""
    folder.numbers()
    assert folder.run().success
    yield folder


def _observed(folder: Folder, *key: str) -> list[str | None]:
    records = folder.instance.fetch_observations(dg.AssetKey(list(key)), limit=20).records
    return [one.asset_observation.description for one in records if one.asset_observation is not None]


def _sensor(folder: Folder, name: str) -> list[str | None]:
    """The jobs that a sensor requests."""
    definitions = folder.definitions
    context = dg.build_sensor_context(instance=folder.instance, definitions=definitions)
    ticked = definitions.get_repository_def().get_sensor_def(name).evaluate_tick(context)
    return [request.job_name for request in ticked.run_requests or []]


# -- definitions ----------------------------------------------------------------------------------------------------


def test_an_empty_project_has_them(folder: Folder) -> None:
    dg.Definitions.validate_loadable(folder.definitions)
    assert set(folder.definitions.get_repository_def().job_names) >= JOBS


def test_one_set_for_all_pipelines_with_a_form_that_explains_itself(folder: Folder) -> None:
    folder.numbers()
    folder.write("more.yaml", NUMBERS.format(id="more", trigger="available-now", queue=TAKES_ALL).replace("./", "./m"))
    names = set(folder.definitions.get_repository_def().job_names)
    assert {name for name in names if name.startswith("conduit__")} == JOBS
    for job in operator_jobs({}):
        assert job.description and job.executor_def is dg.in_process_executor
        assert "conduit/pipeline" not in job.tags, "a limit of one run per pipeline would queue a stop"
        (node,) = job.nodes
        fields = node.definition.config_schema.as_field().config_type.fields  # type: ignore[union-attr]  # pyright: ignore
        assert all(field.description for field in fields.values())
        assert fields["pipeline"].is_required
        assert [name for name, field in fields.items() if field.is_required] == ["pipeline"]


@pytest.mark.parametrize("name", ["conduit__start", "conduit__start_pipeline", "conduit"])
def test_a_pipeline_with_the_name_of_such_a_job_is_refused_alone(folder: Folder, name: str) -> None:
    folder.numbers()
    folder.write("same.yaml", NUMBERS.format(id=name, trigger="available-now", queue=TAKES_ALL).replace("./", "./s"))
    names = set(folder.definitions.get_repository_def().job_names)
    assert {"numbers", *JOBS} <= names
    job = folder.definitions.resolve_job_def("conduit__start")
    assert [node.name for node in job.nodes] == ["conduit__start_pipeline"]


# -- start and stop -------------------------------------------------------------------------------------------------


def test_a_pipeline_is_stopped_and_started_again(ran: Folder, operator: Operator) -> None:
    assert ran.status("numbers") == ("stopped", "system")
    assert operator.summary("stop") == "numbers: stopped"
    assert ran.status("numbers") == ("stopped", "user")
    assert operator.summary("stop") == "numbers was stopped already"
    assert _sensor(ran, "conduit_lifecycle") == []
    assert operator.summary("start").startswith("numbers: asked to start")
    assert recovery_rows(ran.store)["numbers"].asked == "start"
    assert _sensor(ran, "conduit_lifecycle") == ["numbers"]
    newest = events(ran.store, "numbers", 1)[0]
    assert newest.detail["by"].startswith("dagster run ")


def test_what_an_operator_did_shows_at_the_asset_and_at_the_run(ran: Folder, operator: Operator) -> None:
    result = operator.job("stop")
    run = ran.instance.get_run_by_id(result.run_id)
    assert run is not None
    assert (run.tags["conduit/operation"], run.tags["conduit/operated"]) == ("stop", "numbers")
    assert _observed(ran, "numbers", "acks") == ["numbers: stopped"]
    (status,) = result.get_asset_check_evaluations()
    assert (status.check_name, status.passed, status.description) == ("status", True, "stopped by the user")


def test_a_pipeline_whose_file_is_gone_can_be_stopped_and_not_started(ran: Folder, operator: Operator) -> None:
    (ran.root / "pipelines" / "numbers.yaml").unlink()
    assert operator.summary("stop") == "numbers: stopped"
    assert _observed(ran, "numbers", "acks") == []
    assert operator.error("start")["error_code"] == "validation.failed"


def test_a_running_pipeline_is_not_asked_to_start(ran: Folder, operator: Operator) -> None:
    from lab.as_owner import owned

    from conduit_dagster.state.status_store import RunStart

    with owned(ran.root, "numbers") as store:
        store.status.begin(RunStart("other"))
        assert operator.summary("start") == "numbers runs already"


def test_errors_name_their_fix(ran: Folder, operator: Operator) -> None:
    unknown = operator.error("start", pipeline="nubmers")
    assert (unknown["error_code"], unknown["fatal"]) == ("usage.unknown_pipeline", True)
    assert "numbers" in unknown["fix"]
    new = NUMBERS.format(id="new", trigger="available-now", queue=TAKES_ALL).replace("./", "./n")
    ran.write("new.yaml", new.replace("    trigger:", "    status: stopped\n    trigger:"))
    assert operator.error("stop", pipeline="new")["error_code"] == "pipeline.never_ran"


# -- rewind ---------------------------------------------------------------------------------------------------------


def test_a_source_is_rewound_to_its_start_and_read_again(ran: Folder, operator: Operator) -> None:
    before = ran.delivered
    dry = operator.summary("rewind", to_start=True, dry_run=True)
    assert dry.startswith("numbers: in would go on from ")
    assert _observed(ran, "numbers", "in") == []
    done = operator.summary("rewind", to_start=True)
    assert done.startswith("numbers: in goes on from ")
    assert _observed(ran, "numbers", "in") == [done]
    assert ran.run().success
    assert sorted(ran.delivered) == sorted([*before, *before])


def test_a_source_is_rewound_to_a_position_as_its_asset_shows_it(ran: Folder, operator: Operator) -> None:
    position = ran.newest("numbers", "in")["position"]
    ran.append(range(100, 110))
    assert ran.run().success
    assert "goes on" in operator.summary("rewind", source="in", to_position=position)
    assert operator.error("rewind", to_position=7)["error_code"] == "positions.invalid"
    before = ran.delivered
    assert ran.run().success
    assert sorted(ran.delivered[len(before) :]) == [101, 105, 107, 109]


def test_a_logged_source_is_rewound_to_an_offset(folder: Folder, spark: SparkSession, operator: Operator) -> None:
    folder.numbers(trigger=LOGGED)
    assert folder.run().success
    assert operator.summary("rewind", to_offset=90).startswith("numbers: in goes on from 90, generation")
    forward = operator.error("rewind", to_offset=95)
    assert (forward["error_code"], "5 records" in forward["message"]) == ("positions.forward", True)
    assert "5 records are skipped" in operator.summary("rewind", to_offset=95, force=True)
    before = folder.delivered
    assert folder.run().success
    assert sorted(folder.delivered[len(before) :]) == [95, 97, 99]


def test_one_destination_is_sent_a_range_again(folder: Folder, spark: SparkSession, operator: Operator) -> None:
    folder.numbers(trigger=LOGGED)
    assert folder.run().success
    dry = operator.summary("rewind", to_offset=90, into="out", until_offset=96, dry_run=True)
    assert (
        dry
        == "numbers: out would be sent offsets 90 to 95 of in again (6 entries) with the next run; nothing else changes"
    )
    done = operator.summary("rewind", to_offset=90, into="out", until_offset=96)
    assert _observed(folder, "numbers", "out") == [done]
    assert operator.error("rewind", to_offset=90, into="out")["error_code"] == "positions.catching_up"
    assert operator.error("rewind", to_start=True, until_time="1h")["error_code"] == "usage.until"
    before = folder.delivered
    assert folder.run().success
    assert sorted(folder.delivered[len(before) :]) == [91, 95]


def test_a_rewind_names_one_place_of_a_pipeline_that_is_stopped(ran: Folder, operator: Operator) -> None:
    none, both = operator.error("rewind"), operator.error("rewind", to_start=True, to_offset=3)
    assert none["error_code"] == both["error_code"] == "usage.position"
    assert none["fix"] == "give one of to_start, to_offset, to_position, to_time"
    assert operator.error("rewind", to_start=True, source="inn")["error_code"] == "usage.unknown_source"
    (ran.root / "conduit.yaml").write_text("state: {lease: 30s}\n")
    lease = acquire(ran.store, "numbers", 1.0)
    try:
        assert operator.error("rewind", to_start=True)["error_code"] == "lease.held"
    finally:
        lease.release()


# -- compact --------------------------------------------------------------------------------------------------------


def test_a_log_is_compacted(folder: Folder, spark: SparkSession, operator: Operator) -> None:
    folder.numbers(trigger=LOGGED)
    assert folder.run().success
    assert operator.summary("compact") == "numbers: 0 entries of 0 segments are gone"
    folder.numbers(0, trigger=LOGGED.replace(", log-retention: {time: 1h}", ""))
    dry = operator.summary("compact", dry_run=True)
    assert dry.endswith(" segments would go") and not dry.startswith("numbers: 0 ")
    assert operator.summary("rewind", to_time="1d", dry_run=True).startswith("numbers: in would go on from 0,")
    assert operator.summary("compact", source="in") == dry.replace("would go", "are gone")
    gone = operator.error("rewind", to_time="1d")
    assert (gone["error_code"], "log-retention" in gone["fix"]) == ("log.gone", True)
    assert [one.event for one in events(folder.store, "numbers", 100)].count("log_compacted") == 1


def test_there_is_nothing_to_compact_without_a_log(ran: Folder, operator: Operator) -> None:
    assert operator.error("compact")["error_code"] == "log.positions_only"
