"""Operating on a destination that stores delivery hashes: what an operator skips is claimed there first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from lab.operating import offsets
from lab.postgres_server import PostgresServer
from lab.support import DECODE, Lab, queue, source
from pyspark.sql import SparkSession

from conduit_dagster.connectors.postgres import connection
from conduit_dagster.engine.delivery_progress import DeliveryHashes, Shipment
from conduit_dagster.engine.operate.mark import mark
from conduit_dagster.engine.operate.mark_records import mark_records
from conduit_dagster.engine.operate.one_record import step
from conduit_dagster.engine.operate.open_delivery import NackClaims, open_delivery
from conduit_dagster.engine.operate.pipeline_lock import PipelineLock, owned
from conduit_dagster.engine.run_options import RunOptions
from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.sdk import AlreadyClaimed, StagedDestination
from conduit_dagster.state.claim import open_store
from conduit_dagster.state.steps import DeliveryChild


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    url = postgres_server.create_database()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE t (i int)")
    return url


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession, url: str) -> Lab:
    """An exactly-once pipeline of four records whose only step is prepared and not published."""
    lab = Lab(tmp_path, spark)
    settings = {"url": url, "table": "t"}
    lab.write("in.jsonl", [{"i": i} for i in range(4)])
    lab.pipeline(
        connectors=[source(), {"id": "out", "type": "destination", "plugin": "postgres", "settings": settings}],
        processors=[DECODE],
        delivery={"strategy": "exactly-once"},
        **{"dead-letter-queue": queue()},
    )
    return lab


@contextmanager
def lock(lab: Lab, spark: SparkSession) -> Iterator[PipelineLock]:
    catalogue = lab.catalogue()
    bound, project = catalogue.get("p"), catalogue.project
    assert bound is not None
    database = open_store(project.state_url, project.home)
    options = RunOptions(project.staging_url, log=project.log_url)
    try:
        with owned(bound, database, options, lambda: spark, "me") as held:
            yield held
    finally:
        database.dispose()


def rows(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT i FROM t ORDER BY i")]


def claims(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        query = "SELECT state FROM conduit_deliveries WHERE state NOT LIKE 'mark %' ORDER BY state"
        return [row[0] for row in connection.execute(query)]


def test_marked_records_are_claimed_and_the_rest_is_delivered(
    lab: Lab, spark: SparkSession, url: str, crashes: Any
) -> None:
    crashes(lab, "before-publish")
    with lock(lab, spark) as held:
        facts = mark(held, "out", 1)
        assert (facts["did"], facts["offsets"], facts["delivered"], facts["next"]) == ("marked", [0, 1], 0, 2)
        assert claims(url) == ["nacked", "nacked", "split"]
    assert lab.run().error is None
    assert rows(url) == [2, 3]
    assert offsets(lab)["out"] == 3
    assert lab.letters() == []


def test_single_records_are_claimed_in_any_order_and_the_rest_is_delivered_once(
    lab: Lab, spark: SparkSession, url: str, crashes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a frozen owner still tries to publish: the whole, its current piece, or a marked record."""
    crashes(lab, "before-publish")
    with lock(lab, spark) as frozen:
        late = open_delivery(frozen, "out")
        assert late is not None and isinstance(late.destination, StagedDestination)
        frozen.closing.pop_all()  # a frozen owner closes nothing
    with lock(lab, spark) as held:
        facts = mark_records(held, "out", [range(2, 3)])
        assert (facts["did"], facts["offsets"], facts["delivered"], facts["next"]) == ("marked", [2], 0, 0)
        assert claims(url) == ["nacked", "split"]
        mark_records(held, "out", [range(1)])
    names = DeliveryHashes(late.lock.pipeline)
    pieces = [late.shipment.whole()]
    pieces += [names.delivery(late.shipment, DeliveryChild(skip, take)) for skip, take in ((0, 1), (0, 2), (2, 1))]
    monkeypatch.setattr(connection, "_IDLE", 600.0)  # however slow the machine is, it has not noticed yet
    with pytest.raises(ConduitError):  # the operator's fence ended its connection
        late.destination.publish(pieces[0])
    for piece in pieces:
        with pytest.raises(AlreadyClaimed):
            late.destination.publish(piece)
    ran = lab.run()
    assert ran.error is None
    assert rows(url) == [1, 3]
    assert offsets(lab)["out"] == 3
    assert lab.letters() == []
    assert ran.progress.delivered["out"] == 2


