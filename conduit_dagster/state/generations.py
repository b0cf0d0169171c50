"""Generations of sources: which data each source id has read, under which generation, and where it was left.

One rule for ``log: positions`` and ``log: records`` (DELIVERY.md, When the pipeline changes): data that was read before
resumes where it was left, under its own generation; other data gets a generation above all that this source's id was
ever given, whether or not the source was removed from the file meanwhile.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from conduit_dagster.state.database import put
from conduit_dagster.state.history import record_event
from conduit_dagster.state.pipeline_state import DROPPED
from conduit_dagster.state.tables import generations

LOGGED = "log"
"""Key in a source's unit when its positions are offsets of its log."""
_MARKS = (LOGGED, DROPPED)


@dataclass(frozen=True)
class SourceUnit:
    """Identity of the data that a source reads: its plugin and its identity settings, as JSON values.

    Paths inside the project are compared relative to it, so that a project may be moved as a whole.
    """

    data: Mapping[str, Any]
    root: str
    """The project's folder, as an absolute path."""

    def is_same_as(self, stored: Mapping[str, Any]) -> bool:
        """Return whether a stored unit names the same data, read through a log or not."""
        return _plain(self.data, self.root) == _plain(stored, self.root)

    def text(self, logged: bool = False) -> str:
        """Return the unit as stored."""
        mark = {LOGGED: "records"} if logged else {}
        return json.dumps({**_plain(self.data, self.root), **mark}, sort_keys=True)


def _plain(unit: Mapping[str, Any], root: str) -> dict[str, Any]:
    kept = {key: value for key, value in unit.items() if key not in _MARKS}
    # the same JSON round trip that a stored unit went through
    return json.loads(json.dumps(_relative(kept, root)))


def _relative(value: Any, root: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _relative(inner, root) for key, inner in value.items() if key not in _MARKS}
    if isinstance(value, list | tuple):
        return [_relative(inner, root) for inner in value]
    return inside(value, root) if isinstance(value, str) else value


def inside(path: str, root: str) -> str:
    """Return a path in the project's folder relative to it; any other text unchanged."""
    return path.removeprefix(root.rstrip("/") + "/")


class LastPosition(NamedTuple):
    """Generation and position of a source when it last read some data."""

    generation: int
    position: Any


def first_generation() -> int:
    """Return the first generation of a source that is new to this store: the time, in seconds.

    A new store must not reuse the delivery hashes of a lost one: a destination that stores hashes would take the
    deliveries for delivered, and their records would be lost silently.
    """
    return int(time.time())


class Generations:
    """The generations of one pipeline's sources, within a transaction."""

    def __init__(self, connection: sa.Connection, pipeline: str) -> None:
        self._connection = connection
        self._id = pipeline

    def new(self, source: str, unit: str) -> int:
        """Return a generation that this id never had; ``unit``: its data, as :meth:`SourceUnit.text` returns it.

        Rows are never removed, so none is reused: otherwise a new delivery would get the hash of a delivered one.
        """
        mine = (generations.c.pipeline == self._id, generations.c.source == source)
        highest = self._connection.execute(sa.select(sa.func.max(generations.c.generation)).where(*mine)).scalar()
        generation = first_generation() if highest is None else highest + 1
        self._put(source, generation, unit, "")
        return generation

    def leave(self, source: str, unit: str, left: LastPosition) -> None:
        """Store a source's position, so that :meth:`recall` finds it if the source reads that data again."""
        self._put(source, left.generation, unit, json.dumps(left.position))

    def _put(self, source: str, generation: int, unit: str, position: str) -> None:
        own = {"pipeline": self._id, "source": source, "generation": generation}
        put(self._connection, generations, [{**own, "unit": unit, "position": position}])

    def recall(self, source: str, unit: SourceUnit) -> LastPosition | None:
        """Return where this data was left; None if this id never read it."""
        columns = (generations.c.generation, generations.c.unit, generations.c.position)
        mine = (generations.c.pipeline == self._id, generations.c.source == source, generations.c.position != "")
        rows = self._connection.execute(sa.select(*columns).where(*mine).order_by(generations.c.generation.desc()))
        for row in rows:
            if unit.is_same_as(json.loads(row.unit)):
                return LastPosition(row.generation, json.loads(row.position))
        return None


def change_unit(
    connection: sa.Connection, pipeline: str, row: Mapping[Any, Any], position: Any, unit: SourceUnit, initial: Any
) -> LastPosition:
    """Switch a source to other data; return where it goes on: where that data was left, else at ``initial``.

    ``row``: the source's current row; ``position``: the position at which its previous data is left.
    """
    source, known = row["source"], Generations(connection, pipeline)
    was = {key: value for key, value in json.loads(row["unit"]).items() if key not in _MARKS}
    known.leave(source, json.dumps(was, sort_keys=True), LastPosition(row["generation"], position))
    left = known.recall(source, unit) or LastPosition(known.new(source, unit.text()), initial)
    told = {"source": source, "position": position, "generation": row["generation"]}
    record_event(connection, pipeline, "source_changed", was=was, now=json.loads(unit.text()), **told)
    return left
