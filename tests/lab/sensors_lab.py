"""A project with Dagster's storage and our state store, without Spark, as sensors see it."""

from __future__ import annotations

import json
import os
import time
from copy import copy
from datetime import UTC, timedelta
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import dagster as dg
import pytest
import sqlalchemy as sa
from dagster._core.definitions.sensor_definition import SensorExecutionData
from dagster._core.events import DagsterEvent, DagsterEventType, StepFailureData
from dagster._core.execution.plan.objects import UserFailureData
from dagster._core.remote_origin import RegisteredCodeLocationOrigin
from dagster._core.storage.runs.schema import RunsTable
from dagster._utils.error import SerializableErrorInfo

from conduit_dagster.assets.run_op import failure
from conduit_dagster.assets.run_origin import automatic_start, created_ns
from conduit_dagster.config.project import Project
from conduit_dagster.definitions import define
from conduit_dagster.engine.report import error_json
from conduit_dagster.engine.run_status import RunDeath, report_failure
from conduit_dagster.processes import identity
from conduit_dagster.recovery.errors import ConduitError, TransientError
from conduit_dagster.recovery.policy import Policy
from conduit_dagster.state.claim import open_store
from conduit_dagster.state.overview import pipeline_rows
from conduit_dagster.state.recovery_state import recovery_rows
from conduit_dagster.state.status_store import RunStart
from conduit_dagster.state.tables import pipelines
from lab.as_owner import owned

from .stored_events import newest_events

PIPELINE = """
version: "2.2"
pipelines:
  - id: {id}
    status: {status}
    trigger: {trigger}
    description: {description}
    recovery: {recovery}
    connectors:
      - id: in
        type: source
        plugin: generator
        settings: {{recordCount: "10", format.type: structured, format.options.id: int}}
      - {{id: out, type: destination, plugin: file, settings: {{path: ./{id}.jsonl}}}}
"""
FILES = dg.AssetKey(["conduit", "pipeline_files"])
GONE = TransientError("the network is gone", code="connector.failed", node="orders:out")


