"""Spark session of a verb: opened with a status line on a terminal, closed at the end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

from conduit_dagster.cli.terminal import console
from conduit_dagster.engine.bounded import left_behind, within
from conduit_dagster.recovery.errors import ConduitError, FatalError
from conduit_dagster.spark.explain import explain, is_sparks
from conduit_dagster.spark.java import require_java
from conduit_dagster.spark.server_files import ServerFiles
from conduit_dagster.spark.session import SparkSettings, close_current, close_session, default_url, open_session
from conduit_dagster.state.history import duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from conduit_dagster.cli.running import CommandSignals
    from conduit_dagster.config.project import Project

_NAME = "conduit-dagster"
_CLOSING = 4.0
"""Seconds for Spark to end; a JVM that takes longer ends with the process. A server is given up sooner."""


def spark_settings(project: Project, verbose: bool = False, server: bool = True) -> SparkSettings:
    """Return the project's Spark settings. ``server``: by default the command uses the project's shared server.

    It stays for later commands, as Gradle's daemon does; if ``CI`` is set nothing is left behind.
    """
    settings = project.settings.spark
    url = settings.named_url or default_url(lasting=server and not _is_ci())
    return SparkSettings(url, settings.conf, settings.parallelism, verbose, project.home, settings.idle_timeout)


def _is_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def session_opener(project: Project, verbose: bool = False, server: bool = True) -> Callable[[], SparkSession]:
    """Return a thread-safe function that returns the process's session, a new one if Spark has ended since."""
    wanted = spark_settings(project, verbose, server)
    return lambda: _session(wanted)


def _session(settings: SparkSettings) -> SparkSession:
    """Return the session; report a server that was started for it and keeps running."""
    if not settings.shared:
        return open_session(settings, _NAME)
    files = ServerFiles(settings.home)
    before = files.read()
    spark = open_session(settings, _NAME)
    if files.is_another(before):
        ends = f"it ends {duration(settings.idle)} after its last use, or with conduit-dagster spark stop"
        print(f"started a Spark server for this project's commands; {ends}", file=sys.stderr)
    return spark


@contextmanager
def spark_session(
    project: Project,
    verbose: bool = False,
    signals: CommandSignals | None = None,
    shown: bool = False,
    server: bool = True,
) -> Generator[SparkSession]:
    """Open a session with the project's settings. Raises ``environment.*`` if that is impossible.

    On exit the process's session is closed: this one, or the one that :func:`session_opener` replaced it with.
    """
    wanted = spark_settings(project, verbose, server)
    # spark-submit already provides a JVM, and Connect needs none here
    if not wanted.connect and "PYSPARK_GATEWAY_PORT" not in os.environ:
        require_java()
    with console().status("starting Spark") if shown else nullcontext():
        spark = _open(wanted, signals)
    try:
        yield spark
    finally:
        # a session that an abandoned thread still uses may not close; it ends with the process
        if not left_behind():
            within(lambda: _close(spark), _CLOSING, "close-spark")


def _open(settings: SparkSettings, signals: CommandSignals | None) -> SparkSession:
    while True:
        try:
            return _session(settings)
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
        f"Spark does not start: {explain(error) if is_sparks(error) else lines[0]}",
        code="environment.spark",
        place=settings.url,
        fix="check spark.url and spark.conf in conduit.yaml, and spark-defaults.conf;"
        " conduit-dagster run --verbose shows Spark's log",
    )


def _close(spark: SparkSession) -> None:
    # the work is done and its result known: a JVM that died, or is frozen, is no failure of it
    with suppress(Exception):
        close_session(spark)
    close_current()
