"""Metrics of a run: what they count, from the engine's reports."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from lab.support import DECODE, Lab, destination, source

from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.report import PendingRestart, RunProgress, RunResult, StepReport
from conduit_dagster.metrics.collectors import LiveMetrics, PipelineMetrics
from conduit_dagster.metrics.families import PipelineFacts, page
from conduit_dagster.metrics.source_lag import SourceLag, source_lag
from conduit_dagster.recovery.policy import FRESH
from conduit_dagster.sdk import Source
from conduit_dagster.state.steps import SourceCount


class Lived:
    """A tally, and the run it observes."""

    def __init__(self, bound: BoundPipeline) -> None:
        self.status, self.progress = "running", RunProgress()
        self.metrics = LiveMetrics()
        self.tally: PipelineMetrics = self.metrics.add(bound, lambda: self.status, source_lag)

    def step(self, seconds: float = 0.2, **counts: Any) -> PipelineFacts:
        position = {"in": counts.pop("position")} if "position" in counts else {}
        count = SourceCount(**counts)
        good = count.read - count.filtered - count.nacked
        delivered = {"out": good, "dead_letters": count.nacked}
        sizes = {"out": 10 * good, "dead_letters": 7}
        step = StepReport(1, seconds, {"in": count}, position, delivered, sizes, {}, {}, [])
        self.progress.add(step)
        self.tally.observe(step, self.progress)
        return self.tally.facts()

    def end(self, restart: PendingRestart | None, status: str = "recovering") -> None:
        self.status = status
        self.tally.tell(RunResult("p", status, "", None, self.progress, restart))


@pytest.fixture
def lived(bound: BoundPipeline) -> Lived:
    return Lived(bound)


def test_counts_begin_at_zero_and_add_up(lived: Lived) -> None:
    before = lived.tally.facts()
    assert (before.sources["in"].read, before.destinations["out"].records, before.dead_letters) == (0, 0, 0)
    assert (before.last, before.times, before.restarts, before.restart_at) == (None, None, 0, None)
    lived.step(read=10, filtered=2, nacked=1)
    facts = lived.step(read=5)
    one = facts.sources["in"]
    assert (one.read, one.acked, one.filtered, one.nacked) == (15, 14, 2, 1)
    assert (facts.destinations["out"].records, facts.destinations["out"].bytes) == (12, 120)
    assert (facts.dead_letters, facts.destinations.keys()) == (1, {"out"})


def test_steps_are_sorted_by_their_time(lived: Lived) -> None:
    for seconds in (0.05, 0.1, 0.100001, 10_000.0):
        facts = lived.step(seconds, read=1)
    assert facts.times is not None
    assert facts.last is not None
    assert (facts.times.classes[0], facts.times.classes[1], facts.times.classes[-1]) == (2, 1, 1)
    assert facts.times.seconds == pytest.approx(10_000.250001)
    assert facts.last.seconds == 10_000.0
    assert abs(facts.last.at - time.time()) < 60


def test_the_lag_is_the_sources_own(lived: Lived, bound: BoundPipeline) -> None:
    (node,) = bound.compiled.sources
    assert lived.tally.facts().sources["in"].lag.amount is None
    facts = lived.step(read=1, position=node.source.initial())
    assert facts.sources["in"].lag == (40, "bytes", None)
    assert lived.step(read=1, position=7).sources["in"].lag.amount is None


def test_restarts_are_counted_when_they_begin(lived: Lived) -> None:
    restart = PendingRestart(1, 1, 4.0, 5_000_000_000, FRESH)
    lived.end(restart)
    assert (lived.tally.facts().restarts, lived.tally.facts().restart_at) == (0, 5.0)
    lived.end(None)
    assert (lived.tally.facts().restarts, lived.tally.facts().restart_at) == (1, None)
    lived.end(restart)
    lived.status = "stopped"
    assert (lived.tally.facts().status, lived.tally.facts().restart_at) == ("stopped", None)
    lived.end(None, "degraded")
    assert lived.tally.facts().restarts == 1


def test_logged_sources_have_the_lag_of_the_real_one(tmp_path: Path) -> None:
    """A step's positions are then offsets of the log, which the source itself does not know."""
    lab = Lab(tmp_path)
    lab.pipeline(connectors=[source(), destination()], processors=[DECODE], delivery={"log": "records"})
    found = lab.catalogue().get("p")
    assert found is not None
    asked = list[str]()

    def lag(reader: Source, position: object) -> SourceLag:
        asked.append(type(reader).__name__)
        return source_lag(reader, position)

    metrics = LiveMetrics()
    tally = metrics.add(found, lambda: "running", lag)
    progress = RunProgress(positions={"in": 7})
    tally.observe(StepReport(1, 0.1, {"in": SourceCount(1)}, {"in": 7}, {}, {}, {}, {}, []), progress)
    assert asked == ["LogSource"]
    assert tally.facts().sources["in"].lag.amount is None


def test_the_page_has_all_pipelines_of_the_run(lived: Lived, bound: BoundPipeline) -> None:
    lived.step(read=3)
    text = page(lived.metrics.collect())
    assert 'conduit_pipeline_records_read_total{pipeline="p",source="in"} 3.0\n' in text
    assert 'conduit_pipeline_status{pipeline="p",status="running"} 1.0\n' in text
