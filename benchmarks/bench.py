"""Shared by all measures: the Spark session, the database, folders, and the requested amounts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.other_engines import Engine
from benchmarks.server import Database
from conduit_dagster.spark.session import SparkSettings, close_session, open_session
from tests.lab.kafka_server import KafkaServer
from tests.lab.s3_server import S3Server


@dataclass
class Bench:
    """Resources of the measures, opened on demand; call ``close`` at the end."""

    work: Path
    records: int
    rounds: int
    steps: int
    """Number of steps with one record each."""
    engines: Mapping[str, Engine] = field(default_factory=dict)
    """Other engines to run, by name; the caller provides their binaries."""
    settings: SparkSettings = field(default_factory=SparkSettings)

    @cached_property
    def spark(self) -> SparkSession:
        """The session shared by all measures."""
        return open_session(self.settings, "benchmarks")

    @cached_property
    def database(self) -> Database:
        """The database server shared by all measures."""
        return Database()

    @cached_property
    def broker(self) -> KafkaServer:
        """The Kafka broker shared by all measures, with a typical broker's memory."""
        return KafkaServer(heap="1g")

    @cached_property
    def object_store(self) -> S3Server:
        """The S3 server shared by all measures."""
        return S3Server().__enter__()

    def close(self) -> None:
        """Close everything that was opened."""
        if "broker" in self.__dict__:
            self.broker.close()
        if "object_store" in self.__dict__:
            self.object_store.__exit__(None, None, None)
        if "spark" in self.__dict__:
            close_session(self.spark)
        if "database" in self.__dict__:
            self.database.close()
