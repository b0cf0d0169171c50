"""Checks of pipelines that a user stopped outside of Dagster, as by ``pipelines stop``: nothing else evaluates them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import dagster as dg

from conduit_dagster.assets.asset_checks import STATUS, AssetEvent, status_events, stopped_verdict
from conduit_dagster.assets.names import ACKS
from conduit_dagster.assets.translator import AssetKeys
from conduit_dagster.recovery.policy import PipelineStatus
from conduit_dagster.sensors.known import File, Stored

_ENDED = (PipelineStatus.RECOVERING, PipelineStatus.DEGRADED)
"""What a check may say that the stop has ended."""


class StoppedChecks:
    """Events for pipelines that wait for no restart any more. Remembers which are known to be stopped."""

    def __init__(self) -> None:
        self._known = set[tuple[str, int]]()
        """Pipelines, with the numbers of their last failures."""

    def of(
        self, instance: dg.DagsterInstance, files: Iterable[File], rows: Mapping[str, Stored]
    ) -> Iterator[AssetEvent]:
        """Yield the events of pipelines that were stopped since, and whose check ``status`` says something else."""
        found = {(file.pipeline, rows[file.pipeline].recovery.failure): file.keys for file in _stopped(files, rows)}
        for keys in _outdated(instance, [keys for one, keys in found.items() if one not in self._known]):
            yield from status_events(keys, stopped_verdict())
        self._known = set(found)


def _stopped(files: Iterable[File], rows: Mapping[str, Stored]) -> Iterator[File]:
    for file in files:
        row = rows.get(file.pipeline)
        if row is not None and not row.owned and (row.status, row.reason) == (PipelineStatus.STOPPED, "user"):
            yield file


def _outdated(instance: dg.DagsterInstance, every: Iterable[AssetKeys]) -> Iterator[AssetKeys]:
    checks = {dg.AssetCheckKey(keys.of(ACKS), STATUS): keys for keys in every}
    if not checks:
        return
    # in one query: at the first tick there may be many
    newest = instance.event_log_storage.get_latest_asset_check_execution_by_key(list(checks))
    for check, record in newest.items():
        evaluation: Any = record.evaluation
        # one that is only planned is up to its run
        told = evaluation.metadata.get("status") if isinstance(evaluation, dg.AssetCheckEvaluation) else None
        if told is not None and told.value in _ENDED:
            yield checks[check]
