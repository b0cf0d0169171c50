"""Spark session of a verb: opened with a status line on a terminal, closed at the end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from conduit_dagster.cli.signals import CommandSignals
from conduit_dagster.cli.terminal import console
from conduit_dagster.engine.bounded import left_behind
from conduit_dagster.recovery.errors import ConduitError, FatalError
from conduit_dagster.spark.java import require_java
from conduit_dagster.spark.session import SparkSettings, close_current, close_session, default_url, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conduit_dagster.config.project import Project

_NAME = "conduit-dagster"


def spark_settings(project: Project, verbose: bool = False, several: bool = False) -> SparkSettings:
    """Return the project's Spark settings. ``several``: more than one pipeline runs; by default they share a server."""
    settings = project.settings.spark
    url = settings.named_url or default_url(several)
    return SparkSettings(url, settings.conf, settings.parallelism, verbose, project.home, settings.idle_timeout)


def session_opener(project: Project, verbose: bool = False, several: bool = False) -> Callable[[], SparkSession]:
    """Return a thread-safe function that returns the process's session, a new one if Spark has ended since."""
    wanted = spark_settings(project, verbose, several)
    return lambda: open_session(wanted, _NAME)


@contextmanager
def spark_session(
    project: Project,
    verbose: bool = False,
    signals: CommandSignals | None = None,
    shown: bool = False,
    several: bool = False,
) -> Generator[SparkSession]:
    """Open a session with the project's settings. Raises ``environment.*`` if that is impossible.

    On exit the process's session is closed: this one, or the one that :func:`session_opener` replaced it with.
    """
    wanted = spark_settings(project, verbose, several)
    # inside spark-submit there is a JVM already, and Connect needs none here
    if not wanted.connect and "PYSPARK_GATEWAY_PORT" not in os.environ:
        require_java()
    with console().status("starting Spark") if shown else nullcontext():
        spark = _open(wanted, signals)
    try:
        yield spark
    finally:
        # a session that an abandoned thread still uses may not close; it ends with the process
        if not left_behind():
            _close(spark)
            close_current()


def _open(settings: SparkSettings, signals: CommandSignals | None) -> SparkSession:
    while True:
        try:
            return open_session(settings, _NAME)
        except ConduitError:
            raise
        except KeyboardInterrupt:
            # raised by Spark's own handler, while that is installed
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
