"""Registration of logged sources; switching logging on and off without reading anything twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from conduit_dagster.node_ids import node_id
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state.catch_ups import CatchUps
from conduit_dagster.state.connector_registrations import Generations, SourceUnit, change_unit, unmarked
from conduit_dagster.state.delivery_store import EVERYTHING
from conduit_dagster.state.log_store import LogStore, joins_of
from conduit_dagster.state.pipeline_state import LOGGED
from conduit_dagster.state.row_statements import insert, update
from conduit_dagster.state.tables import log_parts, logs, offsets, sources


class LogRegistry:
    """Registration of one pipeline's logged sources, within a transaction of ``PipelineStore.registering``."""

    def __init__(self, connection: sa.Connection, pipeline: str) -> None:
        self._connection = connection
        self._id = pipeline
        self._generations = Generations(connection, pipeline)
        self.catch_ups = CatchUps(connection, pipeline)

    def register(self, source: str, unit: SourceUnit, initial: Any) -> None:
        """Register a source that is read through its log; ``initial`` is the real source's position.

        A source that was read without a log continues at its position. One that now reads other data is logged from
        where that data was left, otherwise from its beginning, and appended to its log.
        """
        row = self._connection.execute(sa.select(sources).filter_by(**self._source(source))).mappings().first()
        if row is None:
            fresh = {"generation": self._generations.new(source, unit.text()), "records": 0, "acked": 0}
            own = {**self._source(source), "unit": unit.text(logged=True), "position": "0"}
            insert(self._connection, sources, [{**own, **fresh, "filtered": 0, "nacked": 0}])
            self._begin(source, 0, initial)
            return
        values: dict[str, Any] = {"unit": unit.text(logged=True)}
        stored = json.loads(row["unit"])
        is_logged, generation = LOGGED in stored, row["generation"]
        log, position = LogStore(self._id).state(self._connection, source), json.loads(row["position"])
        is_read_up = not is_logged or position >= log.next_offset
        position = log.position if is_logged else position
        if not unit.is_same_as(stored):
            generation, position = change_unit(self._connection, self._id, row, position, unit, initial)
            if not is_read_up:
                # rewound since that generation was left: it may have delivered the same offsets
                generation = self._generations.new(source, unit.text())
            self._forget_positions(source)
        values["generation"] = self._generations.for_offsets(source, generation, unit.text())
        if is_logged:
            update(self._connection, logs, self._source(source), {"position": json.dumps(position)})
        else:
            self._forget_positions(source)  # it may have read other data since the log was switched off
            self._begin(source, row["records"], position)
            values["position"] = json.dumps(row["records"])
        update(self._connection, sources, self._source(source), values)

    def _forget_positions(self, source: str) -> None:
        """Forget the source's positions in its log: it must not be acked at those of other data."""
        update(self._connection, log_parts, self._source(source), {"position": "null"})

    def _begin(self, source: str, offset: int, position: Any) -> None:
        values = {**self._source(source), "next_offset": offset, "position": json.dumps(position)}
        insert(self._connection, logs, [values])

    def register_joined(self, joined: str, unit: SourceUnit, members: list[str]) -> None:
        """Register several logs that are read as one; starts at the offsets of its members."""
        self._forget_namespaces(members)
        text = unit.text()
        columns = sa.select(sources.c.unit, sources.c.generation)
        row = self._connection.execute(columns.filter_by(**self._source(joined))).first()
        if row is None:
            start = {name: self._offset(name) for name in members}
            fresh = {"generation": self._generations.new(joined, text), "records": 0, "acked": 0}
            values = {**self._source(joined), "unit": text, "position": json.dumps(start)}
            insert(self._connection, sources, [{**values, **fresh, "filtered": 0, "nacked": 0}])
            return
        if unit.is_same_as(json.loads(row.unit)):
            generation = self._generations.for_offsets(joined, row.generation, text)
        else:
            generation = self._generations.new(joined, text)
        update(self._connection, sources, self._source(joined), {"unit": text, "generation": generation})

    def _forget_namespaces(self, members: list[str]) -> None:
        """Delete the consumers' offsets of namespaces, which would hold the log for good: a join moves the overall one.

        Each has handled every entry up to its overall offset.
        """
        column = offsets.c
        mine = (column.pipeline == self._id, column.source.in_(members), column.namespace != EVERYTHING)
        self._connection.execute(sa.delete(offsets).where(*mine))

    def _offset(self, source: str) -> int:
        return json.loads(
            self._connection.execute(sa.select(sources.c.position).filter_by(**self._source(source))).scalar_one()
        )

    def require_logged_for(self, source: str, joined: bool) -> None:
        """Raise ``FatalError`` if a source's log holds unread entries that were logged for the other kind of fan-in.

        A join's log holds records that have passed the source's processors, any other log those that have not. Call
        before :meth:`leave`.
        """
        log = self._connection.execute(sa.select(logs).filter_by(**self._source(source))).mappings().first()
        if log is None:
            return
        offset = next(
            (position[source] for _, position in joins_of(self._connection, self._id) if source in position), None
        )
        if joined == (offset is not None):
            return
        if (self._offset(source) if offset is None else offset) < log["next_offset"]:
            raise _logged_otherwise(self._id, source, joined)

    def leave(self, present: set[str]) -> None:
        """Split joined sources that are read separately again: each continues at the join's position."""
        for joined, position in joins_of(self._connection, self._id):
            if joined in present:
                continue
            counts = self._counts(joined)
            for name, offset in position.items():
                self._leave(name, offset, counts)
            self._connection.execute(sa.delete(sources).filter_by(**self._source(joined)))

    def _counts(self, joined: str) -> dict[str, int]:
        """Return the counts of joined records: each is one of every member."""
        columns = (sources.c.acked, sources.c.filtered, sources.c.nacked)
        row = self._connection.execute(sa.select(*columns).filter_by(**self._source(joined))).mappings().one()
        return dict(row)

    def _leave(self, source: str, offset: int, counts: Mapping[str, int]) -> None:
        values: dict[str, Any] = {"position": json.dumps(offset), "records": offset}
        if offset < self._offset(source):
            # the join was rewound: the source's own generation has delivered these offsets before it was joined
            unit = self._connection.execute(sa.select(sources.c.unit).filter_by(**self._source(source))).scalar_one()
            values["generation"] = self._generations.new(source, json.dumps(unmarked(json.loads(unit)), sort_keys=True))
        update(self._connection, sources, self._source(source), values, add=counts)

    def unlog(self, source: str) -> None:
        """Switch a source to reading without its log. Raises ``FatalError`` if the log is not fully read."""
        row = self._connection.execute(sa.select(sources).filter_by(**self._source(source))).mappings().first()
        unit = {} if row is None else json.loads(row["unit"])
        if row is None or unit.pop(LOGGED, None) is None:
            return
        log = self._connection.execute(sa.select(logs).filter_by(**self._source(source))).mappings().one()
        if json.loads(row["position"]) != log["next_offset"]:
            raise _not_read_up(self._id, source)
        # the position belongs to the data that was logged, whatever the file refers to now
        values = {"unit": json.dumps(unit, sort_keys=True), "position": log["position"]}
        update(self._connection, sources, self._source(source), values)
        self._connection.execute(sa.delete(logs).filter_by(**self._source(source)))

    def _source(self, source: str) -> dict[str, Any]:
        return {"pipeline": self._id, "source": source}


def _not_read_up(pipeline: str, source: str) -> FatalError:
    return FatalError(
        f"the log of {source} holds records that are not delivered yet",
        code="log.not_read_up",
        node=node_id(pipeline, source),
        fix="set delivery.log: records again, run with --once, then change it",
    )


def _logged_otherwise(pipeline: str, source: str, joined: bool) -> FatalError:
    what = "passed its processors for a join, and would pass them again"
    fix = "set fan-in: join again, and run until they are joined, or skip them with conduit-dagster positions rewind"
    fix += " PIPELINE CONNECTOR"
    if joined:
        what, fix = "did not pass its processors, as a join needs them", "set fan-in back and run with --once"
    return FatalError(
        f"the log of {source} holds unread records that {what}",
        code="log.not_read_up",
        node=node_id(pipeline, source),
        fix=f"{fix}; then change it",
    )
