"""Opening and closing Spark sessions: local, Spark Connect, or any master."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from conduit_dagster.recovery.errors import TransientError
from conduit_dagster.spark.explain import explain
from conduit_dagster.spark.gateway import forget_jvm, jvm_ended
from conduit_dagster.spark.java import java_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUIET = Path(__file__).with_name("log4j2-quiet.properties")
_LOOPBACK = "127.0.0.1"
# ids of partitions are counted over a range with at least as many rows as any cluster has slots
_MOST_SLOTS = 65_536
# 0.05 s, times four each time, at most 5 s: about 25 s together
_TRIES, _MOST_BACKOFF_MS = 8, 5_000

_slots: WeakKeyDictionary[SparkSession, int] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Where Spark runs and how it is set.

    ``url`` is a master (``local[*]``, ``spark://…``, ``yarn``) or a Spark Connect server (``sc://…``).
    ``conf`` has the last word over what this module sets. ``parallelism`` is how many tasks a job is cut
    into, Spark's own default without it. ``verbose`` shows Spark's log on stderr.
    """

    url: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict[str, str])
    parallelism: int | None = None
    verbose: bool = False

    @property
    def connect(self) -> bool:
        """Whether this is a Spark Connect server."""
        return self.url.startswith("sc://")

    @property
    def local(self) -> bool:
        """Whether driver and tasks share this machine."""
        return self.url.startswith("local")


def open_session(settings: SparkSettings, app_name: str) -> SparkSession:
    """Return a session, the one this process already has where there is one.

    A process with a classic session cannot also be a Connect client, and its JVM outlives the session: the
    first call decides about ``verbose`` and Java. A session whose JVM was killed is replaced. The caller's
    SIGINT handler stays.
    """
    if settings.connect:
        return _open_connect(settings)
    if jvm_ended():
        forget_jvm()
    with _own_interrupt_handler(), _environment(_launch_environment(settings)):
        return _open_classic(settings, app_name)


def close_session(spark: SparkSession) -> None:
    """End the session; a Connect server goes on. Safe to call twice, and when the JVM was killed."""
    _slots.pop(spark, None)
    if is_connect(spark):
        _be_patient(spark, tries=1)
        spark.stop()
    elif not jvm_ended():
        spark.stop()


def is_connect(spark: SparkSession) -> bool:
    """Return whether the session is a client of a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks run at once, as far as Spark says; Connect is asked once per session."""
    if not is_connect(spark):
        return spark.sparkContext.defaultParallelism
    if spark not in _slots:
        _slots[spark] = _count_slots(spark)
    return _slots[spark]


def _count_slots(spark: SparkSession) -> int:
    from pyspark.sql import functions as f

    partitions = spark.range(_MOST_SLOTS).select(f.spark_partition_id().alias("id"))
    return int(partitions.agg(f.max("id")).collect()[0][0]) + 1


def _open_connect(settings: SparkSettings) -> SparkSession:
    """A server that does not answer is given up after half a minute; PySpark alone would try for ten."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    # says nothing to the server yet, so the patience holds from the first call
    spark = SparkSession.builder.remote(settings.url).getOrCreate()
    _be_patient(spark, _TRIES)
    try:
        for key, value in _connect_conf(settings).items():
            spark.conf.set(key, value)
    except PySparkException as error:
        # also forgets the session, which a restarted server does not know: the next call makes a new one
        close_session(spark)
        raise _unreachable(settings, error) from error
    return spark


def _be_patient(spark: SparkSession, tries: int) -> None:
    from pyspark.sql.connect.client.retries import DefaultPolicy

    spark.client.set_retry_policies([DefaultPolicy(max_retries=tries, max_backoff=_MOST_BACKOFF_MS)])


def _connect_conf(settings: SparkSettings) -> dict[str, str]:
    own = _sql_conf(settings)
    if settings.parallelism:
        own["spark.sql.leafNodeDefaultParallelism"] = str(settings.parallelism)
    return {**own, **settings.conf}


def _unreachable(settings: SparkSettings, error: Exception) -> TransientError:
    # what follows a semicolon may be a token
    server = settings.url.partition(";")[0]
    return TransientError(
        f"the Spark Connect server {server} did not take the session: {explain(error)}",
        code="spark.unreachable",
        fix="`conduit-dagster spark status` shows the local server, `conduit-dagster spark start` starts it",
    )


def _open_classic(settings: SparkSettings, app_name: str) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    if not _inside_submit(settings):
        builder = builder.master(settings.url)
    for key, value in _classic_conf(settings).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _inside_submit(settings: SparkSettings) -> bool:
    """``spark-submit`` has chosen a master; only a file that names another one overrules it."""
    return "PYSPARK_GATEWAY_PORT" in os.environ and settings.url == SparkSettings().url


def _sql_conf(settings: SparkSettings) -> dict[str, str]:
    own = {
        # a step is one stage; planning it anew while it runs only costs
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    shuffles = settings.parallelism or (os.cpu_count() if settings.local else None)
    if shuffles:
        own["spark.sql.shuffle.partitions"] = str(shuffles)
    return own


def _classic_conf(settings: SparkSettings) -> dict[str, str]:
    own = _sql_conf(settings) | {
        "spark.pyspark.python": _worker_python(settings),
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if settings.local:
        own |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
        own["spark.python.daemon.module"] = "conduit_dagster.spark.worker_daemon"
    if settings.parallelism:
        own["spark.default.parallelism"] = str(settings.parallelism)
    return {**own, **settings.conf}


def _worker_python(settings: SparkSettings) -> str:
    """Workers run ``python3`` from PATH unless told; on a cluster the caller may know a better path."""
    chosen = settings.conf.get("spark.pyspark.python")
    if chosen or settings.local:
        return chosen or sys.executable
    return os.environ.get("PYSPARK_PYTHON") or sys.executable


def _launch_environment(settings: SparkSettings) -> dict[str, str]:
    """Return what the JVM is launched with; ``conf`` cannot say any of it."""
    own = {"PYSPARK_PYTHON": _worker_python(settings)}
    if settings.local:
        own["SPARK_LOCAL_IP"] = _LOOPBACK
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        own |= java_environment()
    if not settings.verbose:
        quiet = f"-Dlog4j2.configurationFile={_QUIET.as_uri()}"
        # last, so that a caller's own log4j file wins
        own["SPARK_SUBMIT_OPTS"] = f"{quiet} {os.environ.get('SPARK_SUBMIT_OPTS', '')}".strip()
    return own


@contextmanager
def _environment(changes: Mapping[str, str]) -> Generator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _own_interrupt_handler() -> Generator[None]:
    """A new SparkContext takes SIGINT over: it would cancel every job and raise into py4j."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not signal.getsignal(signal.SIGINT):
            signal.signal(signal.SIGINT, before)
