"""Line 2 of the protocol for a log of records: what the sources have is logged before a step reads it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from conduit_dagster.connectors.base import Limit, Position, Split
from conduit_dagster.engine.append import APPENDED_SCHEMA, Appended, AppendJob, AppendTask, run_append
from conduit_dagster.engine.blame import blamed
from conduit_dagster.engine.commit_log.compaction import Compactor
from conduit_dagster.engine.commit_log.layout import LogFolder
from conduit_dagster.engine.compiled import CompiledPipeline
from conduit_dagster.engine.inlets import Inlet
from conduit_dagster.engine.jobs import Jobs
from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.state import storage
from conduit_dagster.state.log_store import LogPart, LogState, LogStore
from conduit_dagster.state.store import PipelineStore


class Logged(NamedTuple):
    """What is to be logged of one source, and where."""

    inlet: Inlet
    start: Position
    end: Position
    offset: int
    segment: int
    folder: LogFolder


class Appender:
    """Appends what the sources of one pipeline have to its log."""

    def __init__(
        self,
        pipeline: CompiledPipeline,
        store: PipelineStore,
        jobs: Jobs,
        base: str,
        slots: int,
        limit: Limit,
        segment_bytes: int,
    ) -> None:
        self._pipeline, self._store, self._jobs = pipeline, store, jobs
        self._base, self._slots, self._limit, self._segment_bytes = base, slots, limit, segment_bytes
        self._log = LogStore(pipeline.program.pipeline)
        self._name = pipeline.program.pipeline
        self._program = pipeline.program.encode()
        self.rolled = True
        """Whether a segment was closed since the last compaction; a run begins with one."""

    def append(self, horizons: Mapping[str, Any] | None) -> bool:
        """Logs what is new of every source, within the limit; False where there was nothing.

        An append that is killed before its manifest was committed never was: the sources are read again from there.
        """
        reaches = [reach for inlet in self._pipeline.sources if (reach := self.reach(inlet, horizons))]
        if not reaches:
            return False
        reached("before-log", self._name)
        tasks = [task for reach in reaches for task in self._tasks(reach)]
        once = any(not reach.inlet.source.replayable for reach in reaches)
        reports = self._run(AppendJob(time.time_ns(), tasks, once))
        for reach in reaches:
            blamed(self._node(reach.inlet), reach.inlet.source.verify, reach.start, reach.end)
        reached("after-log-stage", self._name)
        found = [
            self._logged(reach, [report for report in reports if tasks[report.task].source == reach.inlet.id])
            for reach in reaches
        ]
        logged = [one for one in found if one is not None]
        self.commit(logged)
        reached("after-log", self._name)
        return bool(logged)

    def compact(self) -> None:
        """Compacts what was closed since the last time. Not while a step reads the log: its files may go."""
        self.rolled = False
        consumers = list(self._pipeline.consumers())
        for inlet in self._pipeline.sources:
            folder = LogFolder(self._base, self._name, inlet.id)
            Compactor(folder, self._log, self._store.transactions.run).compact(consumers)

    def reach(self, inlet: Inlet, horizons: Mapping[str, Any] | None) -> Logged | None:
        """What is new of a source, within the limit; None where nothing is."""
        state = self._state(inlet)
        horizon = None if horizons is None else horizons.get(inlet.id)
        end = blamed(self._node(inlet), inlet.source.latest, state.position, self._limit, horizon)
        return None if end == state.position else self.to(inlet, state.position, end)

    def to(self, inlet: Inlet, start: Position, end: Position) -> Logged:
        """A range of a source, behind what its log holds."""
        offset = self._state(inlet).next_offset
        segment = self._store.transactions.read(
            lambda connection: self._log.segment_for_append(connection, inlet.id, self._segment_bytes)
        )
        return Logged(inlet, start, end, offset, segment, LogFolder(self._base, self._name, inlet.id))

    def _state(self, inlet: Inlet) -> LogState:
        return self._store.transactions.read(lambda connection: self._log.state(connection, inlet.id))

    def _tasks(self, reach: Logged) -> list[AppendTask]:
        """Several only where each one knows the offset that it begins with before it reads."""
        source, folder = reach.inlet.source, reach.folder.segment(reach.segment)
        alone = not source.replayable or (self._pipeline.program.fan_in == "join" and bool(reach.inlet.nodes))
        splits = blamed(self._node(reach.inlet), source.split, reach.start, reach.end, 1 if alone else self._slots)
        groups = [splits] if alone else _grouped(splits, self._slots)
        return [
            AppendTask(reach.inlet.id, group, reach.offset + (0 if alone else group[0].ordinal), folder)
            for group in groups
        ]

    def _run(self, job: AppendJob) -> list[Appended]:
        count = len(job.tasks)
        function = partial(run_append, self._program, msgspec.msgpack.encode(job))
        rows = self._jobs.each(count, function, APPENDED_SCHEMA)
        reports = sorted((msgspec.msgpack.decode(row, type=Appended) for row in rows), key=lambda r: r.task)
        if len(reports) != count:
            raise TransientError(f"{count - len(reports)} of {count} tasks did not report", code="spark.ledger_lost")
        for report in reports:
            if report.error is not None:
                raise report.error.as_error()
        return reports

    def _logged(self, reach: Logged, reports: Sequence[Appended]) -> tuple[Logged, list[LogPart]] | None:
        """None where the log stands where it stood: there was nothing to read after all."""
        last = next((report for report in reversed(reports) if report.boundary is not None), None)
        source = reach.inlet.source
        if last is None and not source.replayable:
            return None
        end = reach.end if last is None or source.replayable else last.boundary
        parts = [
            report.written.appended(reach.segment, end if report is last else self._within(reach, report.boundary))
            for report in reports
            if report.written is not None
        ]
        return reach._replace(end=end), parts

    def commit(self, logged: Sequence[tuple[Logged, Sequence[LogPart]]]) -> None:
        """Makes what tasks wrote a part of the logs, all of it in one transaction: a step covers only what that names.

        Raises ``FatalError`` (``log.gap``) where the files are not the logs' continuation.
        """
        for reach, parts in logged:
            if parts:
                reach.folder.sync(reach.segment)
        storage.sync(self._base)

        def work(connection: sa.Connection) -> None:
            for reach, parts in logged:
                self._log.commit(connection, reach.inlet.id, parts, reach.end)

        self._store.transactions.run(work)
        for reach, parts in logged:
            for part in parts:
                reach.folder.publish_name(reach.segment, part.name)
            self.rolled = self.rolled or (reach.segment == reach.offset and reach.offset > 0)

    def _within(self, reach: Logged, boundary: Any) -> Any:
        return reach.inlet.source.within(reach.start, reach.end, boundary)

    def _node(self, inlet: Inlet) -> str:
        return f"{self._name}:{inlet.id}"


def _grouped(splits: Sequence[Split], slots: int) -> list[list[Split]]:
    """Consecutive splits as at most ``slots`` tasks."""
    size = max(1, -(-len(splits) // slots))
    return [list(splits[i : i + size]) for i in range(0, len(splits), size)]
