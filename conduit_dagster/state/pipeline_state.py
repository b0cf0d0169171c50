"""State of a pipeline that a run needs in order to resume."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import sqlalchemy as sa

from conduit_dagster.state.row_statements import update
from conduit_dagster.state.steps import (
    Decision,
    DeliveryProgress,
    LateLetter,
    Plan,
    ProcessorState,
    SourceCount,
    decode,
    encode,
)
from conduit_dagster.state.tables import consumers, deliveries, pipelines, sources, steps

OPEN = ("planned", "prepared")
REPLAY = "replay"
"""Plugin name in the unit of a source that represents the letters of a replay."""
CATCH_UP = "catch-up"
"""Plugin name in the unit of a source that represents a log's range for one destination (``catch_ups.py``)."""
SENT_AGAIN = "again"
"""Key in the unit of a catch-up that was requested by an operator, not by the file."""
LOGGED = "log"
"""Key in a source's unit if its positions are offsets of its log."""
DROPPED = "dropped"
"""Key in the unit of a source for which another pipeline's log is no longer kept (``readers.py``)."""


@dataclass
class SourceState:
    """Position and identity of a source."""

    generation: int
    unit: dict[str, Any]
    position: Any
    records: int

    @property
    def late(self) -> str:
        """The destination that catches up on this source; empty if all destinations read it."""
        return self.unit["destination"] if self.unit.get("plugin") == CATCH_UP else ""

    @property
    def is_sent_again(self) -> bool:
        """Whether an operator requested to send that destination the range again."""
        return bool(self.unit.get(SENT_AGAIN))

    @property
    def is_replay(self) -> bool:
        """Whether the source represents the dead letters of a replay."""
        return self.unit.get("plugin") == REPLAY


@dataclass(frozen=True)
class OpenStep:
    """A step that is not done."""

    plan: Plan
    decision: Decision | None
    """None while the step is only planned."""
    delivered: frozenset[str]
    """Consumers whose own delivery is done or void."""
    progress: dict[str, DeliveryProgress]
    """Progress of the other consumers' deliveries."""
    letters: tuple[LateLetter, ...]
    """Dead letters found at publishing that are still to be published."""
    void: frozenset[str] = frozenset()
    """Consumers retired while their delivery was open. One of them may have come back as a new consumer."""
    sent: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of records delivered to each consumer whose delivery is done or void, without refused or marked ones."""


@dataclass
class PipelineState:
    """The pipeline's state after the last committed transaction."""

    next_step: int
    window: str
    sources: dict[str, SourceState] = field(default_factory=dict[str, SourceState])
    targets: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    open_steps: list[OpenStep] = field(default_factory=list[OpenStep])
    last_plan: Plan | None = None
    """The newest step that is not void."""
    memory: dict[str, ProcessorState] = field(default_factory=dict[str, ProcessorState])
    """State of stateful processors after the newest step that is prepared or done."""
    decided: int = 0
    """Number of that step when the state was loaded."""

    def prepared(self, decision: Decision) -> None:
        """Apply the changes of line 5's transaction."""
        self.window, self.memory = decision.window, decision.memory
        for delivery in decision.deliveries:
            if decision.once and delivery.parts:
                self.delivered(delivery.consumer, delivery.expected)

    def delivered(self, consumer: str, target: Mapping[str, Any]) -> None:
        """Apply the changes of a delivery's transaction."""
        self.targets[consumer] = json.loads(json.dumps(target))  # the same value as a later run loads

    def finished(self, plan: Plan, decision: Decision) -> None:
        """Apply the changes of a step's last transaction; nothing for a source that was rewound meanwhile."""
        for span in plan.ranges:
            known = self.sources.get(span.source)
            if known is not None and known.generation == span.generation:
                known.position = span.end
                known.records += decision.sources.get(span.source, SourceCount()).read


