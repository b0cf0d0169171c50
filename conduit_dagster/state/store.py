"""The transactions of the delivery protocol. Each one commits only under the lease's epoch."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import sqlalchemy as sa

from conduit_dagster.state.database import reading
from conduit_dagster.state.lease import Lease, is_free
from conduit_dagster.state.schema import (
    consumers,
    dead_letters,
    deliveries,
    history,
    owners,
    pipelines,
    sources,
    steps,
)
from conduit_dagster.state.steps import DeadLetter, Decision, Plan, SourceCount, encode

_OPEN = ("planned", "prepared")
_KEPT_STEPS = 50
_KEPT_DEAD_LETTERS = 100_000


@dataclass
class SourceState:
    """Where a source stands."""

    generation: int
    unit: dict[str, Any]
    position: Any
    records: int


@dataclass
class OpenStep:
    """A step that is planned or prepared, and not done."""

    plan: Plan
    decision: Decision | None
    delivered: frozenset[str] = frozenset()
    """Consumers whose delivery is done."""


@dataclass
class PipelineState:
    """All that a run needs to go on."""

    next_step: int
    window: str
    sources: dict[str, SourceState] = field(default_factory=dict[str, SourceState])
    targets: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    open_steps: list[OpenStep] = field(default_factory=list[OpenStep])


class PipelineStore:
    """The state of one pipeline, for the owner of its lease."""

    def __init__(self, engine: sa.Engine, lease: Lease) -> None:
        self._engine = engine
        self._lease = lease
        self._id = lease.pipeline

    @property
    def epoch(self) -> int:
        """The lease's: higher than that of any owner before."""
        return self._lease.epoch

    # -- connectors ---------------------------------------------------------------------------------------------

    def register_source(self, source: str, unit: Mapping[str, Any], initial: Any) -> None:
        """Makes a source known. Where it now means other data, it starts anew under a new generation."""
        text = json.dumps(unit, sort_keys=True)
        with self._engine.begin() as connection:
            self._lease.guard(connection)
            mine = (sources.c.pipeline == self._id, sources.c.source == source)
            known = connection.execute(sa.select(sources.c.unit).where(*mine)).scalar_one_or_none()
            if known is None:
                fresh = {"generation": 1, "records": 0, "acked": 0, "filtered": 0, "nacked": 0}
                connection.execute(
                    sources.insert().values(
                        pipeline=self._id, source=source, unit=text, position=json.dumps(initial), **fresh
                    )
                )
            elif known != text:
                connection.execute(
                    sa.update(sources)
                    .where(*mine)
                    .values(unit=text, position=json.dumps(initial), generation=sources.c.generation + 1)
                )
                self._event(connection, "source_changed", source=source, was=json.loads(known), now=dict(unit))

    def register_consumer(self, consumer: str, kind: str) -> None:
        """Makes a destination or the dead-letter queue known; a new one starts at the current boundary."""
        with self._engine.begin() as connection:
            self._lease.guard(connection)
            mine = (consumers.c.pipeline == self._id, consumers.c.consumer == consumer)
            if connection.execute(sa.select(consumers.c.kind).where(*mine)).first() is None:
                fresh = {"kind": kind, "delivered": 0, "step": 0, "target": ""}
                connection.execute(consumers.insert().values(pipeline=self._id, consumer=consumer, **fresh))
                self._event(connection, "consumer_added", consumer=consumer)

    def retire(self, present: set[str]) -> list[str]:
        """Retires consumers that are in the file no more; their open deliveries are void."""
        with self._engine.begin() as connection:
            self._lease.guard(connection)
            known = connection.execute(sa.select(consumers.c.consumer).where(consumers.c.pipeline == self._id))
            gone = [name for (name,) in known if name not in present]
            for table in (consumers, owners):
                connection.execute(sa.delete(table).where(table.c.pipeline == self._id, table.c.consumer.in_(gone)))
            open_ones = (
                deliveries.c.pipeline == self._id,
                deliveries.c.consumer.in_(gone),
                deliveries.c.state == "open",
            )
            connection.execute(sa.update(deliveries).where(*open_ones).values(state="void"))
            for name in gone:
                self._event(connection, "consumer_retired", consumer=name)
        return gone

    def claim(self, thing: str, consumer: str) -> tuple[str, str] | None:
        """Makes the consumer the only owner of ``thing``, a path for example; gives the owner it has instead.

        An owner that neither runs nor has an open step gives way: a pipeline that was renamed, for example.
        """
        with self._engine.begin() as connection:
            self._lease.guard(connection)
            row = connection.execute(sa.select(owners).where(owners.c.thing == thing)).mappings().first()
            mine = {"pipeline": self._id, "consumer": consumer}
            if row is None:
                connection.execute(owners.insert().values(thing=thing, **mine))
            elif (other := (str(row["pipeline"]), str(row["consumer"]))) != (self._id, consumer):
                if other[0] != self._id and self._is_active(connection, other[0]):
                    return other
                connection.execute(sa.update(owners).where(owners.c.thing == thing).values(**mine))
                self._event(connection, "taken_over", thing=thing, was=other[0])
        return None

    def release_others(self, things: set[str]) -> None:
        """Gives up what the pipeline owned and, as its file says now, writes to no more."""
        with self._engine.begin() as connection:
            self._lease.guard(connection)
            mine = (owners.c.pipeline == self._id, owners.c.thing.not_in(things))
            connection.execute(sa.delete(owners).where(*mine))

    def _is_active(self, connection: sa.Connection, pipeline: str) -> bool:
        owner = connection.execute(sa.select(pipelines.c.owner).where(pipelines.c.pipeline == pipeline)).scalar()
        open_ones = (steps.c.pipeline == pipeline, steps.c.state.in_(_OPEN))
        return (
            not is_free(owner or "")
            or connection.execute(sa.select(steps.c.step).where(*open_ones)).first() is not None
        )

    # -- reading ------------------------------------------------------------------------------------------------

    def load(self) -> PipelineState:
        """The state as the last committed transaction left it."""
        with reading(self._engine) as connection:
            row = connection.execute(sa.select(pipelines).where(pipelines.c.pipeline == self._id)).mappings().one()
            state = PipelineState(row["next_step"], row["window"])
            for source in connection.execute(sa.select(sources).where(sources.c.pipeline == self._id)).mappings():
                position = json.loads(source["position"])
                state.sources[source["source"]] = SourceState(
                    source["generation"], json.loads(source["unit"]), position, source["records"]
                )
            for consumer in connection.execute(sa.select(consumers).where(consumers.c.pipeline == self._id)).mappings():
                if consumer["target"]:
                    state.targets[consumer["consumer"]] = json.loads(consumer["target"])
            state.open_steps = self._open_steps(connection)
            return state

    def _open_steps(self, connection: sa.Connection) -> list[OpenStep]:
        mine = (steps.c.pipeline == self._id, steps.c.state.in_(_OPEN))
        rows = connection.execute(sa.select(steps).where(*mine).order_by(steps.c.step)).mappings().all()
        return [self._open_step(connection, row) for row in rows]

    def _open_step(self, connection: sa.Connection, row: Any) -> OpenStep:
        plan = msgspec.json.decode(row["plan"], type=Plan)
        decision = msgspec.json.decode(row["decision"], type=Decision) if row["state"] == "prepared" else None
        mine = (
            deliveries.c.pipeline == self._id,
            deliveries.c.step == plan.step,
            deliveries.c.state != "open",
        )
        handled = connection.execute(sa.select(deliveries.c.consumer).where(*mine)).scalars()
        return OpenStep(plan, decision, frozenset(handled))

    # -- one step -----------------------------------------------------------------------------------------------

    def plan(self, plan: Plan) -> None:
        """Line 1. Nothing is read before it is committed."""
        with self._engine.begin() as connection:
            self._lease.guard(connection, next_step=plan.step + 1)
            self._insert(connection, plan)

    def replan(self, void: int, successor: Plan | None) -> None:
        """Line 4: step ``void`` and its shorter successor in one transaction."""
        with self._engine.begin() as connection:
            after = {} if successor is None else {"next_step": successor.step + 1}
            self._lease.guard(connection, **after)
            self._set_state(connection, void, "void")
            if successor is not None:
                self._insert(connection, successor)

    def _insert(self, connection: sa.Connection, plan: Plan) -> None:
        connection.execute(
            steps.insert().values(
                pipeline=self._id, step=plan.step, state="planned", plan=encode(plan), decision="",
                planned_ns=time.time_ns(), done_ns=0,
            )
        )  # fmt: skip

    def _set_state(self, connection: sa.Connection, step: int, state: str, **values: Any) -> None:
        mine = (steps.c.pipeline == self._id, steps.c.step == step)
        connection.execute(sa.update(steps).where(*mine).values(state=state, **values))

    def void(self, step: int) -> None:
        """Drops a planned step that was never prepared."""
        with self._engine.begin() as connection:
            self._lease.guard(connection)
            self._set_state(connection, step, "void")

    def prepare(self, plan: Plan, decision: Decision, letters: list[DeadLetter]) -> None:
        """Line 5. Nothing is published before it, and from here the decision never changes."""
        with self._engine.begin() as connection:
            self._lease.guard(connection, window=decision.window)
            self._set_state(connection, plan.step, "prepared", decision=encode(decision))
            for delivery in decision.deliveries:
                connection.execute(
                    deliveries.insert().values(
                        pipeline=self._id, step=plan.step, consumer=delivery.consumer, hash=delivery.hash,
                        state="open" if delivery.parts else "done",  # an empty delivery is done here
                    )
                )  # fmt: skip
            if letters:
                connection.execute(dead_letters.insert(), [self._letter(plan, i, row) for i, row in enumerate(letters)])

    def _letter(self, plan: Plan, number: int, row: DeadLetter) -> dict[str, Any]:
        values = msgspec.structs.asdict(row)
        return {"pipeline": self._id, "step": plan.step, "number": number, "at_ns": plan.clock_ns, **values}

    def retarget(self, plan: Plan, decision: Decision) -> None:
        """Where the settings say so, a delivery that is not published yet gets another target. Nothing else changes."""
        with self._engine.begin() as connection:
            self._lease.guard(connection)
            self._set_state(connection, plan.step, "prepared", decision=encode(decision))
            self._event(connection, "retargeted", step=plan.step)

    def delivered(self, step: int, consumer: str, records: int, target: Mapping[str, Any]) -> None:
        """Line 6: one delivery is published and durable; the consumer's offset moves past it."""
        with self._engine.begin() as connection:
            self._lease.guard(connection)
            mine = (
                deliveries.c.pipeline == self._id,
                deliveries.c.step == step,
                deliveries.c.consumer == consumer,
            )
            first = connection.execute(
                sa.update(deliveries).where(*mine, deliveries.c.state == "open").values(state="done")
            )
            if first.rowcount:
                who = (consumers.c.pipeline == self._id, consumers.c.consumer == consumer)
                connection.execute(
                    sa.update(consumers)
                    .where(*who)
                    .values(delivered=consumers.c.delivered + records, step=step, target=json.dumps(target))
                )

    def done(self, plan: Plan, decision: Decision) -> None:
        """Line 7: after everything published is durable, one transaction moves the sources' positions."""
        with self._engine.begin() as connection:
            self._lease.guard(connection)
            self._set_state(connection, plan.step, "done", done_ns=time.time_ns())
            for span in plan.ranges:
                count = decision.sources.get(span.source, SourceCount())
                mine = (sources.c.pipeline == self._id, sources.c.source == span.source)
                connection.execute(
                    sa.update(sources)
                    .where(*mine, sources.c.generation == span.generation)
                    .values(
                        position=json.dumps(span.end),
                        records=sources.c.records + count.read,
                        acked=sources.c.acked + count.read - count.nacked,
                        filtered=sources.c.filtered + count.filtered,
                        nacked=sources.c.nacked + count.nacked,
                    )
                )
            self._forget(connection, plan.step)

    def _forget(self, connection: sa.Connection, step: int) -> None:
        """Done and void steps do not pile up; the dead-letter index keeps its newest rows."""
        old = step - _KEPT_STEPS
        for table in (steps, deliveries):
            connection.execute(sa.delete(table).where(table.c.pipeline == self._id, table.c.step < old))
        if step % _KEPT_STEPS == 0:
            mine = sa.select(dead_letters.c.step).where(dead_letters.c.pipeline == self._id)
            cut = mine.order_by(dead_letters.c.step.desc()).offset(_KEPT_DEAD_LETTERS).limit(1).scalar_subquery()
            connection.execute(
                sa.delete(dead_letters).where(dead_letters.c.pipeline == self._id, dead_letters.c.step < cut)
            )

    # -- life ---------------------------------------------------------------------------------------------------

    def set_status(self, status: str, reason: str = "", error: Mapping[str, Any] | None = None, file: str = "") -> None:
        """Status and what led to it; a start clears the error, a later failure keeps its own first one."""
        values: dict[str, Any] = {
            "status": status,
            "reason": reason,
            "error": json.dumps(error) if error else "",
        }
        if file:
            values["file"] = file
        with self._engine.begin() as connection:
            self._lease.guard(connection, **values)
            self._event(
                connection,
                status,
                **({"reason": reason} if reason else {}),
                **({"error": error} if error else {}),
            )

    def _event(self, connection: sa.Connection, event: str, **detail: Any) -> None:
        connection.execute(
            history.insert().values(pipeline=self._id, at_ns=time.time_ns(), event=event, detail=json.dumps(detail))
        )
