"""Ranges of logs sent to a single destination: records that a newcomer missed, or that an operator sends again."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from conduit_dagster.state.connector_registrations import Generations
from conduit_dagster.state.history import record_event
from conduit_dagster.state.log_store import LogStore
from conduit_dagster.state.pipeline_state import CATCH_UP, SENT_AGAIN
from conduit_dagster.state.readers import readers_of
from conduit_dagster.state.row_statements import insert, update
from conduit_dagster.state.tables import consumers, sources

_BEFORE = "before"
"""Key in the unit of a catch-up: ranges that earlier catch-ups sent to the destination."""


class CatchUp(NamedTuple):
    """One destination's range of one log."""

    name: str
    """Id of the catch-up's source, as steps read it."""
    source: str
    destination: str
    first: int
    upto: int
    """The offset after the last record."""


def sent_ranges(unit: Mapping[str, Any]) -> list[range]:
    """Return the offsets that a catch-up and its predecessors have sent or will send."""
    return [range(first, upto) for first, upto in (*unit.get(_BEFORE, ()), (unit.get("first", 0), unit["upto"]))]


def _pending_from(connection: sa.Connection, pipeline: str, source: str) -> int | None:
    """Return the first offset of a log that a catch-up still needs; None if none needs any."""
    left = [
        position
        for _, unit, position in _stored(connection, pipeline)
        if unit["source"] == source and position < unit["upto"]
    ]
    return min(left, default=None)


def merged(ranges: Sequence[range]) -> list[tuple[int, int]]:
    """Return the same offsets as pairs of first and end, with as few pairs as possible."""
    found: list[tuple[int, int]] = []
    for one in sorted((one for one in ranges if one), key=lambda one: one.start):
        if found and one.start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], one.stop))
        else:
            found.append((one.start, one.stop))
    return found


