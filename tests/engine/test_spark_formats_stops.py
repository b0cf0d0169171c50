"""``spark:FORMAT``: a forced stop while Spark reads or writes for a connector."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from lab.choice import some
from lab.spark_formats import build, given, taken
from lab.stopping import forced_stop_once
from lab.support import Lab, destination
from lab.waiting import wait_until
from pyspark.sql import SparkSession

from conduit_dagster.cli.main import main

ONE_RUN = Path(__file__).parents[1] / "lab" / "one_run.py"
WAITING = """
import time
from pathlib import Path

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceWriter
from pyspark.sql.datasource import InputPartition, WriterCommitMessage


def wait(folder):
    Path(folder, "started").touch()
    while Path(folder).exists() and not Path(folder, "go").exists():
        time.sleep(0.02)


class Waiting(DataSource):
    @classmethod
    def name(cls):
        return "waiting"

    def schema(self):
        return "i BIGINT"

    def reader(self, schema):
        return Reader(self.options["folder"])

    def streamReader(self, schema):
        return Stream(self.options["folder"])

    def writer(self, schema, overwrite):
        return Writer(self.options["folder"])


class Reader(DataSourceReader):
    def __init__(self, folder):
        self.folder = folder

    def read(self, partition):
        wait(self.folder)
        yield from ((i,) for i in range(3))


class Stream(DataSourceStreamReader):
    def __init__(self, folder):
        self.folder = folder

    def initialOffset(self):
        return {"at": 0}

    def latestOffset(self):
        return {"at": 3}

    def partitions(self, start, end):
        return [InputPartition((start["at"], end["at"]))]

    def read(self, partition):
        wait(self.folder)
        return iter([(i,) for i in range(*partition.value)])


class Writer(DataSourceWriter):
    def __init__(self, folder):
        self.folder = folder

    def write(self, rows):
        wait(self.folder)
        Path(self.folder, "rows").write_text(" ".join(str(row.i) for row in rows))
        return WriterCommitMessage()
"""


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    return Lab(tmp_path, spark)


def build_waiting(lab: Lab, waits: str) -> None:
    """A pipeline with a connector for which Spark waits for a file ``go``; it creates the file ``started``."""
    (lab.root / "waiting.py").write_text(WAITING)
    waiting = {"register": "waiting.py:Waiting", "folder": str(lab.root)}
    if waits == "append":
        lab.write("in.csv", ["i", "0", "1", "2"])
        source = given("csv", path="in.csv", header="true", schema="i BIGINT")
        build(lab, source, taken("waiting", **waiting), delivery={"strategy": "at-least-once"})
    else:
        build(lab, given("waiting", read=waits, **waiting), destination())


def came(lab: Lab, waits: str) -> bool:
    """All of it, once."""
    if waits == "append":
        return (lab.root / "rows").read_text() == "0 1 2"
    return lab.documents("out.jsonl") == [{"i": i} for i in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("waits", ["batch", "stream", "append"])
def test_a_forced_stop_ends_what_spark_does_for_a_connector(lab: Lab, waits: str) -> None:
    """However long it would take, and none of it counts."""
    build_waiting(lab, waits)
    forced_stop_once(lab, (lab.root / "started").exists, "Spark is at it")
    (lab.root / "go").touch()
    assert lab.run().error is None
    assert came(lab, waits)


@pytest.mark.slow
@pytest.mark.parametrize("waits", some(["stream"], ["append"]))
def test_a_forced_stop_on_spark_connect(
    tmp_path: Path, connect_server: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], waits: str
) -> None:
    """An operator requests it in another process."""
    lab = Lab(tmp_path)
    build_waiting(lab, waits)
    monkeypatch.chdir(tmp_path)

    def started() -> Any:
        return connect_server.start(ONE_RUN, tmp_path, connect_server.url, stdout=subprocess.PIPE)

    with started() as process:
        wait_until(
            (tmp_path / "started").exists, "Spark is at it", 120, over=lambda: process.poll() is not None,
            said=lambda: process.communicate()[0].decode() if process.poll() is not None else "",
        )  # fmt: skip
        assert main(("pipelines", "stop", "p", "--force")) == 0
        assert capsys.readouterr().out.strip() == "p: degraded"
        said, _ = process.communicate(timeout=150)
    assert b"pipeline.forced_stop" in said
    (tmp_path / "go").touch()
    with started() as process:
        said, _ = process.communicate(timeout=200)
    assert b"'error': None" in said, said.decode()
    assert came(lab, waits)
