"""When a source is another one: which data it has meant, under which generation, and where each was left.

One rule for ``log: positions`` and ``log: records`` (DELIVERY.md, When the pipeline changes): data that was read before
goes on where it was, under its own generation; any other gets a generation above every one that this source's id was
ever given, whether or not it has left the file meanwhile.
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
from conduit_dagster.state.schema import generations

LOGGED = "log"
"""What a source's unit has in it when its positions are offsets of its log."""
_MARKS = (LOGGED, DROPPED)


@dataclass(frozen=True)
class SourceUnit:
    """Which data a source reads: its plugin and its identity settings, as JSON values.

    Paths inside the project count relative to it, so that a project may be moved as a whole.
    """

    data: Mapping[str, Any]
    root: str
    """The project's folder, as an absolute path."""

    def is_same_as(self, stored: Mapping[str, Any]) -> bool:
        """Whether a stored unit names the same data, read through a log or not."""
        return _plain(self.data, self.root) == _plain(stored, self.root)

    def text(self, logged: bool = False) -> str:
        """As the store keeps it."""
        mark = {LOGGED: "records"} if logged else {}
        return json.dumps({**_plain(self.data, self.root), **mark}, sort_keys=True)


def _plain(unit: Mapping[str, Any], root: str) -> dict[str, Any]:
    kept = {key: value for key, value in unit.items() if key not in _MARKS}
    # what a stored unit has been through
    return json.loads(json.dumps(_relative(kept, root)))


def _relative(value: Any, root: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _relative(inner, root) for key, inner in value.items() if key not in _MARKS}
    if isinstance(value, list | tuple):
        return [_relative(inner, root) for inner in value]
    return inside(value, root) if isinstance(value, str) else value


def inside(path: str, root: str) -> str:
    """A path that lies in the project's folder, relative to it; any other text as it is."""
    return path.removeprefix(root.rstrip("/") + "/")


class Left(NamedTuple):
    """Where a source stood when it last meant some data."""

    generation: int
    position: Any


def first_generation() -> int:
    """The least generation of a source that this store sees for the first time: the time, in seconds.

    A store that is begun anew must not give deliveries the names of the lost one's: a destination that stores hashes
    would take them for delivered, and their records would be lost without a word.
    """
    return int(time.time())


class Generations:
    """The generations of one pipeline's sources, within a transaction."""

    def __init__(self, connection: sa.Connection, pipeline: str) -> None:
        self._connection = connection
        self._id = pipeline

    def new(self, source: str, unit: str) -> int:
        """A generation that this id never had; ``unit``: what it is for, as :meth:`SourceUnit.text` gives it.

        Rows are never removed, so none is given twice: another delivery would get the hash of one that is delivered.
        """
        mine = (generations.c.pipeline == self._id, generations.c.source == source)
        highest = self._connection.execute(sa.select(sa.func.max(generations.c.generation)).where(*mine)).scalar()
        generation = first_generation() if highest is None else highest + 1
        self._put(source, generation, unit, "")
        return generation

    def leave(self, source: str, unit: str, left: Left) -> None:
        """Remembers where a source stands: with :meth:`recall` it goes on there, should it mean that data again."""
        self._put(source, left.generation, unit, json.dumps(left.position))

    def _put(self, source: str, generation: int, unit: str, position: str) -> None:
        own = {"pipeline": self._id, "source": source, "generation": generation}
        put(self._connection, generations, [{**own, "unit": unit, "position": position}])

    def recall(self, source: str, unit: SourceUnit) -> Left | None:
        """Where this data was left; None where this id never meant it."""
        columns = (generations.c.generation, generations.c.unit, generations.c.position)
        mine = (generations.c.pipeline == self._id, generations.c.source == source, generations.c.position != "")
        rows = self._connection.execute(sa.select(*columns).where(*mine).order_by(generations.c.generation.desc()))
        for row in rows:
            if unit.is_same_as(json.loads(row.unit)):
                return Left(row.generation, json.loads(row.position))
        return None


def change_unit(
    connection: sa.Connection, pipeline: str, row: Mapping[Any, Any], position: Any, unit: SourceUnit, initial: Any
) -> Left:
    """Where a source goes on that means other data from now on: where it left that, else at its ``initial``.

    ``row``: of the source, as it is; ``position``: where the data that it meant so far is left.
    """
    source, known = row["source"], Generations(connection, pipeline)
    was = {key: value for key, value in json.loads(row["unit"]).items() if key not in _MARKS}
    known.leave(source, json.dumps(was, sort_keys=True), Left(row["generation"], position))
    left = known.recall(source, unit) or Left(known.new(source, unit.text()), initial)
    told = {"source": source, "position": position, "generation": row["generation"]}
    record_event(connection, pipeline, "source_changed", was=was, now=json.loads(unit.text()), **told)
    return left
