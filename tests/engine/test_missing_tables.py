"""Records that name missing tables: the pipeline continues, and delivers the others exactly once."""

from __future__ import annotations

import psycopg
from lab.postgres_server import PostgresServer
from lab.support import DECODE, Lab, processor, queue, source

from conduit_dagster.recovery.policy import PipelineStatus

# a row that is too wide is known when it is staged, one that is too big for a page only when it is written
BIG = {f"c{place}": 0.5 for place in range(1_500)}


def test_one_record_stops_nothing(lab: Lab, postgres_server: PostgresServer) -> None:
    """With ``window-size: 0``, which accepts every nack."""
    url = postgres_server.create_database()
    with psycopg.connect(url, autocommit=True) as connection:
        columns = ", ".join(f"{name} float8" for name in BIG)
        connection.execute(f"CREATE TABLE good (id int, t text, {columns})".encode())
    names = ["good", "nowhere", "good", "pg_catalog.pg_class", "no schema.t", "conduit_deliveries", "good", "good"]
    records = [{"id": number, "t": name, **(BIG if number == 6 else {})} for number, name in enumerate(names)]
    lab.write("in.jsonl", records)
    settings = {"url": url, "table": '{{ index .Metadata "t" }}'}
    lab.pipeline(
        connectors=[source(), {"id": "out", "type": "destination", "plugin": "postgres", "settings": settings}],
        processors=[
            DECODE,
            processor("named", "field.set", field='.Metadata["t"]', value="{{ .Payload.After.t }}"),
        ],
        delivery={"strategy": "exactly-once"},
        **{"dead-letter-queue": queue(0)},
    )
    for _ in range(2):
        result = lab.run()
        assert (result.status, result.error) == (PipelineStatus.STOPPED, None)
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT id FROM good ORDER BY id").fetchall() == [(0,), (2,), (7,)]
        assert sorted(letter[2]["id"] for letter in lab.letters()) == [1, 3, 4, 5, 6]
