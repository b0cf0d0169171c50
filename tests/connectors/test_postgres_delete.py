"""``pipelines delete`` and the slot of a postgres source: dropped with the pipeline, and never with changes in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from lab.kills import crashing
from lab.postgres_server import PostgresServer
from lab.postgres_tables import drop_slots
from lab.server_process import free_port
from lab.support import Lab, destination, queue, source
from pyspark.sql import SparkSession

from conduit_dagster.config.project import Project
from conduit_dagster.engine.operate.delete import delete
from conduit_dagster.engine.operate.subject import subject
from conduit_dagster.recovery.errors import ConduitError

pytestmark = pytest.mark.slow


@pytest.fixture
def url(postgres_server: PostgresServer) -> Iterator[str]:
    made = postgres_server.create_database()
    with psycopg.connect(made, autocommit=True) as connection:
        connection.execute("CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1)")
    yield made
    drop_slots(made)


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    return Lab(tmp_path, spark)


def slot_of(url: str) -> str:
    return f"of_{url.rpartition('/')[2]}"


def of_postgres(url: str, **more: str) -> dict[str, Any]:
    settings = {"url": url, "tables": "a", "logrepl.slotName": slot_of(url), "logrepl.publicationName": "pub", **more}
    return {"id": "in", "type": "source", "plugin": "postgres", "settings": settings}


def copied(lab: Lab, url: str, log: str = "positions", **more: str) -> None:
    """Run a pipeline that has read the table to its end."""
    lab.pipeline(
        connectors=[of_postgres(url, **more), destination()],
        delivery={"strategy": "exactly-once", "log": log},
        **{"dead-letter-queue": queue(0)},
    )
    assert lab.run().error is None


def there(url: str) -> tuple[list[str], list[str]]:
    """Return the database's slots and publications."""
    with psycopg.connect(url, autocommit=True) as connection:
        slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
        found = [connection.execute(slots), connection.execute("SELECT pubname FROM pg_publication")]
        return [row[0] for row in found[0]], [row[0] for row in found[1]]


def deleted(lab: Lab, **more: bool) -> dict[str, Any]:
    return delete(subject(Project.find(lab.root), "p"), "me", **more)


@contextmanager
def refused(code: str) -> Iterator[list[ConduitError]]:
    found: list[ConduitError] = []
    with pytest.raises(ConduitError) as caught:
        yield found
    found.append(caught.value)
    assert caught.value.code == code


@pytest.mark.parametrize("log", ["positions", "records"])
def test_slot_and_publication_go_with_the_pipeline(lab: Lab, url: str, log: str) -> None:
    copied(lab, url, log)
    both = [f"replication slot {slot_of(url)}", "publication pub"]
    assert deleted(lab, dry_run=True)["removed"] == both
    assert there(url) == ([slot_of(url)], ["pub"])
    assert (deleted(lab)["removed"], there(url)) == (both, ([], []))
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [{"id": 1}, {"id": 1}]


