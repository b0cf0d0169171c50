"""Events that a run writes to Dagster while it moves records and at its end, with the contents of its destinations.

The contents are a number of rows, a preview with redacted columns masked, and the lineage of columns. They are queried
after the records were moved and never fail a run.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

import dagster as dg
import structlog

from conduit_dagster.assets.asset_checks import (
    CheckResult,
    as_result,
    log_check,
    readable_verdicts,
    status_observation,
    status_verdict,
    verdicts,
)
from conduit_dagster.assets.events import Observer, RunSnapshot, acks_materialization, materializations
from conduit_dagster.assets.newest_shown import HiddenChecks, are_told
from conduit_dagster.assets.run_origin import is_own
from conduit_dagster.assets.translator import AssetKeys
from conduit_dagster.daemon_threads import below, has_ended, in_daemon
from conduit_dagster.engine.compiled_pipeline import CompiledPipeline, DestinationNode
from conduit_dagster.engine.nodes import Step
from conduit_dagster.engine.redaction import MASK
from conduit_dagster.engine.report import RunResult
from conduit_dagster.field_reference import Reference
from conduit_dagster.secret_values import hide

log = structlog.get_logger("conduit.dagster")
_PREVIEW_ROWS = 5
_CONTENTS_SECONDS = 2.0
_LONGEST_PAUSE = 31
"""Most looks at the contents of destinations that are left out after one that took too long."""
_LONGEST_CELL = 200
_STORAGE_SECONDS = 30.0
"""Seconds at the end of a run until Dagster's storage must answer."""
_STORAGE_PAUSE = 0.5
Metadata = dict[str, Any]


class ContentsView:
    """View of the contents of a pipeline's destinations."""

    def __init__(self, pipeline: CompiledPipeline, keys: AssetKeys) -> None:
        """``pipeline``: not the instance that a run uses, whose connections are busy."""
        self._pipeline, self._keys = pipeline, keys
        self._asked: Future[None] | None = None
        self._pause, self._skipped = 0, 0

    def metadata(self, is_last: bool = False) -> dict[str, Metadata]:
        """Return the metadata of each destination, by id. Takes two seconds at most, even if one does not answer.

        After a look that took longer the next one is left out, then the next three, and so on, unless ``is_last``; none
        begins before the one that took longer has ended.
        """
        found: dict[str, Metadata] = {}
        if self._may_ask(is_last):
            self._asked = in_daemon(lambda: self._ask(found), below(f"preview of {self._pipeline.program.pipeline}"))
            is_slow = not has_ended(self._asked, _CONTENTS_SECONDS)
            self._pause, self._skipped = min(2 * self._pause + 1, _LONGEST_PAUSE) if is_slow else 0, 0
        return {node.id: {} for node in self._pipeline.outputs} | dict(found)

    @property
    def is_late(self) -> bool:
        """Whether the newest look took too long, or was left out for one that did: the contents are not known."""
        return self._pause > 0

    def _may_ask(self, is_last: bool) -> bool:
        if self._asked is not None and not self._asked.done():
            return False
        self._skipped += 1
        return is_last or self._skipped > self._pause

    def _ask(self, found: dict[str, Metadata]) -> None:
        for node in self._pipeline.outputs:
            destination = node.destination
            try:
                found[node.id] = self._of(node, destination.row_count(), destination.preview(_PREVIEW_ROWS))
            except Exception as error:  # noqa: BLE001  # whatever it raises here, its records are delivered
                log.debug("a destination has no preview", node=node.node, cause=hide(str(error)))
            finally:
                with suppress(Exception):
                    destination.close()

    def _of(self, node: DestinationNode, number: int | None, rows: Sequence[Mapping[str, Any]]) -> Metadata:
        declared = (name for name, _ in node.destination.declared_columns)
        columns = {name: node.destination.field_of(name) for name in chain(declared, *rows)}
        paths = {one.id: [*one.nodes, *self._pipeline.nodes, *node.nodes] for one in self._pipeline.sources}
        facts: Metadata = {} if number is None else {"dagster/row_count": number}
        # a join puts all fields of a source into one field named after the source
        is_join = self._pipeline.program.fan_in == "join"
        lineage = {} if is_join else _lineage(paths, columns, self._keys)
        if lineage:
            facts["dagster/column_lineage"] = dg.TableColumnLineage(lineage)
        if rows:
            redacted = _Redacted(self._pipeline.program.redact, list(paths.values()), is_join)
            facts["preview"] = _table(rows, {name: redacted.covers(field) for name, field in columns.items()})
        return facts


def _origins(nodes: Sequence[Step], field: str) -> Collection[str] | None:
    """Return the source fields that a field depends on; None if a processor on the way can't determine them."""
    names: set[str] = {field}
    for node in reversed(nodes):
        told = [node.made_of(name) for name in names]
        names = set[str]().union(*(made for made in told if made is not None))
        if None in told:
            return None
    return names


