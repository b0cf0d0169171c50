"""Registration of connectors: the resources they own, and the generations of the data that a source has read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from conduit_dagster import storage
from conduit_dagster.state.claim import ACCEPTED, number_of_now
from conduit_dagster.state.dead_letters import forget_missed
from conduit_dagster.state.history import record_event
from conduit_dagster.state.lease import is_free
from conduit_dagster.state.pipeline_state import DROPPED, LOGGED, OPEN, carry_memory
from conduit_dagster.state.readers import ReaderRegistry, log_of
from conduit_dagster.state.row_statements import insert, insert_if_absent, put, update
from conduit_dagster.state.steps import Decision, decode
from conduit_dagster.state.tables import (
    consumers,
    deliveries,
    generations,
    meta,
    offsets,
    owners,
    pipelines,
    sources,
    steps,
)

_MARKS = (LOGGED, DROPPED)
_OWN = "~"
"""Before the stored key of an identity setting that is called as one of our marks. No setting's name begins with it."""


@dataclass(frozen=True)
class SourceUnit:
    """Identity of the data that a source reads: its plugin and its identity settings, as JSON values.

    Paths inside the project are compared relative to its root, so that the whole project may be moved.
    """

    data: Mapping[str, Any]
    root: str
    """The project's folder, as an absolute path."""

    def is_same_as(self, stored: Mapping[str, Any]) -> bool:
        """Return whether a stored unit names the same data, read through a log or not."""
        return _plain(self.data, self.root) == _plain(data_of(stored), self.root)

    def text(self, logged: bool = False) -> str:
        """Return the unit as stored."""
        mark = {LOGGED: "records"} if logged else {}
        own = {f"{_OWN}{key}" if key in _MARKS else key: value for key, value in _plain(self.data, self.root).items()}
        return json.dumps({**own, **mark}, sort_keys=True)