class CatchUps:
    """The catch-ups of one pipeline, within a transaction."""

    def __init__(self, connection: sa.Connection, pipeline: str) -> None:
        self._connection = connection
        self._id = pipeline

    def register(self, name: str, source: str, consumer: str) -> None:
        """Register the range of a source that a new destination missed: its whole log, up to the pipeline's offset.

        Call before the consumer is registered; does nothing for a known consumer.
        """
        mine = (consumers.c.pipeline == self._id, consumers.c.consumer == consumer)
        if self._connection.execute(sa.select(consumers.c.kind).where(*mine)).first() is not None:
            return
        log, upto = LogStore(self._id), self._position(source)
        first = min(upto, log.whole_from(self._connection, source))
        self._begin(CatchUp(name, source, consumer, first, upto), [])
        record_event(self._connection, self._id, "catch_up", consumer=consumer, source=source, first=first, upto=upto)

    def send_again(self, wanted: CatchUp, by: str) -> int:
        """Send a known destination a range again; return the generation of its deliveries.

        The unsent rest of its last catch-up from this source is discarded.
        """
        last = next((one for one in _stored(self._connection, self._id) if one[0] == wanted.name), None)
        before = list[tuple[int, int]]()
        if last is not None:
            _, unit, position = last
            self._tell_rest(unit, position)
            before = merged(sent_ranges({**unit, "upto": min(position, unit["upto"])}))
        generation = self._begin(wanted, before, SENT_AGAIN)
        detail = {"consumer": wanted.destination, "source": wanted.source, "first": wanted.first, "upto": wanted.upto}
        record_event(self._connection, self._id, "sent_again", **detail, generation=generation, by=by)
        return generation

    def _begin(self, wanted: CatchUp, before: Sequence[tuple[int, int]], *marks: str) -> int:
        promised = {"destination": wanted.destination, "first": wanted.first, "upto": wanted.upto}
        named = {"plugin": CATCH_UP, "source": wanted.source, **promised, **dict.fromkeys(marks, True)}
        unit = json.dumps({**named, **({_BEFORE: before} if before else {})})
        counted = self._counts(wanted.name)
        self._connection.execute(sa.delete(sources).filter_by(**self._source(wanted.name)))
        # never an earlier generation: the destination must get everything again
        generation = Generations(self._connection, self._id).new(wanted.name, json.dumps(named))
        values = {**self._source(wanted.name), "unit": unit, "position": json.dumps(wanted.first)}
        insert(self._connection, sources, [{**values, **counted, "records": wanted.first, "generation": generation}])
        return generation

    def drop_others(self, present: set[str], sources: set[str]) -> None:
        """End catch-ups that the file no longer asks for; record their unsent rest in the history.

        ``sources``: those in the file. A catch-up whose source is away continues once the file has it again, and so
        does one requested by an operator, once the file has its source and its log again. The sent range stays known
        while its consumer is in the file: a replay must not send that destination a record that it already got from
        the log.
        """
        for name, unit, position in _stored(self._connection, self._id):
            if name not in present and unit["source"] in sources and not unit.get(SENT_AGAIN):
                self._tell_rest(unit, position)
                self._change(name, {**unit, "upto": min(position, unit["upto"])})

    def retire(self, consumers: Collection[str]) -> None:
        """Delete the catch-ups of destinations not in ``consumers``, in the transaction that retires these.

        Otherwise a restored destination would be mistaken for one that already received the log.
        """
        for name, unit, position in _stored(self._connection, self._id):
            if unit["destination"] not in consumers:
                self._tell_rest(unit, position)
                self._connection.execute(sa.delete(sources).filter_by(**self._source(name)))

    def end_at(self, source: str, offset: int) -> None:
        """End every catch-up from a source at the offset where a rewound source continues for all destinations.

        Otherwise a destination would receive those records twice. Its sent ranges are cut there as well, since they
        don't apply to dead letters of the records that are read again.
        """
        for name, unit, position in _stored(self._connection, self._id):
            if unit["source"] == source:
                ranges = [[sent.start, min(sent.stop, offset)] for sent in sent_ranges(unit)]
                *before, (first, upto) = ranges
                kept = {_BEFORE: [one for one in before if one[0] < one[1]]}
                self._change(name, {**unit, **kept, "first": min(first, upto), "upto": upto}, min(position, upto))

    def _change(self, name: str, unit: dict[str, Any], position: int | None = None) -> None:
        values = {"unit": json.dumps(unit), **({} if position is None else {"position": json.dumps(position)})}
        update(self._connection, sources, self._source(name), values)

    def _tell_rest(self, unit: dict[str, Any], position: int) -> None:
        if position < unit["upto"]:
            left = {"source": unit["source"], "first": position, "upto": unit["upto"]}
            record_event(self._connection, self._id, "catch_up_dropped", consumer=unit["destination"], **left)

    def _position(self, source: str) -> int:
        found = sa.select(sources.c.position).filter_by(**self._source(source))
        return json.loads(self._connection.execute(found).scalar_one())

    def _counts(self, name: str) -> dict[str, int]:
        """Return the counts of all catch-ups of this name so far."""
        columns = (sources.c.acked, sources.c.filtered, sources.c.nacked)
        found = self._connection.execute(sa.select(*columns).filter_by(**self._source(name))).mappings().first()
        return {column.name: 0 if found is None else found[column.name] for column in columns}

    def _source(self, source: str) -> dict[str, Any]:
        return {"pipeline": self._id, "source": source}


def _stored(connection: sa.Connection, pipeline: str) -> list[tuple[str, dict[str, Any], int]]:
    """Return name, unit and position of every catch-up."""
    rows = connection.execute(sa.select(sources).where(sources.c.pipeline == pipeline)).mappings()
    units = [(row["source"], json.loads(row["unit"]), row["position"]) for row in rows]
    return [(name, unit, json.loads(position)) for name, unit, position in units if unit.get("plugin") == CATCH_UP]


def held_from(connection: sa.Connection, pipeline: str, source: str) -> int | None:
    """Return the first offset of a log that another pipeline or a catch-up still needs; None if none needs any."""
    pending = _pending_from(connection, pipeline, source)
    read = [reader.offset for reader in readers_of(connection, pipeline, source)]
    return min([*read, *([] if pending is None else [pending])], default=None)
