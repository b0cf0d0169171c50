"""``spark:FORMAT``: formats of text, and the names of their files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lab.spark_formats import build, given, taken
from lab.support import Lab, destination
from pyspark.sql import SparkSession

from conduit_dagster.connectors.spark.destination import whole

pytestmark = pytest.mark.slow


@pytest.fixture
def lab(tmp_path: Path, spark: SparkSession) -> Lab:
    return Lab(tmp_path, spark)


@pytest.mark.parametrize("format_", ["csv", "json", "xml"])
def test_a_format_of_text_holds_every_value_whole(lab: Lab, spark: SparkSession, format_: str) -> None:
    """By default Spark cuts microseconds off, and with CSV the blanks around a text; and the seconds of old offsets."""
    (lab.root / "in").mkdir()
    moments = [1_714_566_600_123_456, -1, -62_135_596_800_000_000]
    columns = {"t": pa.array(moments, pa.timestamp("us", "UTC")), "n": pa.array(moments, pa.timestamp("us"))}
    pq.write_table(pa.table({**columns, "s": [" a ", "\t", "b"]}), lab.root / "in" / "1.parquet")
    source = {"id": "in", "type": "source", "plugin": "parquet", "settings": {"path": "./in"}}
    more = {"rowTag": "r"} if format_ == "xml" else {}
    zone = spark.conf.get("spark.sql.session.timeZone") or ""
    build(lab, source, taken(format_, path="out", **more), delivery={"strategy": "at-least-once"})
    try:
        spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
        assert lab.run().error is None
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    reader = spark.read.format(format_).schema("t TIMESTAMP, n TIMESTAMP_NTZ, s STRING")
    frame = reader.options(**more, ignoreSurroundingSpaces="false").load(str(lab.root / "out"))
    local = "unix_micros(CAST(concat(n, 'Z') AS TIMESTAMP)) AS n"
    found = frame.selectExpr("unix_micros(t) AS t", local, "s").collect()
    assert [row.t for row in found] == [row.n for row in found] == moments
    assert [row.s for row in found] == [" a ", "\t", "b"]


def test_options_of_times_are_spark_s_own(lab: Lab) -> None:
    """With another format the session's time zone holds, as the text may show none. Names differ in case."""
    lab.write("in.json", ['{"t": "2024-05-01T12:00:00.123Z"}'])
    source = given("json", path="in.json", schema="t TIMESTAMP")
    build(lab, source, taken("json", path="out", timestampformat="yyyy"), delivery={"strategy": "at-least-once"})
    assert lab.run().error is None
    assert [path.read_text() for path in (lab.root / "out").glob("*.json")] == ['{"t":"2024"}\n']
    assert whole("csv", {"TIMEZONE": "x"}).keys() >= {"TIMEZONE", "timestampFormat", "ignoreLeadingWhiteSpace"}
    assert "timeZone" not in whole("csv", {"TIMEZONE": "x"}) | whole("csv", {"timestampformat": "x"})


def test_a_file_s_name_that_spark_takes_for_an_address(lab: Lab) -> None:
    lab.write("in/2024-05-01T12:00.csv", ["1"])
    build(lab, given("csv", path="in", schema="i BIGINT"), destination())
    error = lab.run().error
    assert error is not None and error.code == "spark.format_failed"
    assert error.fix == "Spark reads no folder in which a file's name has a colon, nor a glob there: rename that file"
