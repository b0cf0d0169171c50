"""``spark:FORMAT``: formats of the JVM and Python data sources, as sources and as destinations."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from lab.kills import crashing, hooked
from lab.spark_formats import build, given, taken
from lab.support import Lab, destination, processor
from pyspark.sql import SparkSession

from conduit_dagster.cli.main import main

pytestmark = pytest.mark.slow

ONE_RUN = Path(__file__).parents[1] / "lab" / "one_run.py"
PYTHON = """
from pathlib import Path

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter
from pyspark.sql.datasource import InputPartition, SimpleDataSourceStreamReader, WriterCommitMessage


class Counting(DataSource):
    @classmethod
    def name(cls):
        return "counting"

    def schema(self):
        return "i BIGINT, s STRING"

    def reader(self, schema):
        return Reader(int(self.options["count"]))

    def simpleStreamReader(self, schema):
        return Stream(Path(self.options["upto"]))

    def writer(self, schema, overwrite):
        return Writer(self.options["path"])


class Reader(DataSourceReader):
    def __init__(self, count):
        self.count = count

    def partitions(self):
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition):
        half = self.count // 2
        for i in range(half * partition.value, half * (partition.value + 1)):
            yield (i, str(i))


class Stream(SimpleDataSourceStreamReader):
    def __init__(self, upto):
        self.upto = upto

    def initialOffset(self):
        return {"at": 0}

    def read(self, start):
        end = int(self.upto.read_text())
        return iter([(i, str(i)) for i in range(start["at"], end)]), {"at": end}

    def readBetweenOffsets(self, start, end):
        return iter([(i, str(i)) for i in range(start["at"], end["at"])])


class Writer(DataSourceWriter):
    def __init__(self, path):
        self.path = path

    def write(self, rows):
        import uuid

        lines = [f"{row.i},{row.s}" for row in rows]
        if "13,13" in lines and Path(self.path, "refuse").exists():
            raise ValueError("no thirteen")
        Path(self.path, uuid.uuid4().hex).write_text("\\n".join(lines))
        return WriterCommitMessage()
"""


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    lab = Lab(tmp_path, spark)
    (tmp_path / "counting.py").write_text(PYTHON)
    (tmp_path / "written").mkdir()
    return lab


COUNTING = {"register": "counting.py:Counting"}
ROWS = [{"i": i, "s": str(i)} for i in range(30)]


def test_a_snapshot_of_a_jvm_format_once(lab: Lab) -> None:
    """Options are Spark's own, including the header. Later rows belong to another snapshot."""
    lab.write("in.csv", ["i,s", *(f"{i},{i}" for i in range(30))])
    source = given("csv", path="in.csv", header="true", schema="i BIGINT, s STRING")
    build(lab, source, destination())
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == ROWS
    lab.write("in.csv", ["30,30"], mode="a")
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == ROWS
    source["settings"]["refresh"] = "0s"
    build(lab, source, destination())
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [*ROWS, *ROWS, {"i": 30, "s": "30"}]


def test_a_python_data_source(lab: Lab) -> None:
    build(lab, given("counting", count="30", **COUNTING), destination())
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == ROWS


def test_another_table_is_another_source(lab: Lab) -> None:
    """Credentials do not change which data are read."""
    build(lab, given("counting", count="30", password="a", **COUNTING), destination())
    assert lab.run().error is None
    build(lab, given("counting", count="30", password="b", **COUNTING), destination())
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == ROWS
    build(lab, given("counting", count="10", password="b", **COUNTING), destination())
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == [*ROWS, *ROWS[:10]]


def test_killed_at_each_line(lab: Lab) -> None:
    passed = Counter[str]()

    def make(name: str) -> None:
        build(lab, given("counting", count="30", **COUNTING), destination(path=f"./{name}.jsonl"), name=name)

    make("whole")
    with hooked(lambda point, pipeline: passed.update([point])):
        assert lab.run("whole").error is None
    del passed["after-lease"]  # a crash in this process keeps the lease
    for number, point in enumerate(passed):
        make(f"p{number}")
        with crashing(point, min(passed[point], 2)):
            lab.run(f"p{number}")
        assert lab.run(f"p{number}").error is None
        assert lab.documents(f"p{number}.jsonl") == ROWS, point


@pytest.mark.parametrize("kind", ["python", "json"])
def test_a_stream_brings_what_comes(lab: Lab, kind: str) -> None:
    """Three runs, each drains the existing rows; the query's checkpoint knows its progress."""
    if kind == "python":
        source = given("counting", read="stream", upto=str(lab.root / "upto"), **COUNTING)
    else:
        source = given("json", read="stream", path="in", schema="i BIGINT, s STRING")
    for upto in (10, 10, 25):
        (lab.root / "upto").write_text(str(upto))
        lab.write(f"in/{upto}.json", ROWS[10 if upto == 25 else 0 : upto])
        build(lab, source, destination())
        assert lab.run().error is None
        assert lab.documents("out.jsonl") == ROWS[:upto]


