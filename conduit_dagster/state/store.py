"""The transactions of a step, from plan to done. Each one commits only under the lease's epoch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, TypeVar

import sqlalchemy as sa

from conduit_dagster.state.connector_registrations import Registry
from conduit_dagster.state.dead_letter_replays import LetterReplays, close_letters
from conduit_dagster.state.dead_letters import insert_parts
from conduit_dagster.state.delivery_store import ONCE, DeliveryStore, Offsets, move_collections, move_offsets
from conduit_dagster.state.history import record_event
from conduit_dagster.state.kept_values import KeptStore, forget_unused
from conduit_dagster.state.lease import Lease, Transactions
from conduit_dagster.state.letter_index import LetterIndex
from conduit_dagster.state.log_registry import LogRegistry
from conduit_dagster.state.pipeline_state import PipelineState, load
from conduit_dagster.state.readers import output_steps
from conduit_dagster.state.row_statements import insert, put, update
from conduit_dagster.state.status_store import StatusStore
from conduit_dagster.state.steps import Decision, LetterPart, Plan, SourceCount, StagedDelivery, encode
from conduit_dagster.state.tables import consumers, deliveries, meta, sources, steps

T = TypeVar("T")
_KEPT_STEPS = 50
"""Minimum number of steps to keep; older ones are deleted once in so many steps, and with the first of a process."""
_HELD_STEPS = 100_000
"""Number of steps of which a destination's deliveries are kept for readers of its output: a reader may never return."""


