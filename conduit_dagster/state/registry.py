"""Which connectors a pipeline has, and what each of them owns."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from conduit_dagster.state.database import insert_if_absent
from conduit_dagster.state.events import record_event
from conduit_dagster.state.lease import is_free
from conduit_dagster.state.pipeline_state import OPEN
from conduit_dagster.state.readers import ReaderRegistry
from conduit_dagster.state.schema import consumers, deliveries, history, offsets, owners, pipelines, sources, steps

_REMEMBERED = 100
"""Changes of sources that are looked through for where one was left."""


def first_generation() -> int:
    """The generation of a source that this store sees for the first time: the time, in seconds.

    A store that is begun anew must not give deliveries the names of the lost one's: a destination that stores hashes
    would take them for delivered, and their records would be lost without a word.
    """
    return int(time.time())


class Registry:
    """The connectors of one pipeline, within a transaction of ``PipelineStore.registering``."""

    def __init__(self, connection: sa.Connection, pipeline: str) -> None:
        self._connection = connection
        self._id = pipeline
        self.readers = ReaderRegistry(connection, pipeline)

    def register_source(self, source: str, unit: Mapping[str, Any], initial: Any) -> None:
        """Makes a source known. Where it now means other data, it starts anew under a new generation."""
        text = json.dumps(unit, sort_keys=True)
        mine = (sources.c.pipeline == self._id, sources.c.source == source)
        row = self._connection.execute(sa.select(sources).where(*mine)).mappings().first()
        if row is None:
            fresh = {"generation": first_generation(), "records": 0, "acked": 0, "filtered": 0, "nacked": 0}
            values = {"pipeline": self._id, "source": source, "unit": text, "position": json.dumps(initial)}
            self._connection.execute(sources.insert().values(**values, **fresh))
        elif row["unit"] != text:
            self._change(row, unit, initial)

    def _change(self, row: Any, unit: Mapping[str, Any], initial: Any) -> None:
        """Another unit: from its beginning, or, where the source had it before, from where it was left then."""
        source, was = row["source"], json.loads(row["unit"])
        position, generation = self._left(source, unit) or (initial, row["generation"] + 1)
        values = {"unit": json.dumps(unit, sort_keys=True), "position": json.dumps(position), "generation": generation}
        mine = (sources.c.pipeline == self._id, sources.c.source == source)
        self._connection.execute(sa.update(sources).where(*mine).values(**values))
        left = {"source": source, "position": json.loads(row["position"]), "generation": row["generation"]}
        record_event(self._connection, self._id, "source_changed", was=was, now=unit, **left)

    def _left(self, source: str, unit: Mapping[str, Any]) -> tuple[Any, int] | None:
        mine = (history.c.pipeline == self._id, history.c.event == "source_changed")
        newest = sa.select(history.c.detail).where(*mine).order_by(history.c.id.desc()).limit(_REMEMBERED)
        for text in self._connection.execute(newest).scalars():
            known = json.loads(text)
            if (known["source"], known["was"]) == (source, unit) and "generation" in known:
                return known["position"], known["generation"]
        return None

    def register_consumer(self, consumer: str, kind: str) -> None:
        """Makes a destination or the dead-letter queue known; a new one starts at the current boundary."""
        mine = (consumers.c.pipeline == self._id, consumers.c.consumer == consumer)
        if self._connection.execute(sa.select(consumers.c.kind).where(*mine)).first() is None:
            fresh = {"kind": kind, "delivered": 0, "step": 0, "target": ""}
            self._connection.execute(consumers.insert().values(pipeline=self._id, consumer=consumer, **fresh))
            record_event(self._connection, self._id, "consumer_added", consumer=consumer)

    def retire(self, present: set[str]) -> list[str]:
        """Retires consumers that are in the file no more; their open deliveries are void."""
        known = self._connection.execute(sa.select(consumers.c.consumer).where(consumers.c.pipeline == self._id))
        gone = [name for (name,) in known if name not in present]
        for table in (consumers, owners, offsets):
            self._connection.execute(sa.delete(table).where(table.c.pipeline == self._id, table.c.consumer.in_(gone)))
        open_ones = (
            deliveries.c.pipeline == self._id,
            deliveries.c.consumer.in_(gone),
            deliveries.c.state.in_(("open", "split")),
        )
        self._connection.execute(sa.update(deliveries).where(*open_ones).values(state="void"))
        for name in gone:
            record_event(self._connection, self._id, "consumer_retired", consumer=name)
        return gone

    def claim(self, thing: str, consumer: str) -> tuple[str, str] | None:
        """Makes the consumer the only owner of ``thing``, a path for example; gives the owner it has instead.

        An owner that neither runs nor has an open step gives way: a pipeline that was renamed, for example.
        """
        mine = {"pipeline": self._id, "consumer": consumer}
        if insert_if_absent(self._connection, owners, thing=thing, **mine):
            return None
        # locked: of two pipelines that claim at the same moment the second one sees the first
        known = sa.select(owners).where(owners.c.thing == thing).with_for_update()
        row = self._connection.execute(known).mappings().one()
        if (other := (str(row["pipeline"]), str(row["consumer"]))) != (self._id, consumer):
            if other[0] != self._id and self._is_active(other[0]):
                return other
            self._connection.execute(sa.update(owners).where(owners.c.thing == thing).values(**mine))
            record_event(self._connection, self._id, "taken_over", thing=thing, was=other[0])
        return None

    def release_others(self, things: set[str]) -> None:
        """Gives up what the pipeline owned and, as its file says now, writes to no more."""
        mine = (owners.c.pipeline == self._id, owners.c.thing.not_in(things))
        self._connection.execute(sa.delete(owners).where(*mine))

    def _is_active(self, pipeline: str) -> bool:
        owner = self._connection.execute(sa.select(pipelines.c.owner).where(pipelines.c.pipeline == pipeline)).scalar()
        open_ones = (steps.c.pipeline == pipeline, steps.c.state.in_(OPEN))
        return (
            not is_free(owner or "")
            or self._connection.execute(sa.select(steps.c.step).where(*open_ones)).first() is not None
        )
