"""The Spark session of a verb: opened with a word on a terminal, closed at the end."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from conduit_dagster.cli.signals import Signals
from conduit_dagster.cli.terminal import console
from conduit_dagster.recovery.errors import ConduitError, FatalError
from conduit_dagster.spark.java import require_java
from conduit_dagster.spark.session import SparkSettings, close_session, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conduit_dagster.config.project import Project


@contextmanager
def spark_session(
    project: Project, verbose: bool = False, signals: Signals | None = None, shown: bool = False
) -> Generator[SparkSession]:
    """A session as the project's settings say. Raises ``environment.*`` where there can't be one."""
    settings = project.settings.spark
    wanted = SparkSettings(settings.url, settings.conf, settings.parallelism, verbose)
    # inside spark-submit there is a JVM already, and Connect needs none here
    if not wanted.connect and "PYSPARK_GATEWAY_PORT" not in os.environ:
        require_java()
    with console().status("starting Spark") if shown else nullcontext():
        spark = _open(wanted, signals)
    try:
        yield spark
    finally:
        _close(spark)


def _open(settings: SparkSettings, signals: Signals | None) -> SparkSession:
    while True:
        try:
            return open_session(settings, "conduit-dagster")
        except ConduitError:
            raise
        except KeyboardInterrupt:
            # Spark's own handler, in the moment in which it is in force
            if signals is None:
                raise
            signals.note(signal.SIGINT)
        except Exception as error:
            raise _no_spark(settings, error) from error


def _no_spark(settings: SparkSettings, error: Exception) -> FatalError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return FatalError(
        f"Spark does not start: {lines[0]}",
        code="environment.spark",
        place=settings.url,
        fix="check spark.url and spark.conf in conduit.yaml; conduit-dagster run --verbose shows Spark's log",
    )


def _close(spark: SparkSession) -> None:
    try:
        close_session(spark)
    except Exception:  # noqa: BLE001  # the work is done and its result known; a JVM that died is no failure of it
        pass
