"""The conformance suite of destinations: every built-in passes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from lab import delta_deliveries, file_deliveries
from lab.conformance_runs import Make, context
from lab.parts_stream import read_folder
from lab.postgres_lab import PostgresLab
from lab.postgres_server import PostgresServer
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from conduit_dagster.builtin_plugins import DESTINATIONS
from conduit_dagster.connectors.log.destination import LogDestination
from conduit_dagster.connectors.parquet.destination import ParquetDestination, ParquetDestinationSettings
from conduit_dagster.testing.conformance import DestinationConformance


class TestOrderedFile(DestinationConformance):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: file_deliveries.make(tmp_path, strategy="exactly-once")

    @pytest.fixture
    def delivered(self, tmp_path: Path) -> Callable[[], list[int]]:
        path = tmp_path / "out.jsonl"
        return lambda: file_deliveries.rows(path) if path.exists() else []


class TestFolder(DestinationConformance):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: file_deliveries.make(tmp_path, "out/", strategy="exactly-once")

    @pytest.fixture
    def delivered(self, tmp_path: Path) -> Callable[[], list[int]]:
        path = tmp_path / "out"
        return lambda: [json.loads(line)["i"] for line in read_folder(path)] if path.exists() else []


class TestDelta(DestinationConformance):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        return lambda: delta_deliveries.make(tmp_path)

    @pytest.fixture
    def delivered(self, tmp_path: Path) -> Callable[[], list[int]]:
        def read() -> list[int]:
            path = tmp_path / "table"
            if not DeltaTable.is_deltatable(str(path)):
                return []
            files = sorted(DeltaTable(str(path)).file_uris(), key=lambda uri: uri.rpartition("/")[2])
            return [row["i"] for uri in files for row in pq.read_table(uri).to_pylist()]

        return read


class TestParquetFolder(DestinationConformance):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        settings = ParquetDestinationSettings.model_validate({"path": "out"})
        return lambda: ParquetDestination(settings, context(tmp_path))

    @pytest.fixture
    def delivered(self, tmp_path: Path) -> Callable[[], list[int]]:
        def read() -> list[int]:
            files = sorted((tmp_path / "out").glob("step=*/*.parquet"))
            return [row["i"] for path in files for row in pq.ParquetFile(path).read().to_pylist()]

        return read


class TestSparkOrc(DestinationConformance):
    @pytest.fixture
    def make(self, tmp_path: Path, spark: SparkSession) -> Make:
        kind: Any = DESTINATIONS.find("spark:orc", {})
        return lambda: kind(kind.Settings.model_validate({"path": "out"}), context(tmp_path))

    @pytest.fixture
    def delivered(self, tmp_path: Path, spark: SparkSession) -> Callable[[], list[int]]:
        path = tmp_path / "out"
        return lambda: [row.i for row in spark.read.orc(str(path)).sort("i").collect()] if path.exists() else []


class TestPostgres(DestinationConformance):
    @pytest.fixture
    def lab(self, postgres_server: PostgresServer, tmp_path: Path) -> PostgresLab:
        made = PostgresLab(postgres_server.create_database(), tmp_path)
        made.reset()
        made.execute("CREATE TABLE t (n bigserial PRIMARY KEY, i bigint)")
        return made

    @pytest.fixture
    def make(self, lab: PostgresLab) -> Make:
        return lab.destination

    @pytest.fixture
    def delivered(self, lab: PostgresLab) -> Callable[[], list[int]]:
        return lambda: [i for _, i in lab.rows()]


class TestLog(DestinationConformance):
    @pytest.fixture
    def logged(self) -> Iterator[list[Any]]:
        with capture_logs() as logged:
            yield logged

    @pytest.fixture
    def make(self, tmp_path: Path, logged: list[Any]) -> Make:
        return lambda: LogDestination(LogDestination.Settings(), context(tmp_path))

    @pytest.fixture
    def delivered(self, logged: list[Any]) -> Callable[[], list[int]]:
        return lambda: [json.loads(row["record"])["payload"]["after"]["i"] for row in logged if "record" in row]