def load(connection: sa.Connection, pipeline: str) -> PipelineState:
    """Load the whole state in one transaction."""
    row = connection.execute(sa.select(pipelines).where(pipelines.c.pipeline == pipeline)).mappings().one()
    state = PipelineState(row["next_step"], row["window"])
    for source in connection.execute(sa.select(sources).where(sources.c.pipeline == pipeline)).mappings():
        state.sources[source["source"]] = SourceState(
            source["generation"], json.loads(source["unit"]), json.loads(source["position"]), source["records"]
        )
        # of a dropped reader, not part of the identity of the data
        state.sources[source["source"]].unit.pop(DROPPED, None)
    for consumer in connection.execute(sa.select(consumers).where(consumers.c.pipeline == pipeline)).mappings():
        if consumer["target"]:
            state.targets[consumer["consumer"]] = json.loads(consumer["target"])
    mine = (steps.c.pipeline == pipeline, steps.c.state.in_(OPEN))
    rows = connection.execute(sa.select(steps).where(*mine).order_by(steps.c.step)).mappings().all()
    state.open_steps = [_open_step(connection, pipeline, row) for row in rows]
    state.last_plan = _last_plan(connection, pipeline)
    state.decided, decision = _decided(connection, pipeline)
    state.memory = {} if decision is None else decision.memory
    return state


def _open_step(connection: sa.Connection, pipeline: str, row: Any) -> OpenStep:
    plan = decode(row["plan"], Plan)
    if row["state"] != "prepared":
        return OpenStep(plan, None, frozenset(), {}, ())
    mine = (deliveries.c.pipeline == pipeline, deliveries.c.step == plan.step)
    found = connection.execute(sa.select(deliveries).where(*mine).order_by(deliveries.c.skip)).mappings().all()
    own, children = [one for one in found if not one["staged"]], [one for one in found if one["staged"]]
    return OpenStep(
        plan,
        decode(row["decision"], Decision),
        frozenset(one["consumer"] for one in own if one["state"] not in ("open", "split")),
        {one["consumer"]: _progress(one) for one in own if one["state"] in ("open", "split")},
        tuple(decode(one["staged"], LateLetter) for one in children if one["state"] == "open"),
        frozenset(one["consumer"] for one in own if one["state"] == "void"),
        {one["consumer"]: _sent(one) for one in own if one["state"] in ("done", "void")},
    )


def _sent(row: Any) -> int:
    if row["state"] == "done":
        return row["handled"]
    progress = _progress(row)
    return progress.handled - progress.refused


def _progress(row: Any) -> DeliveryProgress:
    return decode(row["pending"], DeliveryProgress) if row["pending"] else DeliveryProgress(row["handled"])


def _decided(connection: sa.Connection, pipeline: str) -> tuple[int, Decision | None]:
    """Return the newest step that is prepared or done, with its decision."""
    mine = (steps.c.pipeline == pipeline, steps.c.state.in_(("prepared", "done")))
    newest = sa.select(steps.c.step, steps.c.decision).where(*mine).order_by(steps.c.step.desc()).limit(1)
    row = connection.execute(newest).first()
    return (0, None) if row is None else (int(row[0]), decode(row[1], Decision))


def carry_memory(connection: sa.Connection, pipeline: str, source: str, was: int, now: int) -> None:
    """Let stateful processors keep their state of generation ``was`` of a source under its generation ``now``."""
    step, decision = _decided(connection, pipeline)
    if decision is None or not decision.memory:
        return
    memory = {
        node: msgspec.structs.replace(state, generations={**state.generations, source: now})
        if state.generations.get(source) == was
        else state
        for node, state in decision.memory.items()
    }
    changed = encode(msgspec.structs.replace(decision, memory=memory))
    update(connection, steps, {"pipeline": pipeline, "step": step}, {"decision": changed})


def _last_plan(connection: sa.Connection, pipeline: str) -> Plan | None:
    mine = (steps.c.pipeline == pipeline, steps.c.state != "void")
    newest = sa.select(steps.c.plan).where(*mine).order_by(steps.c.step.desc()).limit(1)
    text = connection.execute(newest).scalar_one_or_none()
    return None if text is None else decode(text, Plan)
