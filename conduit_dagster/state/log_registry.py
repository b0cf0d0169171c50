"""Sources of a pipeline that logs its records; and the way there and back, without reading anything twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state.events import record_event
from conduit_dagster.state.log_store import LogStore, whole_from
from conduit_dagster.state.registry import first_generation
from conduit_dagster.state.schema import consumers, log_parts, logs, sources

LOGGED = {"log": "records"}
"""What a source's unit says when its positions are offsets of its log."""


class LogRegistry:
    """Makes the sources of one pipeline known, within a transaction of ``PipelineStore.registering``."""

    def __init__(self, connection: sa.Connection, pipeline: str) -> None:
        self._connection = connection
        self._id = pipeline

    def register(self, source: str, unit: Mapping[str, Any], initial: Any) -> None:
        """A source that is read through its log. ``unit`` and ``initial`` are the real source's.

        One that was read without goes on where it stands; one that means other data now is logged anew from its
        beginning, behind what the log has.
        """
        text, logged = json.dumps(unit, sort_keys=True), json.dumps({**unit, **LOGGED}, sort_keys=True)
        row = self._connection.execute(sa.select(sources).where(*self._source(source))).mappings().first()
        if row is None:
            fresh = {"generation": first_generation(), "records": 0, "acked": 0, "filtered": 0, "nacked": 0}
            own = {"pipeline": self._id, "source": source, "unit": logged, "position": "0"}
            self._connection.execute(sources.insert().values(**own, **fresh))
            self._begin(source, 0, initial)
        elif row["unit"] == text:
            self._begin(source, row["records"], json.loads(row["position"]))
            values = {"unit": logged, "position": json.dumps(row["records"])}
            self._connection.execute(sa.update(sources).where(*self._source(source)).values(**values))
        elif row["unit"] != logged:
            self._change(source, row, logged, initial)

    def _change(self, source: str, row: Any, logged: str, initial: Any) -> None:
        was = json.loads(row["unit"])
        values: dict[str, Any] = {"unit": logged, "generation": row["generation"] + 1}
        mine = (logs.c.pipeline == self._id, logs.c.source == source)
        if was.get("log"):
            self._connection.execute(sa.update(logs).where(*mine).values(position=json.dumps(initial)))
            # the positions of the old data say nothing to the new source: it is not acked at them
            old = (log_parts.c.pipeline == self._id, log_parts.c.source == source)
            self._connection.execute(sa.update(log_parts).where(*old).values(position="null"))
        else:
            self._begin(source, row["records"], initial)
            values["position"] = json.dumps(row["records"])
        self._connection.execute(sa.update(sources).where(*self._source(source)).values(**values))
        record_event(self._connection, self._id, "source_changed", source=source, was=was, now=json.loads(logged))

    def _begin(self, source: str, offset: int, position: Any) -> None:
        values = {"pipeline": self._id, "source": source, "next_offset": offset, "position": json.dumps(position)}
        self._connection.execute(logs.insert().values(**values))

    def register_joined(self, joined: str, unit: Mapping[str, Any], members: list[str]) -> None:
        """Several logs that are read as one; begins where its members stand."""
        text = json.dumps(unit, sort_keys=True)
        row = self._connection.execute(sa.select(sources.c.unit).where(*self._source(joined))).first()
        if row is None:
            start = {name: self._offset(name) for name in members}
            fresh = {"generation": first_generation(), "records": 0, "acked": 0, "filtered": 0, "nacked": 0}
            values = {"pipeline": self._id, "source": joined, "unit": text, "position": json.dumps(start)}
            self._connection.execute(sources.insert().values(**values, **fresh))
        elif row[0] != text:
            values = {"unit": text, "generation": sources.c.generation + 1}
            self._connection.execute(sa.update(sources).where(*self._source(joined)).values(**values))

    def _offset(self, source: str) -> int:
        return json.loads(
            self._connection.execute(sa.select(sources.c.position).where(*self._source(source))).scalar_one()
        )

    def register_catch_up(self, name: str, source: str, consumer: str) -> None:
        """What a destination that is not known yet missed of a source: its whole log, up to where the pipeline stands.

        Before the consumer is registered; of one that is known nothing changes.
        """
        mine = (consumers.c.pipeline == self._id, consumers.c.consumer == consumer)
        if self._connection.execute(sa.select(consumers.c.kind).where(*mine)).first() is not None:
            return
        log, upto = LogStore(self._id), self._offset(source)
        end = log.state(self._connection, source).next_offset
        first = min(upto, whole_from(log.parts(self._connection, source), end))
        before = self._connection.execute(sa.select(sources.c.generation).where(*self._source(name))).scalar()
        self._connection.execute(sa.delete(sources).where(*self._source(name)))
        unit = json.dumps({"plugin": "catch-up", "source": source, "destination": consumer, "upto": upto})
        fresh = {"records": first, "acked": 0, "filtered": 0, "nacked": 0}
        # never that of an earlier time: it is to get everything again
        generation = max(first_generation(), (before or 0) + 1)
        values = {"pipeline": self._id, "source": name, "unit": unit, "position": json.dumps(first)}
        self._connection.execute(sources.insert().values(**values, **fresh, generation=generation))
        record_event(self._connection, self._id, "catch_up", consumer=consumer, source=source, first=first, upto=upto)

    def drop_catch_ups(self, present: set[str]) -> None:
        """Those that the file does not ask for any more; what was left of them is in the history."""
        rows = self._connection.execute(sa.select(sources).where(sources.c.pipeline == self._id)).mappings().all()
        for row in rows:
            unit = json.loads(row["unit"])
            if unit.get("plugin") != "catch-up" or row["source"] in present:
                continue
            self._connection.execute(sa.delete(sources).where(*self._source(row["source"])))
            if (position := json.loads(row["position"])) < unit["upto"]:
                left = {"source": unit["source"], "first": position, "upto": unit["upto"]}
                record_event(self._connection, self._id, "catch_up_dropped", consumer=unit["destination"], **left)

    def leave(self, present: set[str]) -> None:
        """Joined sources that are read one by one again: each goes on where the join stands."""
        rows = self._connection.execute(sa.select(sources).where(sources.c.pipeline == self._id)).mappings().all()
        for row in rows:
            if row["source"] in present or json.loads(row["unit"]).get("plugin") != "join":
                continue
            for name, offset in json.loads(row["position"]).items():
                values = {"position": json.dumps(offset), "records": offset}
                self._connection.execute(sa.update(sources).where(*self._source(name)).values(**values))
            self._connection.execute(sa.delete(sources).where(*self._source(row["source"])))

    def unlog(self, source: str, unit: Mapping[str, Any]) -> None:
        """A source that is read without its log from now on. Raises ``FatalError`` where the log is not read up."""
        row = self._connection.execute(sa.select(sources).where(*self._source(source))).mappings().first()
        if row is None or not json.loads(row["unit"]).get("log"):
            return
        mine = (logs.c.pipeline == self._id, logs.c.source == source)
        log = self._connection.execute(sa.select(logs).where(*mine)).mappings().one()
        if json.loads(row["position"]) != log["next_offset"]:
            raise _not_read_up(source)
        values = {"unit": json.dumps(dict(unit), sort_keys=True), "position": log["position"]}
        self._connection.execute(sa.update(sources).where(*self._source(source)).values(**values))
        self._connection.execute(sa.delete(logs).where(*mine))

    def _source(self, source: str) -> tuple[sa.ColumnElement[bool], ...]:
        return sources.c.pipeline == self._id, sources.c.source == source


def _not_read_up(source: str) -> FatalError:
    return FatalError(
        f"the log of {source} holds records that are not delivered yet",
        code="log.not_read_up",
        node=source,
        fix="set delivery.log: records again, run with --once, then change it",
    )