def test_a_stream_that_fails_brings_what_came_before(lab: Lab) -> None:
    (lab.root / "in").mkdir()
    lab.write("in/1.json", ['{"i": 1}'])
    lab.write("in/2.json", ["no JSON"])
    options = {"schema": "i BIGINT", "maxFilesPerTrigger": "1", "mode": "FAILFAST"}
    os.utime(lab.root / "in" / "1.json", (1, 1))  # its files are read by time
    build(lab, given("json", path="in", read="stream", **options), destination("file", "./out.jsonl"))
    for _ in range(2):
        error = lab.run().error
        assert error is not None and error.code == "spark.format_failed"
    assert lab.documents("out.jsonl") == [{"i": 1}]


def test_what_was_acked_goes_after_a_while(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Except the newest batch; a rewind to removed rows reports it."""
    for upto in (5, 10, 15):
        (lab.root / "upto").write_text(str(upto))
        source = given("counting", read="stream", keep="0s", upto=str(lab.root / "upto"), **COUNTING)
        build(lab, source, destination())
        assert lab.run().error is None
    (landing,) = (lab.root / ".conduit" / "log" / "p" / "~landing" / "in").iterdir()
    assert [path.name for path in sorted(landing.glob("*.json"))] == ["00000003.json"]
    assert len(list((landing / "stream").glob("*.parquet"))) <= 2
    assert lab.documents("out.jsonl") == ROWS[:15]
    monkeypatch.chdir(lab.root)
    assert main(("positions", "rewind", "p", "--to-start")) == 0
    error = lab.run().error
    assert error is not None and error.fatal and error.code == "spark.landing_removed"


@pytest.mark.parametrize("lost", ["moved", "gone"])
def test_a_landing_that_was_read_and_is_not_there(lab: Lab, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    """Nothing lands in another folder, where it would count as read. Back in its place, the landing is read on."""

    def run(upto: int) -> Any:
        (lab.root / "upto").write_text(str(upto))
        build(lab, given("counting", read="stream", upto=str(lab.root / "upto"), **COUNTING), destination())
        return lab.run().error

    log, settings = lab.root / ".conduit" / "log", lab.root / "conduit.yaml"
    assert [run(5), run(10)] == [None, None]
    if lost == "moved":
        settings.write_text("state: {log: ./elsewhere}\n")
    else:
        log.rename(lab.root / "away")
    for _ in range(2):
        error = run(15)
        assert error is not None and error.fatal and error.code == "spark.landing_lost"
    if lost == "moved":
        settings.unlink()
    else:
        shutil.rmtree(log, ignore_errors=True)
        (lab.root / "away").rename(log)
    assert run(15) is None
    assert lab.documents("out.jsonl") == ROWS[:15]
    shutil.rmtree(log)
    monkeypatch.chdir(lab.root)
    assert main(("positions", "rewind", "p", "--to-start")) == 0
    assert run(20) is None
    assert lab.documents("out.jsonl") == ROWS[:15] + ROWS[:20]


def test_a_rewind_reads_what_has_landed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    build(lab, given("counting", count="30", **COUNTING), destination())
    assert lab.run().error is None
    monkeypatch.chdir(lab.root)
    assert main(("positions", "rewind", "p", "--to-start")) == 0
    assert lab.run().error is None
    assert lab.documents("out.jsonl") == ROWS * 2


@pytest.mark.parametrize("read", ["batch", "stream"])
def test_on_spark_connect(tmp_path: Path, connect_server: Any, read: str) -> None:
    """A Python data source of the project, read and written by a client of a server."""
    lab = Lab(tmp_path)
    (tmp_path / "counting.py").write_text(PYTHON)
    (tmp_path / "written").mkdir()
    (tmp_path / "upto").write_text("30")
    source = given("counting", read=read, count="30", upto=str(tmp_path / "upto"), **COUNTING)
    outputs = [taken("counting", path="written", **COUNTING), destination("file", "./out.jsonl")]
    build(lab, source, *outputs, delivery={"strategy": "at-least-once"})
    with connect_server.start(ONE_RUN, tmp_path, connect_server.url, stdout=subprocess.PIPE) as process:
        said, _ = process.communicate(timeout=240)
    assert process.returncode == 0 and b"'error': None" in said, said
    assert lab.documents("out.jsonl") == ROWS
    lines = [line for path in (tmp_path / "written").iterdir() for line in path.read_text().splitlines()]
    assert sorted(lines) == sorted(f"{i},{i}" for i in range(30))


@pytest.mark.parametrize("rows", [True, False])
def test_appended_by_a_jvm_format(lab: Lab, spark: SparkSession, rows: bool) -> None:
    """Rows that stay columns, and documents of a processor; an additional column names the delivery."""
    out = taken("orc", path="out.orc", **{"hash-column": "delivery"})
    more = {} if rows else {"processors": [processor("same", "field.set", field=".Payload.After.s", value="x")]}
    build(lab, given("counting", count="30", **COUNTING), out, delivery={"strategy": "at-least-once"}, **more)
    assert lab.run().error is None
    frame = spark.read.orc(str(lab.root / "out.orc"))
    found = sorted((row.i, row.s) for row in frame.collect())
    assert found == [(i, str(i) if rows else "x") for i in range(30)]
    assert frame.select("delivery").distinct().count() == 3


def test_a_time_with_a_zone_and_one_without_stay_what_they_are(lab: Lab, spark: SparkSession) -> None:
    lab.write("in.json", ['{"t": "2024-05-01T12:00:00+02:00", "n": "2024-05-01T12:00:00"}'])
    source = given("json", path="in.json", schema="t TIMESTAMP, n TIMESTAMP_NTZ")
    build(lab, source, taken("orc", path="out.orc"), delivery={"strategy": "at-least-once"})
    assert lab.run().error is None
    frame = spark.read.orc(str(lab.root / "out.orc"))
    assert frame.dtypes == [("t", "timestamp"), ("n", "timestamp_ntz")]
    texts = [(str(row.t), str(row.n)) for row in frame.selectExpr("unix_seconds(t) AS t", "n").collect()]
    assert texts == [("1714557600", "2024-05-01 12:00:00")]


def test_a_hash_column_replaces_no_field(lab: Lab) -> None:
    """Spark does not tell upper and lower case apart."""
    out = taken("orc", path="out.orc", **{"hash-column": "S"})
    build(lab, given("counting", count="30", **COUNTING), out, delivery={"strategy": "at-least-once"})
    error = lab.run().error
    assert error is not None and error.code == "spark.hash_column_taken" and error.fatal
    assert not (lab.root / "out.orc").exists()


@pytest.mark.parametrize("name", ["a [1]", "{b}", "c*?", "d\\e", "50%20ü"])
def test_a_project_in_a_folder_of_any_name(tmp_path: Path, spark: SparkSession, name: str) -> None:
    """What Spark takes for a pattern, or for another character."""
    (tmp_path / name).mkdir()
    lab = Lab(tmp_path / name, spark)
    lab.write("in.jsonl", ['{"i": 1}'])
    source = {"id": "in", "type": "source", "plugin": "file", "settings": {"path": "./in.jsonl"}}
    out = taken("orc", path="./out.orc")
    build(
        lab,
        source,
        out,
        processors=[processor("d", "json.decode", field=".Payload.After")],
        delivery={"strategy": "at-least-once"},
    )
    assert lab.run().error is None
    assert len(list((lab.root / "out.orc").glob("*.orc"))) == 1


def test_appended_by_a_python_data_source(lab: Lab) -> None:
    """Its errors are outages: nothing is nacked, and the next run repeats the step."""
    out = taken("counting", path="written", **COUNTING)
    (lab.root / "written" / "refuse").touch()
    build(lab, given("counting", count="30", **COUNTING), out, delivery={"strategy": "at-least-once"})
    error = lab.run().error
    assert error is not None and error.code == "spark.format_failed" and not error.fatal
    assert "no thirteen" in error.message
    (lab.root / "written" / "refuse").unlink()
    assert lab.run().error is None
    lines = [line for path in (lab.root / "written").iterdir() for line in path.read_text().splitlines()]
    assert set(lines) == {f"{i},{i}" for i in range(30)}
    assert lab.lines("p-dead.jsonl") == []


def test_a_url_that_spark_does_not_open_says_which_settings_it_may_be(lab: Lab) -> None:
    build(lab, given("csv", path="s3://lake/in.csv"), destination())
    error = lab.run().error
    assert error is not None and error.code == "spark.format_failed"
    assert 'scheme "s3"' in error.message and "state.log must be URLs that Spark opens" in (error.fix or "")


def test_a_driver_that_java_does_not_find_by_itself_is_to_be_named(lab: Lab) -> None:
    """Also where its jar is there; the fix was to correct the options of the format."""
    build(lab, given("jdbc", url="jdbc:nothing://localhost/x", dbtable="t"), destination())
    error = lab.run().error
    assert error is not None and error.code == "spark.format_failed"
    assert "No suitable driver" in error.message and "driver: org.postgresql.Driver" in (error.fix or "")


@pytest.mark.parametrize(
    ("source", "code", "words"),
    [
        (given("nonsense"), "spark.no_data_source", "nonsense"),
        (given("csv", path="not-there"), "spark.format_failed", "not-there"),
        (given("counting", register="counting.py:Other"), "spark.no_data_source", "Other"),
        (given("counting", register="gone.py:Counting"), "spark.no_data_source", "gone.py"),
        (given("csv", path="in.csv", read="stream"), "spark.format_failed", "chema"),
    ],
)
def test_what_can_not_be_read_is_said_in_a_line(lab: Lab, source: Any, code: str, words: str) -> None:
    lab.write("in.csv", ["1"])
    build(lab, source, destination())
    error = lab.run().error
    assert error is not None and error.code == code
    assert words in error.message
    assert "\n" not in error.message and "Traceback" not in error.message


def test_validation_knows_the_strategies(lab: Lab) -> None:
    """A data source of Spark does not know delivery hashes."""
    build(lab, given("csv", path="in.csv"), taken("csv", path="out"))
    assert lab.catalogue().get("p") is None
    assert any("exactly-once" in finding.message for finding in lab.catalogue().findings)
