"""The newest run of each pipeline in Dagster's run storage."""

from __future__ import annotations

import dagster as dg

from assets.restart import FAILURE_TAG
from conduit_dagster.recovery.classify import from_dagster
from conduit_dagster.recovery.errors import ConduitError, TransientError
from sensors.known import File, LastRun

_PAGE = 200


class Runs:
    """One look at the run storage: the newest page at once, what is not on it one by one."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance
        self._newest: dict[str, LastRun] = {}
        self._all = False

    def look(self) -> None:
        """Takes the newest runs in, again."""
        records = self._instance.get_run_records(limit=_PAGE)
        self._all = len(records) < _PAGE
        self._newest = {}
        for record in records:
            self._newest.setdefault(record.dagster_run.job_name, _last(record))

    def of(self, file: File) -> LastRun | None:
        """The newest run of its own job."""
        if file.job not in self._newest and not self._all:
            found = self._instance.get_run_records(dg.RunsFilter(job_name=file.job), limit=1)
            if not found:
                return None
            self._newest[file.job] = _last(found[0])
        return self._newest.get(file.job)


def _last(record: dg.RunRecord) -> LastRun:
    run = record.dagster_run
    number = run.tags.get(FAILURE_TAG, "")
    return LastRun(
        run.run_id,
        not run.is_finished,
        run.status is dg.DagsterRunStatus.FAILURE,
        run.status in (dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.CANCELING),
        round(record.create_timestamp.timestamp() * 1e9),
        int(number) if number.isdecimal() else None,
    )


def error_of(instance: dg.DagsterInstance, run_id: str) -> ConduitError:
    """Why a run failed, with its class, as far as it could say it; a process that died without a word is transient."""
    failures = instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    for entry in failures:
        event = entry.dagster_event
        data = None if event is None else event.step_failure_data
        if data is None or data.error is None:
            continue
        told = {} if data.user_failure_data is None else data.user_failure_data.metadata
        metadata = {name: value.value for name, value in told.items()}
        return from_dagster(metadata, data.error.cls_name, data.error.to_string())
    return TransientError(
        f"run {run_id} ended without a word",
        code="run.died",
        fix="nothing to do: it is restarted; where it happens again, look for what ends it (memory, the system's log)",
    )


def config_of(instance: dg.DagsterInstance, run_id: str) -> dict[str, object]:
    """The config of the run that is to be repeated; empty where it is not known any more."""
    run = instance.get_run_by_id(run_id) if run_id else None
    return {} if run is None else dict(run.run_config)
