"""Line 2 of the protocol for a log of records: what the sources have is logged before a step reads it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from conduit_dagster import storage
from conduit_dagster.commit_log.compaction import Compactor
from conduit_dagster.commit_log.layout import LogFolder, Written
from conduit_dagster.engine.append import APPENDED_SCHEMA, Appended, AppendJob, AppendTask, run_append
from conduit_dagster.engine.blame import blamed
from conduit_dagster.engine.compiled import CompiledPipeline
from conduit_dagster.engine.inlets import Inlet
from conduit_dagster.engine.jobs import Jobs
from conduit_dagster.recovery.errors import ConduitError, TransientError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import Limit, Position, Split
from conduit_dagster.state.log_store import LogPart, LogState, LogStore
from conduit_dagster.state.store import PipelineStore


class Append(NamedTuple):
    """What is to be logged of one source, and where."""

    inlet: Inlet
    start: Position
    end: Position
    offset: int
    """Of its first record."""
    segment: int
    folder: LogFolder


def parts_of(append: Append, written: Sequence[tuple[Written, Any]]) -> list[LogPart]:
    """The files that tasks wrote for it, in order, each with the boundary behind its last record, as the manifest names
    them."""
    source, last = append.inlet.source, len(written) - 1
    return [
        # behind the last record there may be what holds none: it is read as well
        file.appended(
            append.segment, append.end if place == last else source.within(append.start, append.end, boundary)
        )
        for place, (file, boundary) in enumerate(written)
    ]


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
        self._name, self._sources = pipeline.program.pipeline, pipeline.sources
        self._program = pipeline.program.encode()
        self._failure: ConduitError | None = None
        self._is_entered = False
        self.rolled = True
        """Whether a segment was closed since the last compaction; a run begins with one."""

    def append(self, appends: Sequence[Append]) -> bool:
        """Logs it; False where there was nothing to read after all.

        An append that is killed before its manifest was committed never was: the sources are read again from there.
        """
        reached("before-log", self._name)
        tasks = [task for append in appends for task in self._tasks(append)]
        once = any(not append.inlet.source.replayable for append in appends)
        reports = self._run(AppendJob(time.time_ns(), tasks, once))
        found = [
            _logged(append, [report for report in reports if tasks[report.task].source == append.inlet.id])
            for append in appends
        ]
        logged = [one for one in found if one is not None]
        for append, _ in logged:
            self.verify(append)
        reached("after-log-stage", self._name)
        self.commit(logged)
        reached("after-log", self._name)
        # what was read before a failure is logged, and delivered before the failure ends the run
        self._failure = next((report.failed.as_error() for report in reports if report.failed), None)
        if not logged:
            self.raise_failure()
        return bool(logged)

    def raise_failure(self) -> None:
        """Raises why a source gave no more, if one did; once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def compact(self) -> None:
        """Compacts what was closed since the last time. Not while a step reads the log: its files may go."""
        self.rolled = False
        consumers = list(self._pipeline.consumers())
        for inlet in self._sources:
            folder = LogFolder(self._base, self._name, inlet.id)
            Compactor(folder, self._log, self._store.transactions.run).compact(consumers)

    def new(self, horizons: Mapping[str, Any] | None) -> list[Append]:
        """What is new of every source, within the limit."""
        found = [self._new(inlet, None if horizons is None else horizons.get(inlet.id)) for inlet in self._sources]
        return [append for append in found if append is not None]

    def _new(self, inlet: Inlet, horizon: Any) -> Append | None:
        state = self.state(inlet.id)
        end = blamed(self._node(inlet), inlet.source.latest, state.position, self._limit, horizon)
        return None if end == state.position else self.to(inlet, state.position, end, state.next_offset)

    def to(self, inlet: Inlet, start: Position, end: Position, offset: int) -> Append:
        """A range of a source, behind its log, which ends before ``offset``."""
        segment = self._store.transactions.read(
            lambda connection: self._log.segment_for_append(connection, inlet.id, self._segment_bytes)
        )
        return Append(inlet, start, end, offset, segment, LogFolder(self._base, self._name, inlet.id))

    def state(self, source: str) -> LogState:
        """How far a source is in the log."""
        return self._store.transactions.read(lambda connection: self._log.state(connection, source))

    def split(self, append: Append, n: int) -> list[Split]:
        """What is to be logged, in about ``n`` parts."""
        return blamed(self._node(append.inlet), append.inlet.source.split, append.start, append.end, n)

    def verify(self, append: Append) -> None:
        """Raises ``FatalError`` where what was read is not what was there before."""
        blamed(self._node(append.inlet), append.inlet.source.verify, append.start, append.end)

    def _tasks(self, append: Append) -> list[AppendTask]:
        """Several only where each one knows the offset that it begins with before it reads."""
        inlet, folder = append.inlet, append.folder.segment(append.segment)
        alone = not inlet.source.replayable or (self._pipeline.program.fan_in == "join" and bool(inlet.nodes))
        splits = self.split(append, 1 if alone else self._slots)
        groups = [splits] if alone else _grouped(splits, self._slots)
        return [
            AppendTask(inlet.id, group, append.offset + (0 if alone else group[0].ordinal), folder) for group in groups
        ]

    def _run(self, job: AppendJob) -> list[Appended]:
        count = len(job.tasks)
        function = partial(run_append, self._program, msgspec.msgpack.encode(job))
        rows = self._jobs.each(count, function, APPENDED_SCHEMA, self._pipeline.queries)
        reports = sorted((msgspec.msgpack.decode(row, type=Appended) for row in rows), key=lambda r: r.task)
        if len(reports) != count:
            raise TransientError(f"{count - len(reports)} of {count} tasks did not report", code="spark.ledger_lost")
        for report in reports:
            if report.error is not None:
                raise report.error.as_error()
        return reports

    def commit(self, logged: Sequence[tuple[Append, Sequence[LogPart]]]) -> None:
        """Makes what tasks wrote a part of the logs, all of it in one transaction: a step covers only what that names.

        Raises ``FatalError`` (``log.gap``) where the files are not the logs' continuation.
        """
        for append, parts in logged:
            if parts:
                append.folder.sync(append.segment)
        if logged and not self._is_entered:
            # a log that is new: the folders that lead to it may be so as well
            storage.sync_entry(self._base)
            self._is_entered = True
        storage.sync(self._base)

        def work(connection: sa.Connection) -> None:
            for append, parts in logged:
                self._log.commit(connection, append.inlet.id, parts, append.end)

        self._store.transactions.run(work)
        for append, parts in logged:
            for part in parts:
                append.folder.publish_name(append.segment, part.name)
            self.rolled = self.rolled or (append.segment == append.offset and append.offset > 0)

    def _node(self, inlet: Inlet) -> str:
        return f"{self._name}:{inlet.id}"


def _logged(append: Append, reports: Sequence[Appended]) -> tuple[Append, list[LogPart]] | None:
    """None where the log stands where it stood: there was nothing to read after all."""
    failed = next((place for place, report in enumerate(reports) if report.failed is not None), None)
    # what other tasks read behind a failure is no continuation of what lies before it
    read = [report for report in reports[: None if failed is None else failed + 1] if report.boundary is not None]
    source = append.inlet.source
    if not source.replayable or failed is not None:
        if not read:
            return None
        end = read[-1].boundary if not source.replayable else source.within(append.start, append.end, read[-1].boundary)
        append = append._replace(end=end)
    return append, parts_of(append, [(one.written, one.boundary) for one in read if one.written is not None])


def _grouped(splits: Sequence[Split], slots: int) -> list[list[Split]]:
    """Consecutive splits as at most ``slots`` tasks."""
    size = max(1, -(-len(splits) // slots))
    return [list(splits[i : i + size]) for i in range(0, len(splits), size)]
