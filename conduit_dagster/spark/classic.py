"""Classic sessions, with a JVM owned by this process: a local master, a cluster, or inside ``spark-submit``."""

# pyright: reportPrivateUsage=none

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from threading import Lock, current_thread, main_thread
from typing import TYPE_CHECKING, Any

from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.secret_values import hide
from conduit_dagster.spark.class_data import archive_options, distrust_archive, make_archive_later
from conduit_dagster.spark.java import STAYS, java_environment
from conduit_dagster.spark.spark_settings import (
    LOCAL,
    LOOPBACK,
    SparkSettings,
    jvm_options,
    redaction_conf,
    spark_home,
    sql_conf,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def jvm_ended(within: float = 0) -> bool:
    """Return whether this process started a JVM that has ended (killed, out of memory).

    A dying process closes its sockets a moment before it exits: ``within`` is how many seconds to wait for the exit.
    """
    from pyspark import SparkContext

    process: Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return False
    try:
        process.wait(within)
    except TimeoutExpired:
        return False
    return True


def forget_jvm() -> None:
    """Clear PySpark's references to the JVM, so that the next session starts a new one."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def _end_stopped() -> None:
    """End a context that Spark has stopped because of its cluster: PySpark would return it again."""
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    if context is not None and context._jsc is not None and context._jsc.sc().isStopped():
        context.stop()


_QUIET = Path(__file__).with_name("log4j2-quiet.properties")

# A process has one environment and one JVM. Of two threads that both change the environment, the second would take the
# first one's changes for the caller's and leave them behind for every process started later; of two that both replace
# a killed JVM, the second would forget the first one's new one.
_opening = Lock()


def open_classic(settings: SparkSettings, app_name: str) -> SparkSession:
    """Return the process's session. Keep the caller's SIGINT handler; replace a session whose JVM was killed.

    Threads may call this at the same time.
    """
    with _opening:
        if jvm_ended():
            forget_jvm()
        _end_stopped()
        settings = _where_submitted(settings)
        with _own_interrupt_handler():
            spark = _get_or_create(settings, app_name)
        if settings.local and not inside_submit():
            make_archive_later()
        return spark


def inside_submit() -> bool:
    """Return whether ``spark-submit`` runs this process, so that a JVM already exists."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _where_submitted(settings: SparkSettings) -> SparkSettings:
    """Return the settings with the master that ``spark-submit`` was given, unless they name another one themselves."""
    if not inside_submit() or settings.url != LOCAL:
        return settings
    from pyspark import SparkConf, SparkContext

    # what spark-submit was told is in the system properties of the JVM, which exists
    SparkContext._ensure_initialized()
    return replace(settings, url=SparkConf().get("spark.master") or LOCAL)


def has_classic() -> bool:
    """Return whether this process has a classic session, and so can't be a client of a Connect server."""
    context = sys.modules.get("pyspark.core.context")
    return context is not None and context.SparkContext._active_spark_context is not None


def _get_or_create(settings: SparkSettings, app_name: str) -> SparkSession:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkRuntimeError

    try:
        with _environment(_launch_environment(settings)):
            return _built(settings, app_name)
    except Py4JJavaError as error:
        if settings.local or not _STOPPED.search(str(error)):
            raise
        raise _no_master(settings.url) from error
    except PySparkRuntimeError as error:
        # a JVM that crashes on a damaged archive reports nothing at all; the archive is looked for with the caller's
        # environment, as when it was made
        if error.getCondition() != "JAVA_GATEWAY_EXITED" or not distrust_archive():
            raise
    with _environment(_launch_environment(settings)):
        return _built(settings, app_name)


# Spark stops the context whose application no master took, at any moment of its start, and says why only in its log
_STOPPED = re.compile("stopped SparkContext|Spark context stopped|NullPointerException|running MetricsSystem")


def _no_master(url: str) -> TransientError:
    from pyspark import __version__

    return TransientError(
        f"the cluster manager {url} does not answer, or refuses the application",
        code="spark.unreachable",
        fix=f"start it, or correct spark.url; a standalone master must run Spark {__version__} as well",
    )


def _built(settings: SparkSettings, app_name: str) -> SparkSession:
    from pyspark.sql import SparkSession

    conf = {"spark.app.name": app_name, "spark.master": settings.url, **_conf(settings)}
    _launch_without_secrets(conf)
    builder = SparkSession.builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _launch_without_secrets(conf: Mapping[str, str]) -> None:
    """Start the JVM in advance if the settings include a secret: PySpark would put them on its command line."""
    from pyspark import SparkConf, SparkContext

    plain = [(key, value) for key, value in conf.items() if hide(value) == value]
    if len(plain) < len(conf) and not inside_submit():
        # does nothing if a JVM exists; the context gets its settings from the builder in any case
        SparkContext._ensure_initialized(conf=SparkConf().setAll(plain))


def _conf(settings: SparkSettings) -> dict[str, str]:
    own = sql_conf(settings) | {
        "spark.pyspark.python": _worker_python(settings),
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if settings.local:
        # not what a cluster's spark-defaults.conf says
        own["spark.submit.deployMode"] = "client"
        own |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
        own["spark.python.daemon.module"] = "conduit_dagster.spark.worker_daemon"
    if settings.parallelism:
        own["spark.default.parallelism"] = str(settings.parallelism)
    return {**own, **settings.conf, **redaction_conf(settings.conf)}


def _worker_python(settings: SparkSettings) -> str:
    """Return the workers' Python; Spark's default is ``python3`` on PATH. On a cluster ``PYSPARK_PYTHON`` applies."""
    chosen = settings.conf.get("spark.pyspark.python")
    if chosen or settings.local:
        return chosen or sys.executable
    return os.environ.get("PYSPARK_PYTHON") or sys.executable


def _launch_environment(settings: SparkSettings) -> dict[str, str | None]:
    """Return the environment for launching the JVM; ``conf`` can't express any of it."""
    # where Spark runs is decided by ``spark.url``: these would turn the session into another server's
    own: dict[str, str | None] = {"SPARK_REMOTE": None, "SPARK_API_MODE": None}
    own["PYSPARK_PYTHON"] = _worker_python(settings)
    if settings.local:
        own["SPARK_LOCAL_IP"] = LOOPBACK
    options: list[str] = []
    if not inside_submit():
        spark_home()  # raises if PySpark would start another Spark
        own |= {**java_environment(), STAYS: "1"}
        options += [*jvm_options(), *archive_options(settings.conf)]
    if not settings.verbose:
        options.append(f"-Dlog4j2.configurationFile={_QUIET.as_uri()}")
    if options:
        # last, so that a caller's own log4j file takes precedence
        own["SPARK_SUBMIT_OPTS"] = " ".join([*options, os.environ.get("SPARK_SUBMIT_OPTS", "")]).strip()
    return own


@contextmanager
def _environment(changes: Mapping[str, str | None]) -> Generator[None]:
    """Change variables in the ``with`` block; None unsets one."""
    before = {name: os.environ.get(name) for name in changes}
    try:
        _set(changes)
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def _own_interrupt_handler() -> Generator[None]:
    """Restore the SIGINT handler, which a new SparkContext replaces: its own cancels every job and raises into py4j."""
    before, is_main = signal.getsignal(signal.SIGINT), current_thread() is main_thread()
    try:
        yield
    finally:
        # on other threads PySpark leaves it alone, and it can't be set
        if is_main and before is not signal.getsignal(signal.SIGINT):
            signal.signal(signal.SIGINT, before)
