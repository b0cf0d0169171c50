"""Metrics of the pipelines that run in this process, and of all pipelines in the state store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from lab.support import DECODE, Lab, destination, source

from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.report import PendingRestart, RunProgress, RunResult, StepReport
from conduit_dagster.metrics.collectors import LiveMetrics, PipelineMetrics, SourceId, StoredMetrics
from conduit_dagster.metrics.families import PipelineFacts, page
from conduit_dagster.metrics.source_lag import SourceLag, source_lag
from conduit_dagster.recovery.policy import FRESH, Policy
from conduit_dagster.sdk import Source
from conduit_dagster.state.connector_registrations import SourceUnit
from conduit_dagster.state.history import DELETED, deprovision, record_event
from conduit_dagster.state.lease import acquire
from conduit_dagster.state.status_store import RunStart
from conduit_dagster.state.steps import SourceCount
from conduit_dagster.state.store import PipelineStore
from conduit_dagster.state.tables import consumers, sources, steps


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


SECOND = 1_000_000_000
ERROR = {"code": "x.y", "message": "it broke", "node": "p:in", "place": None, "fix": None, "fatal": False}


@pytest.fixture
def store(database: sa.Engine) -> Iterator[PipelineStore]:
    """Pipeline ``p`` has begun, with a source, a destination and a dead-letter queue."""
    lease = acquire(database, "p", 60.0)
    store = PipelineStore(database, lease)
    store.status.begin(RunStart("r1", "p.yaml"))
    store.registering(lambda registry, _: registry.register_source("in", SourceUnit({}, "/"), 0))
    for consumer, kind in (("out", "data"), ("dead_letters", "dlq")):
        store.registering(lambda registry, _, own=(consumer, kind): registry.register_consumer(*own))
    yield store
    lease.release()


def change(database: sa.Engine, table: sa.Table, **values: Any) -> None:
    with database.begin() as connection:
        connection.execute(sa.update(table).values(**values))


def deliver(database: sa.Engine, consumer: str, records: int) -> None:
    with database.begin() as connection:
        connection.execute(sa.update(consumers).where(consumers.c.consumer == consumer).values(delivered=records))


def read(metrics: StoredMetrics) -> dict[tuple[str, ...], float]:
    return {
        (sample.name.removeprefix("conduit_"), *sample.labels.values()): sample.value
        for metric in metrics.collect()
        for sample in metric.samples
    }


def no_lag(*_: Any) -> dict[SourceId, SourceLag]:
    return {}


def test_counts_are_the_stores(database: sa.Engine, store: PipelineStore) -> None:
    change(database, sources, records=10, acked=8, filtered=3, nacked=2, position="4")
    deliver(database, "out", 5)
    deliver(database, "dead_letters", 2)
    found = read(
        StoredMetrics(database, lambda at: {("p", "in"): SourceLag(7, "files")} if at == {("p", "in"): 4} else {})
    )
    assert found["pipeline_records_read_total", "p", "in"] == 10
    assert found["pipeline_records_acked_total", "p", "in"] == 8
    assert found["pipeline_records_filtered_total", "p", "in"] == 3
    assert found["pipeline_records_nacked_total", "p", "in"] == 2
    assert found["destination_records_delivered_total", "p", "out"] == 5
    assert found["pipeline_dead_letters_total", "p"] == 2
    assert found["source_lag", "p", "in", "files"] == 7
    assert found["pipeline_status", "p", "running"] == 1


def test_what_the_store_does_not_have_is_absent(database: sa.Engine, store: PipelineStore) -> None:
    names = {name for name, *_ in read(StoredMetrics(database, no_lag))}
    absent = ("source_lag", "destination_bytes_total", "step_seconds_count", "last_step_seconds",
              "pipeline_restarts_total", "pipeline_restart_at_seconds")  # fmt: skip
    assert names.isdisjoint(absent)
    assert "destination_records_delivered_total" in names


def test_restarts_and_when_the_next_one_is_due(database: sa.Engine, store: PipelineStore) -> None:
    status = store.status
    for number in (1, 2):
        status.failed(ERROR, Policy(), "r")
        assert status.begin(RunStart("r", restart=number)) is not None
    assert read(StoredMetrics(database, no_lag))["pipeline_restarts_total", "p"] == 2
    failed = status.failed(ERROR, Policy(), "r")
    assert failed.wait is not None
    found = read(StoredMetrics(database, no_lag))
    assert found["pipeline_restart_at_seconds", "p"] == failed.wait.at_ns / 1e9
    assert found["pipeline_status", "p", "recovering"] == 1
    assert found["pipeline_restarts_total", "p"] == 2


def test_the_newest_step_that_is_done(database: sa.Engine, store: PipelineStore) -> None:
    at = time.time_ns()
    rows = [(1, "done", 1), (2, "done", 3), (3, "void", 5), (4, "planned", 0)]
    with database.begin() as connection:
        connection.execute(
            steps.insert(),
            [
                {"pipeline": "p", "step": step, "state": state, "plan": "{}", "decision": "",
                 "planned_ns": at, "done_ns": at + took * SECOND if took else 0}
                for step, state, took in rows
            ],
        )  # fmt: skip
    found = read(StoredMetrics(database, no_lag))
    assert found["last_step_seconds", "p"] == pytest.approx(3.0)
    assert found["last_step_timestamp_seconds", "p"] == pytest.approx(at / 1e9 + 3, abs=0.01)


def test_a_counter_does_not_go_back_a_little(database: sa.Engine, store: PipelineStore) -> None:
    """A nack at publishing is subtracted from the acked ones until the step is done."""
    metrics, acked = StoredMetrics(database, no_lag), list[float]()
    for value in (1_000_000, 999_999, 1_000_050, 20):
        change(database, sources, acked=value)
        acked.append(read(metrics)["pipeline_records_acked_total", "p", "in"])
    assert acked == [1_000_000, 1_000_000, 1_000_050, 20]


def test_a_pipeline_that_was_deleted_counts_from_zero(database: sa.Engine, store: PipelineStore) -> None:
    """Also where the old count was so low that the new one seems to have gone back a little."""
    metrics, acked = StoredMetrics(database, no_lag), ("pipeline_records_acked_total", "p", "in")
    change(database, sources, acked=20)
    assert read(metrics)[acked] == 20
    with database.begin() as connection:
        record_event(connection, "p", DELETED)
    assert acked not in read(metrics)
    with database.begin() as connection:
        record_event(connection, "p", "provisioned")
    change(database, sources, acked=3)
    assert read(metrics)[acked] == 3


def test_a_pipeline_whose_file_is_gone_is_left_out(database: sa.Engine, store: PipelineStore) -> None:
    lease = acquire(database, "q", 60.0)
    PipelineStore(database, lease).status.begin(RunStart("r", "q.yaml"))
    lease.release()
    assert deprovision(database, "q")
    assert {labels[0] for _, *labels in read(StoredMetrics(database, no_lag))} == {"p"}


def test_an_empty_store_has_an_empty_page(database: sa.Engine) -> None:
    assert page(StoredMetrics(database, no_lag).collect()) == ""