def test_a_frozen_owner_can_deliver_nothing_that_was_marked(
    lab: Lab, spark: SparkSession, url: str, crashes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a connection that was idle for longer is looked at first, and made anew at once
    monkeypatch.setattr("conduit_dagster.connectors.postgres.connection._IDLE", 3_600.0)
    crashes(lab, "before-publish")
    with lock(lab, spark) as frozen:
        late = open_delivery(frozen, "out")
        assert late is not None and isinstance(late.destination, StagedDestination)
        frozen.closing.pop_all()  # a frozen owner closes nothing
    with lock(lab, spark) as held:
        mark(held, "out", 3)
    monkeypatch.setattr(connection, "_IDLE", 600.0)  # however slow the machine is, it has not noticed yet
    with pytest.raises(ConduitError):  # the operator's fence ended its connection
        late.destination.publish(late.shipment.whole())
    with pytest.raises(AlreadyClaimed):
        late.destination.publish(late.shipment.whole())
    piece = DeliveryHashes(late.lock.pipeline).delivery(late.shipment, DeliveryChild(0, 1))
    with pytest.raises(AlreadyClaimed):
        late.destination.publish(piece)
    assert lab.run().progress.read == 0
    assert rows(url) == []
    assert offsets(lab)["out"] == 3


def test_what_turns_out_to_be_delivered_counts_as_delivered(
    lab: Lab, spark: SparkSession, url: str, crashes: Any
) -> None:
    """Another owner had sent the first record when the operator marks two."""
    crashes(lab, "before-publish")
    with lock(lab, spark) as held:
        assert step(held, "out")["did"] == "sent"
        opened = open_delivery(held, "out", change=False)
        assert opened is not None
        # as if the store had not received the ack
        opened.shipment.progress = Shipment(
            opened.shipment.plan, opened.shipment.decision, opened.shipment.staged
        ).progress
        claiming = NackClaims(opened)
        claiming.skip_to(2)
        assert claiming.delivered == 1
        assert (opened.shipment.progress.handled, opened.shipment.progress.refused) == (2, 1)


def test_a_step_sends_one_row(lab: Lab, spark: SparkSession, url: str, crashes: Any) -> None:
    crashes(lab, "before-publish")
    with lock(lab, spark) as held:
        first, second = step(held, "out"), step(held, "out")
    assert [(facts["did"], facts["offset"]) for facts in (first, second)] == [("sent", 0), ("sent", 1)]
    assert rows(url) == [0, 1]
    assert offsets(lab)["out"] == 1
    assert lab.run().error is None
    assert rows(url) == [0, 1, 2, 3]


def test_backwards_is_refused_where_rows_are_kept_under_their_hash(lab: Lab, spark: SparkSession, crashes: Any) -> None:
    crashes(lab, "before-publish")
    with lock(lab, spark) as held:
        step(held, "out")
        step(held, "out")
        with pytest.raises(ConduitError) as raised:
            mark(held, "out", 0, force=True)
    assert raised.value.code == "offsets.kept_once"


def test_all_of_a_delivery_that_was_delivered_meanwhile(lab: Lab, spark: SparkSession, url: str, crashes: Any) -> None:
    crashes(lab, "after-publish")
    with lock(lab, spark) as held:
        assert mark(held, "out", 0)["did"] == "held"
    assert lab.run().error is None
    assert rows(url) == [0, 1, 2, 3]
    assert offsets(lab)["out"] == 3
