"""State passed to a source at the start of a run: its position, its last record, and its collections' modes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import structlog

from conduit_dagster.commit_log.entries import Batch, decode_entries
from conduit_dagster.commit_log.segment_files import read_current
from conduit_dagster.commit_log.segment_layout import LogFolder
from conduit_dagster.engine.offset_updates import joined_members
from conduit_dagster.engine.source_nodes import SourceNode
from conduit_dagster.engine.step_context import StepContext
from conduit_dagster.record import Mode, Record
from conduit_dagster.recovery.classify import blamed
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Position, ResumeState, Source
from conduit_dagster.state.log_store import LogPart, LogStore
from conduit_dagster.state.overview import collection_rows

log = structlog.get_logger("conduit.engine")


def resume_sources(context: StepContext) -> None:
    """Pass the resume state to each source that uses it. Call it when all open steps are done, before reading."""
    for node in context.pipeline.sources:
        if type(node.source).resume is not Source.resume:
            blamed(context.node(node.id), node.source.resume, _Resuming(context, node).state())


class _Resuming:
    def __init__(self, context: StepContext, node: SourceNode) -> None:
        self._context, self._id, self._source = context, node.id, node.source
        self._is_logged = context.pipeline.program.log == "records"
        self._log = LogStore(context.name)
        self._folder = LogFolder(context.settings.log, context.name, node.id)

    def state(self) -> ResumeState:
        modes = self._handled_modes()
        if not self._is_logged:
            position = self._context.state.sources[self._id].position
            return ResumeState(position, None, modes | self._own_modes(position))
        logged = self._context.store.transactions.read(lambda connection: self._log.state(connection, self._id))
        try:
            modes |= self._logged_modes()
            last = self._last(logged.next_offset)
        except FatalError as error:
            # the step that needs the entry reports the error; a source must be able to resume without it
            log.warning("a source's last record can't be read from the log", source=self._id, cause=error.message)
            last = None
        return ResumeState(logged.position, last, modes | self._own_modes(logged.position))

    def _own_modes(self, position: Position) -> dict[str, Mode]:
        return dict(blamed(self._context.node(self._id), self._source.collection_modes, position))

    def _handled_modes(self) -> dict[str, Mode]:
        rows = collection_rows(self._context.store.engine, self._context.name)
        return {row["namespace"]: row["mode"] for row in rows if row["source"] == self._id}

    def _logged_modes(self) -> dict[str, Mode]:
        """Return the modes of collections whose records are logged and not yet in a step that is done."""
        found: dict[str, Mode] = {}
        for batch in self._batches(self._handled(), ["namespace", "mode"]):
            found |= dict(zip(batch.column("namespace").to_pylist(), batch.column("mode").to_pylist(), strict=True))
        return found

    def _handled(self) -> int:
        state = self._context.state
        plan = state.last_plan
        joined = {} if plan is None else joined_members(plan)
        name = next((join for join, members in joined.items() if self._id in members), None)
        if name is not None and name in state.sources:
            return int(state.sources[name].position[self._id])
        return int(state.sources[self._id].position)

    def _last(self, stop: int) -> Record | None:
        entries = (entry for batch in self._batches(max(0, stop - 1)) for entry in decode_entries(batch))
        return next((entry.record for entry in entries), None)

    def _batches(self, start: int, columns: list[str] | None = None) -> Iterator[Batch]:
        return read_current(self._folder, self._parts, start, None, columns)

    def _parts(self, start: int, stop: int | None) -> list[LogPart]:
        read = partial(self._log.parts, source=self._id, start=start, stop=stop)
        return self._context.store.transactions.read(read)
