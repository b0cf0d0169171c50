"""What all measures share: the Spark session, the database, folders, and how much is asked for."""

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


@dataclass
class Bench:
    """Opens what a measure asks for; call ``close`` at the end."""

    work: Path
    records: int
    rounds: int
    steps: int
    """Steps of one record."""
    engines: Mapping[str, Engine] = field(default_factory=dict)
    """Other engines to run, by name: their binaries are the caller's."""
    settings: SparkSettings = field(default_factory=SparkSettings)

    @cached_property
    def spark(self) -> SparkSession:
        """One session for all measures."""
        return open_session(self.settings, "benchmarks")

    @cached_property
    def database(self) -> Database:
        """One server for all measures."""
        return Database()

    @cached_property
    def broker(self) -> KafkaServer:
        """One Kafka for all measures, with the memory that a broker usually has."""
        return KafkaServer(heap="1g")

    def close(self) -> None:
        """Ends what was opened."""
        if "broker" in self.__dict__:
            self.broker.close()
        if "spark" in self.__dict__:
            close_session(self.spark)
        if "database" in self.__dict__:
            self.database.close()