def unmarked(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored unit without our marks."""
    return {key: value for key, value in stored.items() if key not in _MARKS}


def data_of(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data that a stored unit names, its settings called as the plugin calls them."""
    own = {f"{_OWN}{key}": key for key in _MARKS}
    return {own.get(key, key): value for key, value in unmarked(stored).items()}


def _plain(unit: Mapping[str, Any], root: str) -> dict[str, Any]:
    # the same JSON round trip that a stored unit went through
    return json.loads(json.dumps(_relative(unit, root)))


def _relative(value: Any, root: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _relative(inner, root) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_relative(inner, root) for inner in value]
    return storage.inside(value, root) if isinstance(value, str) else value


_ACCEPTED = sa.select(meta.c.value).where(meta.c.name == ACCEPTED)


class LastPosition(NamedTuple):
    """Generation and position of a source when it last read some data."""

    generation: int
    position: Any


def next_generation(highest: int | None) -> int:
    """Return the generation after ``highest``, the highest that this store knows: the time, or one more.

    A new store, or an older copy of one, must not reuse the delivery hashes of the lost one, nor those of another
    project with the same ids that starts at the same time: a destination that stores hashes would take the deliveries
    for done, and their records would be lost silently.
    """
    return max(number_of_now(), (highest or 0) + 1)


class Generations:
    """The generations of one pipeline's sources, within a transaction."""

    def __init__(self, connection: sa.Connection, pipeline: str) -> None:
        self._connection = connection
        self._id = pipeline

    def new(self, source: str, unit: str, after: int = 0) -> int:
        """Return a generation that this id never had; ``unit``: its data, as returned by :meth:`SourceUnit.text`.

        It is higher than ``after``. Rows are never removed, so that none is reused: otherwise a new delivery would get
        the hash of a delivered one.
        """
        mine = (generations.c.pipeline == self._id, generations.c.source == source)
        highest = self._connection.execute(sa.select(sa.func.max(generations.c.generation)).where(*mine)).scalar()
        generation = next_generation(max(highest or 0, after))
        self._put(source, generation, unit, "")
        return generation

    def for_offsets(self, source: str, generation: int, unit: str) -> int:
        """Return the generation of a source whose places are offsets in a log: a new one after an older store.

        The lost store may have delivered other records under the same offsets: a destination that stores hashes would
        take the ones that are logged now for those. Records that both stores had in the log are delivered again.
        """
        accepted = self._connection.execute(_ACCEPTED).scalar()
        if accepted is None or generation > int(accepted):
            return generation
        renewed = self.new(source, unit, int(accepted))
        carry_memory(self._connection, self._id, source, generation, renewed)
        record_event(self._connection, self._id, "generation_renewed", source=source, was=generation, now=renewed)
        return renewed

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
    """Switch a source to other data; return where it continues: where that data was left, otherwise at ``initial``.

    ``row``: the source's current row; ``position``: the position at which its previous data is left.
    """
    source, known = row["source"], Generations(connection, pipeline)
    was = unmarked(json.loads(row["unit"]))
    known.leave(source, json.dumps(was, sort_keys=True), LastPosition(row["generation"], position))
    left = known.recall(source, unit) or LastPosition(known.new(source, unit.text()), initial)
    told = {"source": source, "position": position, "generation": row["generation"]}
    record_event(connection, pipeline, "source_changed", was=was, now=json.loads(unit.text()), **told)
    return left


class Registry:
    """The connectors of one pipeline, within a transaction of ``PipelineStore.registering``."""

    def __init__(self, connection: sa.Connection, pipeline: str) -> None:
        self._connection = connection
        self._id = pipeline
        self._generations = Generations(connection, pipeline)
        self.readers = ReaderRegistry(connection, pipeline)

    def register_source(self, source: str, unit: SourceUnit, initial: Any) -> None:
        """Register a source. If it now reads other data, resume where that data was left, or at its beginning."""
        key = {"pipeline": self._id, "source": source}
        row = self._connection.execute(sa.select(sources).filter_by(**key)).mappings().first()
        text = unit.text()
        if row is None:
            fresh = {"generation": self._generations.new(source, text), "records": 0, "acked": 0}
            values = {**key, "unit": text, "position": json.dumps(initial)}
            insert(self._connection, sources, [{**values, **fresh, "filtered": 0, "nacked": 0}])
            return
        if unit.is_same_as(json.loads(row["unit"])):
            values, generation = {"unit": text}, row["generation"]
        else:
            left = change_unit(self._connection, self._id, row, json.loads(row["position"]), unit, initial)
            values, generation = {"unit": text, "position": json.dumps(left.position)}, left.generation
        if log_of(unit.data) is not None:
            generation = self._generations.for_offsets(source, generation, text)
        update(self._connection, sources, key, {**values, "generation": generation})

    def register_consumer(self, consumer: str, kind: str) -> None:
        """Register a destination or the dead-letter queue; a new one starts at the current boundary."""
        mine = (consumers.c.pipeline == self._id, consumers.c.consumer == consumer)
        if self._connection.execute(sa.select(consumers.c.kind).where(*mine)).first() is None:
            fresh = {"kind": kind, "delivered": 0, "step": 0, "target": ""}
            insert(self._connection, consumers, [{"pipeline": self._id, "consumer": consumer, **fresh}])
            record_event(self._connection, self._id, "consumer_added", consumer=consumer)

    def retire(self, present: set[str]) -> None:
        """Retire consumers that are no longer in the file.

        Their open deliveries become void, and so does a planned step that names one: if the consumer were restored,
        that step would send it records that it also gets as a new consumer. For the same reason, letters that only it
        missed are closed.
        """
        known = self._connection.execute(sa.select(consumers.c.consumer).where(consumers.c.pipeline == self._id))
        gone = [name for (name,) in known if name not in present]
        given_up = {name: self._given_up(name) for name in gone}
        for table in (consumers, owners, offsets):
            self._connection.execute(sa.delete(table).where(table.c.pipeline == self._id, table.c.consumer.in_(gone)))
        open_ones = (
            deliveries.c.pipeline == self._id,
            deliveries.c.consumer.in_(gone),
            deliveries.c.state.in_(("open", "split")),
        )
        self._connection.execute(sa.update(deliveries).where(*open_ones).values(state="void"))
        if gone:
            self._void_planned(set(gone))
            forget_missed(self._connection, self._id, gone)
        for name in gone:
            record_event(self._connection, self._id, "consumer_retired", consumer=name, **given_up[name])

    def _given_up(self, consumer: str) -> dict[str, int]:
        """Return the prepared step whose delivery becomes void, and how many of its records are not known to be
        delivered; nothing if there is none."""
        of_step = (steps.c.pipeline == deliveries.c.pipeline, steps.c.step == deliveries.c.step)
        mine = (deliveries.c.pipeline == self._id, deliveries.c.consumer == consumer, deliveries.c.staged == "")
        is_open = (deliveries.c.state.in_(("open", "split")), steps.c.state == "prepared")
        found = sa.select(steps.c.step, steps.c.decision, deliveries.c.handled).where(*of_step, *mine, *is_open)
        row = self._connection.execute(found).first()
        if row is None:
            return {}
        records = {one.consumer: one.records for one in decode(row.decision, Decision).deliveries}
        return {"step": row.step, "records": records.get(consumer, row.handled) - row.handled}

    def _void_planned(self, gone: set[str]) -> None:
        mine = (steps.c.pipeline == self._id, steps.c.state == "planned")
        rows = self._connection.execute(sa.select(steps.c.step, steps.c.plan).where(*mine).order_by(steps.c.step))
        named = [row.step for row in rows if gone & json.loads(row.plan)["hashes"].keys()]
        if named:
            void = sa.update(steps).where(*mine, steps.c.step >= named[0])
            self._connection.execute(void.values(state="void"))

    def claim(self, thing: str, consumer: str) -> tuple[str, str] | None:
        """Make the consumer the only owner of ``thing``, for example a path; return None, or the owner that keeps it.

        Another pipeline loses it if it neither runs nor has an open step, for example after it was renamed.
        """
        mine = {"pipeline": self._id, "consumer": consumer}
        if insert_if_absent(self._connection, owners, thing=thing, **mine):
            return None
        # locked: of two pipelines that claim concurrently, the second one sees the first
        known = sa.select(owners).where(owners.c.thing == thing).with_for_update()
        row = self._connection.execute(known).mappings().one()
        if (other := (str(row["pipeline"]), str(row["consumer"]))) != (self._id, consumer):
            if other[0] != self._id and self._is_active(other[0]):
                return other
            update(self._connection, owners, {"thing": thing}, mine)
            record_event(self._connection, self._id, "taken_over", thing=thing, was=other[0])
        return None

    def release_others(self, things: set[str]) -> None:
        """Release resources that the pipeline owned but, according to its file, no longer writes to."""
        mine = (owners.c.pipeline == self._id, owners.c.thing.not_in(things))
        self._connection.execute(sa.delete(owners).where(*mine))

    def _is_active(self, pipeline: str) -> bool:
        owner = self._connection.execute(sa.select(pipelines.c.owner).where(pipelines.c.pipeline == pipeline)).scalar()
        open_ones = (steps.c.pipeline == pipeline, steps.c.state.in_(OPEN))
        return (
            not is_free(owner or "")
            or self._connection.execute(sa.select(steps.c.step).where(*open_ones)).first() is not None
        )
