"""Line 2 of the protocol for a log of records: new source records are logged before a step reads them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
import structlog

from conduit_dagster import storage
from conduit_dagster.commit_log.compaction import Compactor
from conduit_dagster.commit_log.segment_layout import LogFolder, Written, hidden
from conduit_dagster.engine.append import Appended, AppendJob, AppendTask, append_task
from conduit_dagster.engine.plugin_results import add_miscounted, latest_of, splits_of
from conduit_dagster.engine.source_nodes import SourceNode
from conduit_dagster.engine.spark_tasks import require_seen
from conduit_dagster.engine.step_context import StepContext
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.sdk import Position, Split
from conduit_dagster.sdk.promises import is_built_in
from conduit_dagster.state.log_store import ActiveSegment, LogPart, LogState, LogStore

log = structlog.get_logger("conduit.engine")


class Append(NamedTuple):
    """A range of one source to log, and its destination in the log."""

    node: SourceNode
    start: Position
    end: Position
    offset: int
    """Offset of its first record."""
    segment: int
    folder: LogFolder


def parts_of(append: Append, written: Sequence[tuple[Written, Any]]) -> list[LogPart]:
    """Return the files that the tasks wrote for an append as manifest entries, in order.

    ``written`` pairs each file with the boundary after its last record.
    """
    source, last = append.node.source, len(written) - 1
    return [
        # the range may end in data that holds no records; it counts as read as well
        file.appended(
            append.segment, append.end if place == last else source.within(append.start, append.end, boundary)
        )
        for place, (file, boundary) in enumerate(written)
    ]


class Appender:
    """Writer of new records of a pipeline's sources to its log."""

    def __init__(self, context: StepContext) -> None:
        self._context, self._pipeline, self._store = context, context.pipeline, context.store
        self._settings, self._base = context.settings, context.settings.log
        self._log = LogStore(context.name)
        self._name, self._sources = context.name, context.pipeline.sources
        self._failure: ConduitError | None = None
        self._is_entered = False
        self._active: dict[str, ActiveSegment] = {}
        """By source: only this run appends, and a segment of small appends has a hundred thousand files."""
        self._miscounted = set[str]()
        """Sources whose splits were miscounted: this run logs their ranges as one split each."""
        self.rolled = True
        """Whether a segment was closed since the last compaction; initially true, so a run starts with a compaction."""

    def append(self, appends: Sequence[Append]) -> bool:
        """Log these ranges; return False if they turned out to hold nothing.

        An append killed before its manifest commit has no effect: the sources are read again from the same positions.
        """
        reached("before-log", self._name)
        tasks = [task for append in appends for task in self._tasks(append)]
        once = any(not append.node.source.replayable for append in appends)
        reports = self._run(AppendJob(time.time_ns(), tasks, self._generation, once))
        failures = ((tasks[one.task].source, one.failed.code) for one in reports if one.failed)
        if add_miscounted(self._miscounted, failures):
            # nothing of it counts: its records have other offsets than their own
            return self.append(appends)
        found = [
            _logged(append, [report for report in reports if tasks[report.task].source == append.node.id])
            for append in appends
        ]
        logged = [one for one in found if one is not None]
        for append, _ in logged:
            append.node.verify(append.start, append.end)
        reached("after-log-stage", self._name)
        self.commit(logged)
        reached("after-log", self._name)
        # records read before a failure are logged, and are delivered before the failure ends the run
        self._failure = next((report.failed.as_error() for report in reports if report.failed), None)
        if not logged:
            self.raise_failure()
        return bool(logged)

    def raise_failure(self) -> None:
        """Raise the failure of a source that stopped early, if any; only once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def compact(self) -> None:
        """Compact the segments closed since the last call.

        Never call it while a step reads the log: it may remove that step's files.
        """
        self.rolled = False
        consumers = list(self._pipeline.consumers)
        for node in self._sources:
            folder = LogFolder(self._base, self._name, node.id)
            compactor = Compactor(folder, self._log, self._store.transactions.run, self._settings.retention)
            if (damaged := compactor.compact(consumers).damaged) is not None:
                told = {"pipeline": self._name, "source": node.id, "cause": damaged.message, "fix": damaged.fix}
                log.warning("a part of the log can't be compacted", **told)

    def new(self, horizons: Mapping[str, Any] | None) -> list[Append]:
        """Return the new ranges of all sources, within the limit."""
        found = [self._new(node, None if horizons is None else horizons.get(node.id)) for node in self._sources]
        return [append for append in found if append is not None]

    def _new(self, node: SourceNode, horizon: Any) -> Append | None:
        state = self.state(node.id)
        end = latest_of(node.node, node.source, state.position, self._settings.limit, horizon)
        return None if end == state.position else self.to(node, state.position, end, state.next_offset)

    def to(self, node: SourceNode, start: Position, end: Position, offset: int) -> Append:
        """Return the append of a source range that ends in the log right before ``offset``."""
        segment = self._active_of(node.id).for_append(offset, self._settings.segment_bytes)
        return Append(node, start, end, offset, segment, LogFolder(self._base, self._name, node.id))

    def _active_of(self, source: str) -> ActiveSegment:
        if source not in self._active:
            self._active[source] = self._store.transactions.read(partial(self._log.active, source=source))
        return self._active[source]

    def state(self, source: str) -> LogState:
        """Return the log state of a source: its position and next offset."""
        return self._store.transactions.read(lambda connection: self._log.state(connection, source))

    def split(self, append: Append, n: int) -> list[Split]:
        """Return the append's range cut into about ``n`` splits."""
        return splits_of(append.node.node, append.node.source, append.start, append.end, n)

    def _tasks(self, append: Append) -> list[AppendTask]:
        """Return the tasks of an append; more than one only if each knows its first offset before it reads, or assumes
        it and tells in time where that was wrong: offsets of the log are final once they are committed."""
        node, folder = append.node, append.folder.segment(append.segment)
        alone = not node.source.replayable or (self._pipeline.program.fan_in == "join" and bool(node.nodes))
        slots = 1 if alone or node.id in self._miscounted else self._settings.slots()
        splits = self.split(append, slots)
        groups = [splits] if alone else _grouped(splits, slots)
        once = append.offset > 0 and not (node.source.replayable or is_built_in(type(node.source)))
        after = append.start if once else None
        return [
            AppendTask(node.id, group, append.offset + (0 if alone else group[0].ordinal), folder, after)
            for group in groups
        ]

    @property
    def _generation(self) -> int:
        """Generation of the join; 0 if the sources are not joined, since no processor runs before their log."""
        joined = [node.id for node in self._pipeline.inputs] if self._pipeline.program.fan_in == "join" else []
        return next((self._context.state.sources[name].generation for name in joined), 0)

    def _run(self, job: AppendJob) -> list[Appended]:
        task = partial(append_task, self._context.program, msgspec.msgpack.encode(job))
        rows = self._context.jobs.each(len(job.tasks), task, self._pipeline.queries)
        reports = sorted((msgspec.msgpack.decode(row, type=Appended) for row in rows), key=lambda r: r.task)
        for report in reports:
            if report.error is not None:
                raise report.error.as_error()
        for report in reports:
            if report.written is not None:
                folder = job.tasks[report.task].folder
                require_seen(report.host, [storage.join(folder, hidden(report.written.name))])
        return reports

    def commit(self, logged: Sequence[tuple[Append, Sequence[LogPart]]]) -> None:
        """Commit the files that tasks wrote to the logs' manifests, in one transaction; steps read only those files.

        Raises ``FatalError`` (``log.gap``) if the files do not continue the logs without a gap.
        """
        # a source may advance without a record: then there is no file, and no folder if the log is new
        written = [(append, parts) for append, parts in logged if parts]
        for append, _ in written:
            append.folder.sync(append.segment)
        if written and not self._is_entered:
            # for a new log, the parent folders may be new too
            storage.sync_entry(self._base)
            self._is_entered = True
        if written:
            storage.sync(self._base)

        def work(connection: sa.Connection) -> None:
            for append, parts in logged:
                self._log.commit(connection, append.node.id, parts, append.end)

        self._store.transactions.run(work)
        for append, parts in written:
            source = append.node.id
            self._active[source] = self._active[source].with_parts(append.segment, parts)
            for part in parts:
                append.folder.publish_name(append.segment, part.name)
            self.rolled = self.rolled or (append.segment == append.offset and append.offset > 0)


def _logged(append: Append, reports: Sequence[Appended]) -> tuple[Append, list[LogPart]] | None:
    """Return the append with its parts; None if the log did not advance because nothing was read."""
    failed = next((place for place, report in enumerate(reports) if report.failed is not None), None)
    # records that other tasks read after the failure do not continue those before it
    read = [report for report in reports[: None if failed is None else failed + 1] if report.boundary is not None]
    source = append.node.source
    if not source.replayable or failed is not None:
        if not read:
            return None
        end = read[-1].boundary if not source.replayable else source.within(append.start, append.end, read[-1].boundary)
        append = append._replace(end=end)
    return append, parts_of(append, [(one.written, one.boundary) for one in read if one.written is not None])


def _grouped(splits: Sequence[Split], slots: int) -> list[list[Split]]:
    """Return consecutive splits grouped into at most ``slots`` tasks."""
    size = max(1, -(-len(splits) // slots))
    return [list(splits[i : i + size]) for i in range(0, len(splits), size)]