def _lineage(
    paths: Mapping[str, Sequence[Step]], columns: Mapping[str, str | None], keys: AssetKeys
) -> dict[str, list[dg.TableColumnDep]]:
    """Return the lineage of each column; a column is left out if one path can't determine it."""
    found = dict[str, list[dg.TableColumnDep]]()
    for column, field in columns.items():
        told = {source: None if field is None else _origins(nodes, field) for source, nodes in paths.items()}
        if None not in told.values():
            pairs = [(source, name) for source, names in told.items() for name in sorted(names or ())]
            found[column] = [dg.TableColumnDep(keys.of(source), name) for source, name in pairs]
    return found


class _Redacted:
    """Determines which columns may hold redacted data, under any name."""

    def __init__(self, fields: Sequence[str], paths: Sequence[Sequence[Step]], is_join: bool) -> None:
        references = [Reference.parse(text) for text in fields]
        self._names = {one.path[0] for one in references if one.path}
        self._paths = paths
        # a whole part, or metadata: the columns it has gone into are unknown
        self._everything = any(is_join or not one.path or one.root == "metadata" for one in references)

    def covers(self, field: str | None) -> bool:
        """Return whether the column of this field must be masked; also True if unknown."""
        if self._everything or not self._names:
            return self._everything
        return field is None or any(self._is_made_of_one(nodes, field) for nodes in self._paths)

    def _is_made_of_one(self, nodes: Sequence[Step], field: str) -> bool:
        # a field is redacted by its name at any point of the path
        for start in range(len(nodes) + 1):
            names = _origins(nodes[start:], field)
            if names is None or not self._names.isdisjoint(names):
                return True
        return False


def _table(rows: Sequence[Mapping[str, Any]], masked: Mapping[str, bool]) -> dg.TableMetadataValue:
    """Return the rows as a table. ``masked``: by column."""
    records = [
        dg.TableRecord({name: MASK if is_masked else _cell(row.get(name)) for name, is_masked in masked.items()})
        for row in rows
    ]
    return dg.MetadataValue.table(records, dg.TableSchema([dg.TableColumn(name, "string") for name in masked]))


def _cell(value: Any) -> str:
    if isinstance(value, dict | list | bool | None):
        text = json.dumps(value, ensure_ascii=False, default=str)
    else:
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return hide(text)[:_LONGEST_CELL]


class Intervals(NamedTuple):
    """How often a run reports, in seconds."""

    every: float
    """Minimum time between two materialisations."""
    max_wait: float
    """Longest time that records may wait for an ack before the check ``ack_lag`` fails."""
    max_lag: float | None = None
    """``max-lag`` of a continuous pipeline, which keeps an idle run fresh; None disables that."""


class Heartbeat:
    """Schedule by which a continuous run materialises the acks without any move, while ``delivery.max-lag`` is kept.

    At least every half of it, so that an idle pipeline is not late, but no more often than other events of the run.
    """

    def __init__(self, max_lag: float | None, every: float) -> None:
        """``every``: minimum seconds between two materialisations. Without ``max_lag`` it is never due."""
        self._max_lag = 0.0 if max_lag is None else max_lag
        self._interval = math.inf if max_lag is None else max(every, max_lag / 2)
        self._every = every
        self._shown = time.monotonic()

    def show(self, now: float) -> None:
        """Record that the acks are materialised now."""
        self._shown = now

    def is_due(self, snapshot: RunSnapshot, now: float) -> bool:
        """Return whether the acks are due for materialisation, and may be materialised."""
        return now >= self._shown + self._interval and snapshot.keeps(self._max_lag)

    def next_look(self, now: float) -> float:
        """Return when the run is to be checked again."""
        due = self._shown + self._interval
        return min(due, now + self._every) if due > now else now + self._every


