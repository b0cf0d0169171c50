"""Metrics from the state store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from conduit_dagster.metrics.collectors import StoredMetrics
from conduit_dagster.metrics.families import page
from conduit_dagster.metrics.source_lag import UNKNOWN_LAG, SourceLag
from conduit_dagster.recovery.policy import Policy
from conduit_dagster.state.connector_registrations import SourceUnit
from conduit_dagster.state.history import deprovision
from conduit_dagster.state.lease import acquire
from conduit_dagster.state.status_store import RunStart
from conduit_dagster.state.store import PipelineStore
from conduit_dagster.state.tables import consumers, sources, steps

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


def no_lag(*_: Any) -> SourceLag:
    return UNKNOWN_LAG


def test_counts_are_the_stores(database: sa.Engine, store: PipelineStore) -> None:
    change(database, sources, records=10, acked=8, filtered=3, nacked=2, position="4")
    deliver(database, "out", 5)
    deliver(database, "dead_letters", 2)
    found = read(
        StoredMetrics(database, lambda *about: SourceLag(7, "files") if about == ("p", "in", 4) else UNKNOWN_LAG)
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


def test_a_pipeline_whose_file_is_gone_is_left_out(database: sa.Engine, store: PipelineStore) -> None:
    lease = acquire(database, "q", 60.0)
    PipelineStore(database, lease).status.begin(RunStart("r", "q.yaml"))
    lease.release()
    assert deprovision(database, "q")
    assert {labels[0] for _, *labels in read(StoredMetrics(database, no_lag))} == {"p"}


def test_an_empty_store_has_an_empty_page(database: sa.Engine) -> None:
    assert page(StoredMetrics(database, no_lag).collect()) == ""