def test_changes_that_wait_are_not_lost_by_default(lab: Lab, url: str) -> None:
    copied(lab, url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("INSERT INTO a VALUES (2)")
    with refused("pipeline.would_lose") as found:
        deleted(lab)
    assert f"changes that wait in the replication slot {slot_of(url)}" in found[0].message
    assert there(url) == ([slot_of(url)], ["pub"])
    assert lab.run().error is None
    assert deleted(lab)["lost"] == []
    assert (lab.documents("out.jsonl"), there(url)) == ([{"id": 1}, {"id": 2}], ([], []))


def test_a_lost_ack_is_repeated_first(lab: Lab, url: str) -> None:
    """What was delivered does not count as waiting, even if the server was not told."""
    copied(lab, url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("INSERT INTO a VALUES (2)")
    with crashing("after-done"):
        lab.run()
    assert lab.documents("out.jsonl") == [{"id": 1}, {"id": 2}]
    assert deleted(lab)["lost"] == []


def test_a_lost_ack_of_a_join_is_repeated_first(lab: Lab, url: str) -> None:
    lab.write("in.jsonl", [{"n": 1}, {"n": 2}])
    lab.pipeline(connectors=[of_postgres(url), source(id="other"), destination()], delivery={}, **{"fan-in": "join"})
    assert lab.run().error is None
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("INSERT INTO a VALUES (2)")
    with crashing("after-done"):
        lab.run()
    assert len(lab.documents("out.jsonl")) == 2
    assert deleted(lab)["lost"] == []
    assert there(url) == ([], [])


def test_without_auto_cleanup_both_stay(lab: Lab, url: str) -> None:
    copied(lab, url, **{"logrepl.autoCleanup": "false"})
    assert (deleted(lab)["removed"], there(url)) == ([], ([slot_of(url)], ["pub"]))


def test_a_publication_of_others_stays(lab: Lab, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE PUBLICATION pub FOR TABLE a; COMMENT ON PUBLICATION pub IS 'of the DBA'")
    copied(lab, url)
    assert deleted(lab)["removed"] == [f"replication slot {slot_of(url)}"]
    assert there(url) == ([], ["pub"])


def test_a_slot_that_another_session_reads_stays_with_all_else(lab: Lab, url: str) -> None:
    copied(lab, url)
    with closing(psycopg.connect(f"{url}?replication=database", autocommit=True)) as reader:
        statement = f"START_REPLICATION SLOT {slot_of(url)} LOGICAL 0/0 (proto_version '1', publication_names 'pub')"
        reader.pgconn.send_query(statement.encode())
        reader.pgconn.flush()
        while reader.pgconn.is_busy():
            reader.pgconn.consume_input()
        reader.pgconn.get_result()
        with refused("postgres.slot_active"):
            deleted(lab, force=True)
    drop = deleted(lab)
    assert (len(drop["removed"]), there(url)) == (2, ([], []))


def test_a_slot_that_the_file_no_longer_names_is_named(lab: Lab, url: str) -> None:
    copied(lab, url)
    (lab.root / "pipelines" / "p.yaml").unlink()
    with refused("pipeline.would_lose") as found:
        deleted(lab)
    assert f"replication slot {slot_of(url)} of database {url.rpartition('/')[2]} (source in)" in found[0].message
    assert "--file PATH" in (found[0].fix or "")
    assert deleted(lab, force=True)["left"] == [
        f"replication slot {slot_of(url)} of database {url.rpartition('/')[2]} (source in)"
    ]
    assert there(url) == ([slot_of(url)], ["pub"])


def test_polling_leaves_nothing(lab: Lab, url: str) -> None:
    copied(lab, url, cdcMode="long_polling")
    assert (deleted(lab)["removed"], there(url)) == ([], ([], []))


def test_a_slot_that_the_source_never_used_stays(lab: Lab, url: str) -> None:
    """It may be another program's, under Conduit's default name."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot_of(url),))
    copied(lab, url, snapshotMode="initial_only")
    lab.pipeline(
        connectors=[of_postgres(url), destination()],
        delivery={"strategy": "exactly-once"},
        **{"dead-letter-queue": queue(0)},
    )
    assert deleted(lab)["removed"] == []
    assert there(url)[0] == [slot_of(url)]


def test_a_server_that_is_gone_keeps_nothing_from_being_deleted_by_force(lab: Lab, url: str) -> None:
    copied(lab, url)
    gone = url.replace(url.rpartition("@")[2].partition("/")[0], f"127.0.0.1:{free_port()}")
    lab.pipeline(
        connectors=[of_postgres(gone), destination()],
        delivery={"strategy": "exactly-once"},
        **{"dead-letter-queue": queue(0)},
    )
    with refused("postgres.unreachable"):
        deleted(lab)
    (left,) = deleted(lab, force=True)["left"]
    assert left.startswith(f"replication slot {slot_of(url)} of database")
