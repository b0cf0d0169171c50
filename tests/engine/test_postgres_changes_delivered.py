"""Changes of two tables through a whole pipeline: the tables equal the changes applied one by one."""

from __future__ import annotations

import random

import msgspec
import psycopg
import pytest
from lab.changes_model import KINDS, TABLES, VALUES, Change, Model, by_id, create_tables
from lab.kills import crashing
from lab.postgres_server import PostgresServer
from lab.support import DECODE, Lab, processor, queue, source

from conduit_dagster.record import Record, envelope
from conduit_dagster.recovery.policy import PipelineStatus

pytestmark = pytest.mark.slow


def history(seed: int, count: int) -> list[Change]:
    """Few keys and all kinds; an occasional truncate."""
    pick = random.Random(seed)

    def values() -> dict[str, int]:
        return {name: pick.randrange(10) for name in pick.choice([VALUES, VALUES, ("a", "b"), ("c",)])}

    return [
        Change(
            "truncate" if pick.random() < 0.01 else pick.choice(KINDS),
            pick.choice(list(TABLES)),
            pick.randrange(20),
            pick.randrange(20),
            values(),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("log", ["positions", "records"])
def test_the_tables_are_what_the_changes_leave(lab: Lab, postgres_server: PostgresServer, log: str) -> None:
    """A crash in the middle loses or repeats nothing of a delivery; records that a table refuses are dead letters."""
    url = postgres_server.create_database()
    # with this seed keys are exchanged, too
    model, changes = Model("update"), history(14, 400)
    codes = [code for start in range(0, 400, 100) for code in model.apply_all(changes[start : start + 100])]
    assert not model.is_doubtful
    refused = [number for number, code in enumerate(codes) if code]
    assert 5 < len(refused) < 100 and all(model.tables.values())
    records = [change.record() for change in changes]
    for number, record in enumerate(records):
        record.metadata["n"] = str(number)
    lab.write("in.jsonl", [msgspec.to_builtins(envelope(record)) for record in records])
    settings = {"url": url, "table": '{{ index .Metadata "opencdc.collection" }}', "on-conflict": "update"}
    lab.pipeline(
        connectors=[source(), {"id": "out", "type": "destination", "plugin": "postgres", "settings": settings}],
        processors=[DECODE, processor("unwrap", "unwrap.opencdc")],
        delivery={"strategy": "exactly-once", "log": log, "batch-size": 100},
        **{"dead-letter-queue": queue(0)},
    )
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(create_tables().encode())
        with crashing("mid-publish", 2):
            lab.run()
        result = lab.run()
        assert (result.status, result.error) == (PipelineStatus.STOPPED, None)
        for name, rows in model.tables.items():
            assert by_id(connection.execute(f"SELECT * FROM {name}".encode()).fetchall()) == rows
    letters = [letter["payload"]["after"]["metadata"] for letter in lab.documents("dead.jsonl")]
    assert [int(metadata["n"]) for metadata in letters] == refused


def test_rows_that_refer_to_later_ones_arrive_beside_one_that_is_refused(
    lab: Lab, postgres_server: PostgresServer
) -> None:
    """With a deferred reference, though the refused row lies between a row and the one that it refers to."""
    url = postgres_server.create_database()
    records = [
        Record(i, {"opencdc.collection": "c"}, {"id": i, "p": i}, {"id": i}, operation="create") for i in range(9)
    ]
    records += [
        Record(i, {"opencdc.collection": "p"}, {"id": i}, {"id": i}, operation="create") for i in range(9) if i != 4
    ]
    lab.write("in.jsonl", [msgspec.to_builtins(envelope(record)) for record in records])
    settings = {"url": url, "table": '{{ index .Metadata "opencdc.collection" }}'}
    lab.pipeline(
        connectors=[source(), {"id": "out", "type": "destination", "plugin": "postgres", "settings": settings}],
        processors=[DECODE, processor("unwrap", "unwrap.opencdc")],
        delivery={"strategy": "exactly-once"},
        **{"dead-letter-queue": queue(0)},
    )
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE p (id int PRIMARY KEY)")
        connection.execute("CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p DEFERRABLE INITIALLY DEFERRED)")
        with crashing("after-split"):
            lab.run()
        result = lab.run()
        assert (result.status, result.error) == (PipelineStatus.STOPPED, None)
        found = connection.execute("SELECT id FROM c ORDER BY id").fetchall()
    assert [number for (number,) in found] == [i for i in range(9) if i != 4]
    assert len(lab.documents("dead.jsonl")) == 1
