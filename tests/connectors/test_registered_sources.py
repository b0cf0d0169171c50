"""Two Python data sources of one name, in files of their own: each connector reads with its own class."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from conduit_dagster.connectors.spark.driver_session import asked
from conduit_dagster.expressions import Clock
from conduit_dagster.sdk import ConnectorContext

SOURCE = """
from pyspark.sql.datasource import DataSource, DataSourceReader


class Mine(DataSource):
    @classmethod
    def name(cls):
        return "mine"

    def schema(self):
        return "of STRING"

    def reader(self, schema):
        return Reader()


class Reader(DataSourceReader):
    def read(self, partition):
        yield ("{of}",)
"""


@pytest.mark.slow
def test_a_class_of_the_same_name_waits_until_the_other_one_is_read(tmp_path: Path, spark: SparkSession) -> None:
    """It took the name in the session that they share: the other connector read its rows."""
    for of in "ab":
        (tmp_path / f"{of}.py").write_text(SOURCE.format(of=of))
    inside, registered = threading.Event(), threading.Event()

    def read(of: str, begins: threading.Event, goes_on: threading.Event) -> list[str]:
        context = ConnectorContext(of, "in", str(tmp_path), Clock())
        with asked(context, "mine", "be read", f"{of}.py:Mine") as (session, _):
            begins.set()
            goes_on.wait(1)
            return [row["of"] for row in session.read.format("mine").load().collect()]

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(read, "a", inside, registered)
        assert inside.wait(60)
        second = pool.submit(read, "b", registered, inside)
        assert (first.result(60), second.result(60)) == (["a"], ["b"])
