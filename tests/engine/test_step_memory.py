"""A run's memory between its steps equals the store's content, without reading it again; and a step's cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from lab.support import DECODE, Lab, destination, processor, queue, source
from sqlalchemy import event

from conduit_dagster.engine.loop import StepLoop
from conduit_dagster.engine.report import RunProgress, StepReport

NACKED = processor("bad", "error", "after.i % 5 == 4", message="no")


@pytest.mark.parametrize(
    "delivery",
    [
        {"strategy": "exactly-once"},
        {"strategy": "at-most-once"},
        {"strategy": "exactly-once", "log": "records"},
        {"strategy": "exactly-once", "max-in-flight": 3},
    ],
    ids=["exactly-once", "at-most-once", "records", "in-flight"],
)
def test_memory_agrees_with_the_store_after_each_step(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, delivery: dict[str, Any]
) -> None:
    compared = agreeing(monkeypatch)
    run_steps(lab, 4, delivery)
    assert compared == [1, 2, 3, 4]
    run_steps(lab, 2, delivery)
    assert compared[4:] == [5, 6]


def test_memory_agrees_with_the_store_where_sources_are_joined(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = agreeing(monkeypatch)
    lab.write("a.jsonl", [{"i": i} for i in range(5)])
    lab.write("b.jsonl", [{"j": i} for i in range(3)])
    inputs = [{**source("./a.jsonl"), "id": "a"}, {**source("./b.jsonl"), "id": "b"}]
    lab.pipeline(
        connectors=[*inputs, destination()],
        processors=[],
        delivery={"batch-size": 2, "strategy": "exactly-once"},
        **{"fan-in": "join", "dead-letter-queue": queue()},
    )
    assert lab.run().error is None
    assert len(compared) > 1


def agreeing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Compare after each step; the list collects the steps."""
    compared: list[int] = []
    complete = StepLoop.complete

    def completed(self: StepLoop, plan: Any, *rest: Any) -> None:
        complete(self, plan, *rest)
        state, stored = self.context.state, self.context.store.load()
        assert (state.sources, state.targets) == (stored.sources, stored.targets)
        assert state.window == stored.window
        compared.append(plan.step)

    monkeypatch.setattr(StepLoop, "complete", completed)
    return compared


def run_steps(lab: Lab, steps: int, delivery: dict[str, Any]) -> None:
    lab.write("in.jsonl", [{"i": i} for i in range(5 * steps)], mode="a")
    lab.pipeline(
        connectors=[source(), destination()],
        processors=[DECODE, NACKED],
        delivery={"batch-size": 5, **delivery},
        **{"dead-letter-queue": queue()},
    )
    assert lab.run().error is None


def test_a_step_of_one_destination_costs_the_store_four_transactions(lab: Lab) -> None:
    """Plan, prepare, delivered, done: 14 statements (a step of the protocol needs no other read of the store)."""
    lab.write("in.jsonl", [{"i": i} for i in range(6)])
    lab.pipeline(
        connectors=[source(), destination()],
        delivery={"batch-size": 1, "strategy": "exactly-once"},
        **{"dead-letter-queue": queue()},
    )
    costs: list[tuple[int, int]] = []
    with counting() as seen:

        def observe(step: StepReport, progress: RunProgress) -> None:
            costs.append((seen.count("commit"), len([one for one in seen if one != "commit"])))
            seen.clear()

        assert lab.run(observe=observe).error is None
    assert costs[1:] == [(4, 14)] * 5


@contextmanager
def counting() -> Iterator[list[str]]:
    """The statements and commits of the owner's transactions; heartbeats and other readers do not count."""
    seen: list[str] = []
    open_ones: dict[int, list[str]] = {}

    def begun(connection: sa.Connection) -> None:
        open_ones[id(connection)] = []

    def executed(connection: sa.Connection, cursor: Any, statement: str, *rest: Any) -> None:
        if statement.startswith(("INSERT", "UPDATE", "DELETE", "SELECT")):
            open_ones[id(connection)].append(statement)

    def committed(connection: sa.Connection) -> None:
        ours = open_ones.pop(id(connection))
        if any("txn" in statement for statement in ours):
            seen.extend([*ours, "commit"])

    def rolled_back(connection: sa.Connection) -> None:
        ours = open_ones.pop(id(connection))
        # the check for requests of operators, once a second, also reads whose store it is
        if not any("conduit_recoveries" in statement for statement in ours):
            seen.extend(ours)

    listeners = {"begin": begun, "before_cursor_execute": executed, "commit": committed, "rollback": rolled_back}
    for name, listener in listeners.items():
        event.listen(sa.Engine, name, listener)
    try:
        yield seen
    finally:
        for name, listener in listeners.items():
            event.remove(sa.Engine, name, listener)