class RunReporter:
    """Writer of one run's events. Dagster's storage is only a view: records keep moving while it fails."""

    def __init__(
        self,
        context: dg.AssetExecutionContext,
        keys: AssetKeys,
        observer: Observer,
        intervals: Intervals,
    ) -> None:
        self._context, self._keys, self._observer = context, keys, observer
        self._bound, self._contents = observer.bound, ContentsView(observer.pipeline, keys)
        self._every, self._max_wait = intervals.every, intervals.max_wait
        self._heartbeat = Heartbeat(intervals.max_lag, intervals.every)
        self._outcomes: dict[tuple[str, str], bool] = {}
        self._hidden = HiddenChecks((context.instance, context.run.run_id), keys)
        self._logged, self._begun = 0, False
        self._due = self._heartbeat.next_look(time.monotonic())

    def begin(self) -> None:
        """Log every check at once; otherwise the UI shows it as in progress for as long as the run lasts."""
        try:
            self._check(self._verdicts(self._observer.snapshot(), None))
        except Exception as error:  # noqa: BLE001  # a tick tries again; the run reports what is wrong with the state store
            log.warning("events could not be written", pipeline=self._bound.id, cause=str(error))

    def tick(self) -> None:
        """Write after the first step, then at most once per interval. Called a few times a second."""
        first, now = not self._begun and self._observer.steps > 0, time.monotonic()
        if not first and now < self._due:
            return
        self._begun, self._due = self._begun or first, now + self._every
        try:
            self._write(now)
        except Exception as error:  # noqa: BLE001  # see the class: the next interval tries again
            log.warning("events could not be written", pipeline=self._bound.id, cause=str(error))
        else:
            self._due = self._heartbeat.next_look(now)

    def _write(self, now: float) -> None:
        snapshot = self._observer.snapshot()
        if snapshot.progress.steps != self._logged:
            self._materialize(snapshot)
            self._heartbeat.show(now)
        elif self._heartbeat.is_due(snapshot, now):
            self._context.log_event(acks_materialization(self._keys, snapshot))
            self._heartbeat.show(now)
            self._begun = True  # right after this event, the first step needs none of its own
        found = list(self._verdicts(snapshot, None))
        self._check(found)
        self._hidden.show(found)
        self._check_sources(snapshot)

    def end(self, result: RunResult) -> Iterator[dg.MaterializeResult[Any] | dg.AssetCheckResult]:
        """Yield the final numbers and the check results that Dagster requires of every run.

        The assets written by a successful run are yielded as outputs, so that downstream assets in the same run begin
        after it. A failed run that moved nothing since the last event materialises nothing: its assets show as failed.
        A run of the pipeline alone with nothing new to tell materialises its acks only: an asset that is launched for
        each materialisation of a destination would be launched for nothing.
        Dagster's storage is waited for a while, which would otherwise fail a run that has drained, or hide what failed.
        Raises ``ConduitError`` if the state store does not answer.
        """
        self._await_storage()
        snapshot = self._observer.snapshot()
        self._check_sources(snapshot, result)
        if result.error is None:
            yield from self._outputs(snapshot)
        else:
            if snapshot.progress.steps != self._logged:
                self._materialize(snapshot, is_failing=True)
            self._observe_failure(result)
        found = list(self._verdicts(snapshot, result))
        for verdict in found:
            yield as_result(self._keys, verdict)
        self._hidden.show(found, is_last=True)

    def _await_storage(self) -> None:
        until = time.monotonic() + _STORAGE_SECONDS
        while True:
            try:
                self._context.instance.get_run_record_by_id(self._context.run.run_id)
            except Exception as error:  # noqa: BLE001  # what it raises depends on the storage
                if time.monotonic() >= until:
                    return  # Dagster itself fails the run
                log.warning("Dagster's storage does not answer", pipeline=self._bound.id, cause=hide(str(error)))
                time.sleep(_STORAGE_PAUSE)
            else:
                return

    def _outputs(self, snapshot: RunSnapshot) -> Iterator[dg.MaterializeResult[Any]]:
        read = {self._keys.of(source.id) for source in self._bound.config.sources}
        for event in self._last_materializations(snapshot):
            if event.asset_key in read:
                self._context.log_event(event)  # an external asset: no output of this op
            else:
                yield dg.MaterializeResult(asset_key=event.asset_key, metadata=event.metadata)

    def _last_materializations(self, snapshot: RunSnapshot) -> Iterable[dg.AssetMaterialization]:
        if self._is_all_told(snapshot):
            return [acks_materialization(self._keys, snapshot)]
        return materializations(self._bound, self._keys, snapshot, self._contents.metadata(is_last=True))

    def _is_all_told(self, snapshot: RunSnapshot) -> bool:
        """Return whether the newest materialisations show all that was moved, and no other asset of the run waits."""
        is_alone = is_own(self._context.run, self._bound)
        if not is_alone or snapshot.progress.steps != self._logged or self._contents.is_late:
            return False
        return are_told(self._context.instance, materializations(self._bound, self._keys, snapshot, {}))

    def _materialize(self, snapshot: RunSnapshot, is_failing: bool = False) -> None:
        """``is_failing``: don't query destinations for their contents, since one may be the cause."""
        contents = {} if is_failing else self._contents.metadata()
        for event in materializations(self._bound, self._keys, snapshot, contents):
            self._context.log_event(event)
        self._logged = snapshot.progress.steps

    def _check(self, found: Iterable[CheckResult]) -> None:
        """Log only the checks that changed: Dagster keeps every event of a run in memory."""
        for verdict in found:
            check = verdict.asset, verdict.name
            if self._outcomes.get(check) is not verdict.passed:
                log_check(self._context, self._keys, verdict)
                self._outcomes[check] = verdict.passed

    def _check_sources(self, snapshot: RunSnapshot, result: RunResult | None = None) -> None:
        """Log the checks of the sources: these are external assets, so they are no output of this run."""
        self._check(readable_verdicts(self._bound, snapshot, result))

    def _observe_failure(self, result: RunResult) -> None:
        """Replace a sensor's observation of the acks: its restart is no longer pending."""
        verdict = status_verdict(self._bound.id, result)
        if not verdict.passed:
            self._context.log_event(status_observation(self._keys, verdict))

    def _verdicts(self, snapshot: RunSnapshot, result: RunResult | None) -> Iterator[CheckResult]:
        return verdicts(self._bound, snapshot, self._max_wait, result)
