"""Results of checks that Dagster hides behind those of another run.

Dagster keeps one execution for each check and run, as old as the run's first evaluation or its plan, and shows the
newest execution. So once another run of the pipeline was launched, such as one that is refused because the first is at
work, or is left out behind a failure, whatever the first run finds later is not shown.
"""

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
    """Reports the results of a run again, as those of no run, where another run's are newer and differ."""

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
