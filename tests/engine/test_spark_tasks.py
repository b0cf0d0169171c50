"""Files that only one of driver and task has: the error says so, in place of one about a file that is lost."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from lab.support import DECODE, Lab, destination, queue, source
from pyspark.sql import SparkSession

from conduit_dagster.engine.spark_tasks import require_seen
from conduit_dagster.engine.stage_job import TaskError, task_error
from conduit_dagster.recovery.errors import FatalError, TransientError

ONCE = """
from conduit_dagster.record import Record
from conduit_dagster.sdk import Source, Split

class Once(Source):
    name = "once"
    replayable = False

    def initial(self):
        return 0

    def latest(self, start, limit, horizon=None):
        return 20

    def split(self, start, end, n):
        return [Split(start, 0)]

    def read(self, split, options):
        yield [Record(i + 1, {}, b'{"i": %d}' % i) for i in range(split.start, 20)]
"""


def _reported(error: BaseException) -> TaskError:
    sent = msgspec.msgpack.encode(task_error(error, "a task failed"))
    return msgspec.structs.replace(msgspec.msgpack.decode(sent, type=TaskError), host="worker-7")


@pytest.mark.parametrize("code", ["log.missing", "file.missing"])
def test_a_file_that_only_the_task_misses_is_not_given_up(tmp_path: Path, code: str) -> None:
    file = tmp_path / "part.parquet"
    told = _reported(FatalError("it is missing", code=code, place=str(file), fix="give it up", node="p:in"))
    assert told.as_error().code == code
    file.touch()
    error = told.as_error()
    assert (type(error), error.code, error.place) == (TransientError, "spark.not_shared", str(file))
    assert (error.node, "worker-7" in error.message) == ("p:in", True)


def test_a_file_that_the_driver_does_not_see_is_told(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.touch()
    require_seen("worker-7", [str(here), here.as_uri(), "s3://bucket/part"])
    with pytest.raises(TransientError, match="a task on worker-7 has written") as caught:
        require_seen("worker-7", [str(here), str(tmp_path / "there")])
    assert (caught.value.code, caught.value.place) == ("spark.not_shared", str(tmp_path / "there"))


@pytest.mark.parametrize("log", ["positions", "records", "records, before the step"])
def test_a_step_is_not_decided_with_files_that_the_driver_does_not_see(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, log: str
) -> None:
    """On a real cluster, where one worker lacks the folder: tests/spark/test_cluster.py."""
    lab = Lab(tmp_path, spark)
    lab.write("in.jsonl", [{"i": i} for i in range(20)])
    lab.write("plugins/once.py", ONCE.splitlines())
    is_logged_first = "," in log
    lab.pipeline(
        connectors=[{**source(), "plugin": "once" if is_logged_first else "file"}, destination()],
        processors=[DECODE],
        delivery={"strategy": "exactly-once", "log": log.split(",")[0]},
        **{"dead-letter-queue": queue()},
    )
    with monkeypatch.context() as hidden:
        hidden.setattr("conduit_dagster.engine.spark_tasks.os.path.lexists", lambda path: False)
        error = lab.run().error
    assert error is not None and error.code == "spark.not_shared"
    assert ("log" in Path(error.place or "").parts) == is_logged_first
    assert lab.run().error is None
    assert [row["i"] for row in lab.documents("out.jsonl")] == list(range(20))