class Location:
    """A code location in a temporary folder."""

    def __init__(self, root: Path, instance: dg.DagsterInstance) -> None:
        self.root, self.instance = root, instance
        (root / "pipelines").mkdir()
        self._loaded: dg.Definitions | None = None
        self._name = ""

    def named(self, name: str) -> Self:
        """Return another code location with the same project, loaded on its own."""
        location = copy(self)
        location._loaded, location._name = None, name
        return location

    def write(
        self,
        name: str = "orders",
        status: str = "running",
        trigger: str = "continuous",
        description: str = "none",
        recovery: str = "{}",
    ) -> None:
        facts = {"status": status, "trigger": trigger, "description": description, "recovery": recovery}
        text = PIPELINE.format(id=name, **facts)
        (self.root / "pipelines" / f"{name}.yaml").write_text(text)

    @property
    def project(self) -> Project:
        return Project.find(self.root, {})

    @property
    def definitions(self) -> dg.Definitions:
        """The definitions, loaded once: detecting changed files is up to the sensors."""
        if self._loaded is None:
            self._loaded = define(self.project)
        return self._loaded

    def reload(self) -> None:
        self._loaded = None

    @cached_property
    def store(self) -> sa.Engine:
        return open_store(self.project.state_url, self.project.home)

    def tick(self, sensor: str = "conduit_recovery") -> list[dg.RunRequest]:
        """Run a sensor; return its run requests."""
        ticked = self.evaluate(sensor, ["repository", sensor, "1"])
        for event in ticked.asset_events:  # like the daemon
            self.instance.report_runless_asset_event(event)
        return list(ticked.run_requests or [])

    def evaluate(self, sensor: str, log_key: list[str] | None = None) -> SensorExecutionData:
        """Evaluate a sensor: as by hand, or as a tick with its key."""
        repository = self.definitions.get_repository_def()
        definition = repository.get_sensor_def(sensor)
        origin = RegisteredCodeLocationOrigin(self._name) if self._name else None
        context = dg.SensorEvaluationContext(
            None,
            None,
            None,
            None,
            log_key,
            "repository",
            repository,
            self.instance,
            sensor,
            code_location_origin=origin,
        )
        return definition.evaluate_tick(context)

    def tick_later(self, monkeypatch: pytest.MonkeyPatch) -> list[dg.RunRequest]:
        """Tick of the recovery sensor 200 s later, when the limit of a start is over; so are all ticks after it."""
        later = SimpleNamespace(**vars(time))
        later.time_ns = lambda: time.time_ns() + 200 * 10**9
        monkeypatch.setattr("conduit_dagster.sensors.tick.time", later)
        return self.tick()

    def dagster_status(self, run: dg.DagsterRun) -> dg.DagsterRunStatus:
        found = self.instance.get_run_by_id(run.run_id)
        assert found is not None
        return found.status

    def evaluated(self, key: dg.AssetKey, name: str) -> list[bool]:
        """Return the results of an asset's check, newest first."""
        storage = self.instance.event_log_storage
        records = storage.get_asset_check_execution_history(dg.AssetCheckKey(key, name), 10)
        return [record.evaluation.passed for record in records if record.evaluation is not None]

    def launch(self, request: dg.RunRequest, status: str = "STARTED") -> dg.DagsterRun:
        """Launch a run like the daemon."""
        job = self.definitions.resolve_job_def(request.job_name or "")
        tags = {**job.run_tags, **request.tags}
        return self.instance.create_run_for_job(job, tags=tags, status=dg.DagsterRunStatus(status))

    def restart(self, name: str = "orders") -> dg.DagsterRun:
        """Let a run begin and fail; launch its restart, which has reported nothing yet."""
        self.begin(name)
        self.fail(name)
        (request,) = self.tick()
        return self.launch(request)

    def terminate(self, run: dg.DagsterRun) -> None:
        """Terminate a run like a user; it ends at once."""
        self.instance.report_run_canceling(run)
        self.instance.report_run_canceled(run)

    def fails_with(self, run: dg.DagsterRun, code: str) -> None:
        """Fail a run in Dagster, as the run's own op does."""
        told = failure(TransientError("another process has it", code=code))
        error = SerializableErrorInfo(str(told), [], "Failure")
        data = StepFailureData(error, UserFailureData("f", told.description, told.metadata))
        kind = DagsterEventType.STEP_FAILURE.value
        event = DagsterEvent(event_type_value=kind, job_name=run.job_name, step_key="orders", event_specific_data=data)
        self.instance.report_dagster_event(event, run.run_id)
        self.instance.report_run_failed(run)

    def run(self, name: str = "orders", status: str = "STARTED", **tags: str) -> dg.DagsterRun:
        return self.launch(dg.RunRequest(job_name=name, tags=tags), status)

    def backdate(self, run: dg.DagsterRun, by: timedelta) -> None:
        """Let a run have been created, and have started, earlier."""
        storage: Any = self.instance.run_storage
        record = self.instance.get_run_record_by_id(run.run_id)
        assert record is not None
        created = record.create_timestamp.replace(tzinfo=None) - by
        values = {"create_timestamp": created, "start_time": created.replace(tzinfo=UTC).timestamp()}
        with storage.connect() as connection:
            connection.execute(sa.update(RunsTable).where(RunsTable.c.run_id == run.run_id).values(values))

    def zoned(self, hours: int) -> None:
        """Let the run storage's times be those of a PostgreSQL in another time zone, and new runs have started."""
        storage: Any = self.instance.run_storage
        with storage.connect() as connection:
            for record in self.instance.get_run_records():
                if record.start_time is None:
                    theirs = record.create_timestamp.replace(tzinfo=None) + timedelta(hours=hours)
                    values = {"create_timestamp": theirs, "start_time": record.create_timestamp.timestamp()}
                    mine = RunsTable.c.run_id == record.dagster_run.run_id
                    connection.execute(sa.update(RunsTable).where(mine).values(values))

    # -- effects of a run ------------------------------------------------------------------------------------------

    def begin(
        self, name: str = "orders", run: str = "r1", digest: str = "", alive: bool = False, drains: bool = False
    ) -> None:
        """Record the start of a run, whose process is now dead, or is this one."""
        self._free(name)
        with owned(self.root, name) as store:
            store.status.begin(RunStart(run, "f", digest, drains=drains))
        owner = json.dumps({**identity(os.getpid()), **({} if alive else {"started": "1"})})
        with self.store.begin() as connection:
            connection.execute(sa.update(pipelines).where(pipelines.c.pipeline == name).values(owner=owner))

    def begins(self, run: dg.DagsterRun, status: str = "running") -> bool:
        """Let a run begin, if it is still wanted. ``status``: what its file says."""
        since_ns, automatic = created_ns(self.instance, run.run_id), automatic_start(run, status)
        start = RunStart(run.run_id, "f", since_ns=since_ns, automatic=automatic)
        with owned(self.root, run.job_name) as store:
            return store.status.begin(start) is not None

    def _free(self, name: str) -> None:
        """End the owner's process: its successor need not wait for its silence."""
        with self.store.begin() as connection:
            connection.execute(sa.update(pipelines).where(pipelines.c.pipeline == name).values(owner=""))

    def fail(self, name: str = "orders", error: ConduitError = GONE, policy: Policy | None = None) -> None:
        """Record that it failed and reported that."""
        assert report_failure(self.store, name, RunDeath("r1", error), policy or Policy()) is not None

    def fail_by_itself(self, name: str = "orders", run: str = "r1") -> None:
        """Let the run record its failure itself."""
        self._free(name)
        with owned(self.root, name) as store:
            store.status.failed(error_json(GONE), Policy(), run)

    def end(self, status: str, reason: str, name: str = "orders") -> None:
        self._free(name)
        with owned(self.root, name) as store:
            store.status.ended(status, reason)

    def status(self, name: str = "orders") -> tuple[str, str]:
        row = pipeline_rows(self.store)[name]
        return row["status"], row["reason"]

    def recovery(self, name: str = "orders") -> Any:
        return recovery_rows(self.store)[name]

    def events(self, name: str = "orders") -> list[str]:
        return [row["event"] for row in reversed(newest_events(self.store, name, 1000))]