class PipelineStore:
    """The state of one pipeline, for the owner of its lease."""

    def __init__(
        self, engine: sa.Engine, lease: Lease, patience: float = 30.0, interrupted: Callable[[], bool] = lambda: False
    ) -> None:
        self.engine = engine
        self._lease = lease
        self._id = lease.pipeline
        transactions = Transactions(engine, lease, patience, interrupted)
        self._run = transactions.run
        self.transactions = transactions
        self.deliveries = DeliveryStore(transactions, lease.pipeline)
        self.replays = LetterReplays(transactions, lease.pipeline)
        self.letter_index = LetterIndex(transactions, lease.pipeline)
        self.status = StatusStore(transactions, lease.pipeline)
        self._tidied = 0

    @property
    def pipeline(self) -> str:
        """Id of the pipeline."""
        return self._id

    @property
    def epoch(self) -> int:
        """The lease's epoch: higher than that of any previous owner."""
        return self._lease.epoch

    @property
    def lease_seconds(self) -> float:
        """Time of silence after which an owner has lost its lease."""
        return self._lease.seconds

    def last_jobs(self) -> dict[str, str]:
        """Return where the last Spark jobs ran, as their owner stored by :meth:`keep_jobs`; empty if unknown.

        Whoever had the lease in between without any, such as a sensor: they may still be running. Raises
        ``LeaseLost``: jobs of a later owner must not be taken for them, and ended.
        """
        mine = sa.select(meta.c.value).where(meta.c.name == self._jobs_name)
        text = self._run(lambda connection: connection.execute(mine).scalar_one_or_none())
        return {} if text is None else json.loads(text)

    def keep_jobs(self, whereabouts: Mapping[str, str]) -> None:
        """Store where this owner's jobs run, before the first one."""
        self._run(self.keeping_jobs(whereabouts))

    def keeping_jobs(self, whereabouts: Mapping[str, str]) -> Callable[[sa.Connection], None]:
        """Return :meth:`keep_jobs` as a part of another transaction."""
        row = {"name": self._jobs_name, "value": json.dumps(dict(whereabouts))}
        return lambda connection: put(connection, meta, [row])

    @property
    def _jobs_name(self) -> str:
        return f"jobs:{sha256(self._id.encode()).hexdigest()[:40]}"

    def load(self) -> PipelineState:
        """Return the state after the last committed transaction."""
        return self.transactions.read(lambda connection: load(connection, self._id))

    def registering(self, work: Callable[[Registry, LogRegistry], T]) -> T:
        """Run the registration of connectors in one transaction; ``work`` may be called again after a failed one."""
        return self._run(lambda connection: work(Registry(connection, self._id), LogRegistry(connection, self._id)))

    # -- one step -----------------------------------------------------------------------------------------------

    def plan(self, plan: Plan) -> None:
        """Line 1: store the plan. Nothing is read before it is committed."""
        self._run(lambda connection: self._insert(connection, plan), next_step=plan.step + 1)

    def replan(self, void: int, successor: Plan | None) -> None:
        """Line 4: void step ``void`` and every later one, and store the shorter successor, in one transaction."""

        def work(connection: sa.Connection) -> None:
            self._void_from(connection, void)
            if successor is not None:
                self._insert(connection, successor)

        self._run(work, **({} if successor is None else {"next_step": successor.step + 1}))

    def _insert(self, connection: sa.Connection, plan: Plan) -> None:
        values = {"pipeline": self._id, "step": plan.step, "state": "planned", "plan": encode(plan), "decision": ""}
        insert(connection, steps, [{**values, "planned_ns": time.time_ns(), "done_ns": 0}])

    def _set_state(self, connection: sa.Connection, step: int, state: str, **values: Any) -> None:
        update(connection, steps, {"pipeline": self._id, "step": step}, {"state": state, **values})

    def _void_from(self, connection: sa.Connection, step: int) -> None:
        # only steps that were never prepared: a prepared step is never taken back
        mine = (steps.c.pipeline == self._id, steps.c.step >= step, steps.c.state == "planned")
        connection.execute(sa.update(steps).where(*mine).values(state="void"))

    def void(self, step: int) -> None:
        """Void a planned step and every later one; none of them was prepared."""
        self._run(lambda connection: self._void_from(connection, step))

    def prepare(
        self, plan: Plan, decision: Decision, letters: Sequence[LetterPart], offsets: Offsets | None = None
    ) -> None:
        """Line 5: store the decision. Nothing is published before, and the decision never changes afterwards.

        ``letters``: the archive's files with the step's dead letters, which later transactions index
        (:class:`~conduit_dagster.state.letter_index.LetterIndex`).

        With ``offsets`` (at-most-once) the same transaction moves offsets, positions and targets, and the step is done:
        anything not published after that is never published.
        """

        def work(connection: sa.Connection) -> None:
            self._set_state(connection, plan.step, "prepared", decision=encode(decision))
            rows = [self._delivery(plan, delivery, offsets is not None) for delivery in decision.deliveries]
            insert(connection, deliveries, rows)
            if letters:
                insert_parts(connection, self._id, plan.step, letters)
            if offsets is not None:
                self._hand_over(connection, plan.step, decision, offsets)
                self._finish(connection, plan, decision)

        self._run(work, window=decision.window)
        if offsets is not None:
            self._tidy(plan)

    def _delivery(self, plan: Plan, delivery: StagedDelivery, once: bool) -> dict[str, Any]:
        # an empty delivery is already done
        state = (ONCE if once else "open") if delivery.parts else "done"
        own = {"pipeline": self._id, "step": plan.step, "consumer": delivery.consumer, "skip": 0}
        return {**own, "hash": delivery.hash, "state": state, "handled": 0, "pending": "", "staged": ""}

    def _hand_over(self, connection: sa.Connection, step: int, decision: Decision, offsets: Offsets) -> None:
        move_offsets(connection, self._id, [delivery.consumer for delivery in decision.deliveries], offsets)
        for delivery in decision.deliveries:
            if delivery.parts:
                mine = {"pipeline": self._id, "consumer": delivery.consumer}
                values = {"step": step, "target": json.dumps(delivery.expected)}
                update(connection, consumers, mine, values, add={"delivered": delivery.records})

    def retarget(self, plan: Plan, decision: Decision) -> None:
        """Change the targets of unpublished deliveries, as the settings require. Nothing else changes."""

        def work(connection: sa.Connection) -> None:
            self._set_state(connection, plan.step, "prepared", decision=encode(decision))
            record_event(connection, self._id, "retargeted", step=plan.step)

        self._run(work)

    def done(self, plan: Plan, decision: Decision, offsets: Offsets, names: Sequence[str]) -> None:
        """Line 7: move the sources' positions in one transaction, after everything published is durable.

        ``names``: the consumers whose offsets move past the step, including those without records in it.
        """

        def work(connection: sa.Connection) -> None:
            self._finish(connection, plan, decision)
            move_offsets(connection, self._id, names, offsets)

        self._run(work)
        self._tidy(plan)

    def _tidy(self, plan: Plan) -> None:
        """Delete what is no longer needed, in separate small transactions; only now and then."""
        # not only at certain numbers: each second one may belong to a step that is cut, and is never done
        if plan.step // _KEPT_STEPS > self._tidied:
            self._run(lambda connection: self._forget(connection, plan.step))
            self.letter_index.forget_closed()
            forget_unused(self.transactions, self._id, time.time_ns())
            self._tidied = plan.step // _KEPT_STEPS

    def kept_values(self, source: str) -> KeptStore:
        """Return the values that a source's positions refer to."""
        return KeptStore(self.transactions, self._id, source)

    def _finish(self, connection: sa.Connection, plan: Plan, decision: Decision) -> None:
        self._set_state(connection, plan.step, "done", done_ns=time.time_ns())
        for span in plan.ranges:
            count = decision.sources.get(span.source, SourceCount())
            current = {"pipeline": self._id, "source": span.source, "generation": span.generation}
            counts = {"records": count.read, "filtered": count.filtered, "nacked": count.nacked}
            counts["acked"] = count.read - count.nacked
            update(connection, sources, current, {"position": json.dumps(span.end)}, counts)
        if not plan.only and not plan.replay:
            seen = {span.source: (span.offset, decision.namespaces.get(span.source, {})) for span in plan.ranges}
            move_collections(connection, self._id, seen)
        if plan.replay:
            close_letters(connection, self._id, plan)

    def _forget(self, connection: sa.Connection, step: int) -> None:
        """Delete old steps, and old deliveries unless a reader of the output may still have to notice a missing one."""
        old, oldest = step - _KEPT_STEPS, step - _HELD_STEPS
        connection.execute(sa.delete(steps).where(steps.c.pipeline == self._id, steps.c.step < old))
        column, held = deliveries.c, sa.false()
        for destination, read in output_steps(connection, self._id).items():
            held |= sa.and_(column.consumer == destination, column.step > max(read, oldest))
        mine = (column.pipeline == self._id, column.step < old)
        connection.execute(sa.delete(deliveries).where(*mine, sa.not_(held)))

    # -- end of a run -----------------------------------------------------------------------------------------

    def voiding(self, step: int | None) -> Callable[[sa.Connection], None]:
        """Return a function that voids planned steps from this one on in its transaction; None voids nothing."""

        def work(connection: sa.Connection) -> None:
            if step is not None:
                self._void_from(connection, step)

        return work
