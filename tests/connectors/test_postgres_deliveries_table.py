"""A table of hashes that is lost while a step is prepared: nothing says whether the step was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lab.kills import crashing
from lab.postgres_lab import PostgresLab, create
from lab.support import DECODE, Lab, queue, source
from pyspark.sql import SparkSession

from conduit_dagster.engine.operate.mark import mark
from conduit_dagster.engine.operate.pipeline_lock import owned
from conduit_dagster.engine.run_options import RunOptions
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.state.claim import open_store

_LOSSES = {
    "dropped": "DROP TABLE conduit_deliveries",
    "emptied": "TRUNCATE conduit_deliveries",
    "deleted from": "DELETE FROM conduit_deliveries WHERE pipeline = 'p'",
}


class _Pipe:
    """A pipeline from a file into a table without a key, exactly once."""

    def __init__(self, postgres: PostgresLab, root: Path, spark: SparkSession) -> None:
        self.postgres, self.lab, self._spark = postgres, Lab(root, spark), spark
        postgres.execute("CREATE TABLE t (i int)")
        self.lab.write("in.jsonl", [{"i": i} for i in range(5)])
        self.write()

    def write(self, **more: str) -> None:
        settings = {"url": self.postgres.url, "table": "t", **more}
        out: dict[str, Any] = {"id": "out", "type": "destination", "plugin": "postgres", "settings": settings}
        delivery = {"strategy": "exactly-once"}
        self.lab.pipeline(
            connectors=[source(), out], processors=[DECODE], delivery=delivery, **{"dead-letter-queue": queue()}
        )

    def crash(self, point: str) -> None:
        """Run ten lines, and crash with the second five."""
        assert self.lab.run().error is None
        self.lab.write("in.jsonl", [{"i": i} for i in range(5, 10)], mode="a")
        with crashing(point):
            self.lab.run()

    @property
    def there(self) -> list[int]:
        return [row[0] for row in self.postgres.rows()]

    def mark(self, offset: int) -> str:
        """Do what ``offsets mark p out OFFSET`` does."""
        bound, project = self.lab.catalogue().get("p"), self.lab.catalogue().project
        assert bound is not None
        options = RunOptions(project.staging_url, log=project.log_url)
        database = open_store(project.state_url, project.home)
        try:
            with owned(bound, database, options, lambda: self._spark, "me") as lock:
                return mark(lock, "out", offset)["did"]
        finally:
            database.dispose()


@pytest.fixture
def pipe(lab: PostgresLab, tmp_path: Path, spark: SparkSession) -> _Pipe:
    return _Pipe(lab, tmp_path, spark)


@pytest.mark.parametrize("loss", _LOSSES)
@pytest.mark.parametrize("is_written", [True, False])
def test_a_step_whose_hash_may_be_lost_is_not_taken_for_unwritten(pipe: _Pipe, loss: str, is_written: bool) -> None:
    """Both ways on, as the error says: look at the destination, then mark the records or have them sent again."""
    pipe.crash("after-publish" if is_written else "before-publish")
    pipe.postgres.execute(_LOSSES[loss])
    error = pipe.lab.run().error
    assert error is not None and error.code == "postgres.deliveries_gone" and error.fatal
    assert pipe.there == list(range(10 if is_written else 5))
    pipe.write(**{"on-deliveries-gone": "resend"})
    if is_written:
        assert pipe.mark(9) == "marked"
    assert pipe.lab.run().error is None
    assert pipe.there == list(range(10))
    pipe.write()
    assert pipe.lab.run().error is None


def test_a_table_that_is_restored_whole_is_known(pipe: _Pipe) -> None:
    pipe.crash("after-publish")
    pipe.postgres.execute("ALTER TABLE conduit_deliveries RENAME TO dump")
    pipe.postgres.execute("CREATE TABLE conduit_deliveries (LIKE dump INCLUDING ALL)")
    pipe.postgres.execute("INSERT INTO conduit_deliveries SELECT * FROM dump")
    assert pipe.lab.run().error is None
    assert pipe.there == list(range(10))


def test_a_table_that_was_emptied_between_steps_stops_nothing(pipe: _Pipe) -> None:
    assert pipe.lab.run().error is None
    pipe.postgres.execute("DROP TABLE conduit_deliveries")
    pipe.crash("before-publish")
    assert pipe.lab.run().error is None
    assert pipe.there == list(range(10))


def test_a_table_that_is_dropped_during_a_run_is_named_and_made_anew(lab: PostgresLab) -> None:
    lab.execute("CREATE TABLE t (id int)")
    destination = lab.destination()
    lab.deliver(destination, [create(1)])
    lab.execute("DROP TABLE conduit_deliveries")
    delivery = lab.stage(destination, [create(2)])
    for look in (destination.publish, destination.holds):
        with pytest.raises(TransientError, match="conduit_deliveries was dropped") as caught:
            look(delivery)
        assert caught.value.code == "postgres.deliveries_gone"
    destination.close()
    destination.publish(delivery)
    assert lab.rows() == [(1,), (2,)]


_ALTERED = {
    "a constraint": ("ALTER TABLE conduit_deliveries ADD CHECK (records < 0) NOT VALID", "deliveries_altered"),
    "row security": ("ALTER TABLE conduit_deliveries ENABLE ROW LEVEL SECURITY", "no_privilege"),
}


@pytest.mark.parametrize("case", _ALTERED)
def test_a_table_that_takes_no_hash_is_named_and_refuses_no_record(lab: PostgresLab, case: str) -> None:
    change, code = _ALTERED[case]
    lab.execute("CREATE TABLE t (id int); CREATE ROLE guest LOGIN PASSWORD 'welcome'")
    lab.destination().check()
    lab.execute(f"{change}; GRANT ALL ON conduit_deliveries, t TO guest; GRANT USAGE ON SCHEMA public TO guest")
    destination = lab.destination(url=f"postgresql://guest:welcome@{lab.url.partition('@')[2]}")
    with pytest.raises(FatalError) as caught:
        lab.deliver(destination, [create(1)])
    assert caught.value.code == f"postgres.{code}"
    assert "conduit_deliveries" in caught.value.message + str(caught.value.place)
    destination.close()
    lab.execute("DROP OWNED BY guest; DROP ROLE guest")
