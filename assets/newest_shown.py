"""What Dagster shows at a pipeline's assets by now: results of checks, and numbers such as totals over all runs."""

from __future__ import annotations

from collections.abc import Iterable

import dagster as dg
from dagster._core.storage.asset_check_execution_record import (
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
)

from conduit_dagster.assets.asset_checks import CheckResult, as_evaluation
from conduit_dagster.assets.translator import AssetKeys


class HiddenChecks:
    """Reports the results of a run again, as those of no run, where another run's are newer and differ.

    Dagster keeps one execution for each check and run, as old as the run's first evaluation or its plan, and shows the
    newest execution. So once another run of the pipeline was launched, such as one that is refused because the first is
    at work, or is left out behind a failure, whatever the first run finds later is not shown.
    """

    def __init__(self, run: tuple[dg.DagsterInstance, str], keys: AssetKeys) -> None:
        """``run``: its Dagster instance and id."""
        (self._instance, self._run_id), self._keys = run, keys

    def show(self, results: Iterable[CheckResult], is_last: bool = False) -> None:
        """Report what is hidden; ``is_last``: also where only the text differs, which changes all the time."""
        wanted = {dg.AssetCheckKey(self._keys.of(one.asset), one.name): one for one in results}
        newest = self._instance.event_log_storage.get_latest_asset_check_execution_by_key(list(wanted))
        for check, record in newest.items():
            if record.run_id != self._run_id and self._differs(record, wanted[check], is_last):
                self._instance.report_runless_asset_event(as_evaluation(self._keys, wanted[check]))

    def _differs(self, record: AssetCheckExecutionRecord, result: CheckResult, is_last: bool) -> bool:
        if record.status is AssetCheckExecutionRecordStatus.PLANNED:
            run = self._instance.get_run_by_id(record.run_id)
            return run is None or run.is_finished  # otherwise it has yet to evaluate it
        evaluation = record.evaluation
        if not isinstance(evaluation, dg.AssetCheckEvaluation) or evaluation.passed is not result.passed:
            return True
        return is_last and evaluation.description != result.description


_LASTING = ("_all_runs", "open")
"""Ends of the names of numbers that no run begins anew."""


def are_told(instance: dg.DagsterInstance, events: Iterable[dg.AssetMaterialization]) -> bool:
    """Return whether the newest materialisation of each asset shows the lasting numbers of these events already.

    False after a run that was killed before it could tell what it had moved, and for an asset without any.
    """
    return all(_lasting(event) == _told(instance, event.asset_key) for event in events)


def _told(instance: dg.DagsterInstance, key: dg.AssetKey) -> dict[str, object] | None:
    newest = instance.get_latest_materialization_event(key)
    event = None if newest is None else newest.asset_materialization
    return None if event is None else _lasting(event)


def _lasting(event: dg.AssetMaterialization) -> dict[str, object]:
    return {name: value.value for name, value in event.metadata.items() if name.endswith(_LASTING)}
