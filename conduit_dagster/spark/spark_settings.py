"""Settings of Spark: the project's, and those of every session; where Spark's own files are."""

# pyright: reportPrivateUsage=none

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.secret_values import hide


def spark_home() -> Path:
    """Return ``SPARK_HOME``, otherwise PySpark's own choice: usually its own folder.

    Raises ``FatalError`` (``environment.spark_home``) if ``SPARK_HOME`` has no Spark, or one of another release:
    PySpark would start it, and neither would understand the other.
    """
    from pyspark import __version__
    from pyspark.find_spark_home import _find_spark_home

    named = os.environ.get("SPARK_HOME")
    if not named:
        return Path(_find_spark_home())
    found = _version_in(Path(named))
    if _release(found) == _release(__version__):
        return Path(named)
    raise FatalError(
        f"SPARK_HOME={named} is {f'Spark {found}' if found else 'no Spark'}, and PySpark here is {__version__}",
        code="environment.spark_home",
        fix="unset SPARK_HOME: PySpark brings its own Spark; or name one of the same release",
    )


def _version_in(home: Path) -> str:
    """Return the version of the Spark in a folder; empty if there is none."""
    found = [_CORE.fullmatch(jar.name) for jar in home.glob("jars/spark-core_*.jar")]
    return next((match[1] for match in found if match), "")


def _release(version: str) -> list[str]:
    return version.split(".")[:2]


_CORE = re.compile(r"spark-core_[\d.]+-(.+)\.jar")


_IN_PLAN = r'(?<=(?:value|expression|query): ")[^\n]+'
"""Values of options, and queries, in the text of a plan, which Spark Connect uses to describe its jobs."""


def sql_conf(settings: SparkSettings) -> dict[str, str]:
    """Return the settings for a session, wherever it runs."""
    own = {
        # a step is one stage; replanning it while it runs only costs time
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # a simplified traceback omits causes, and with them the class of a wrapped error
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
        # options of formats, in the plans that Spark's UI shows: any of them may be a password
        "spark.sql.redaction.options.regex": ".*",
        "spark.sql.redaction.string.regex": _IN_PLAN,
    }
    shuffles = settings.parallelism or (os.cpu_count() if settings.local or settings.shared else None)
    if shuffles:
        own["spark.sql.shuffle.partitions"] = str(shuffles)
    return own


_REDACTED = "spark.redaction.regex"
_REDACTED_KEYS = "(?i)secret|password|token|access[.]?key"
"""Spark's default: the values of matching keys are masked in its UI and its event log."""


def redaction_conf(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the setting with which Spark also masks our secrets under any other key."""
    keys = [key for key, value in conf.items() if hide(value) != value]
    if not keys:
        return {}
    exactly = "|".join(f"^{re.escape(key)}$" for key in sorted(keys))
    return {_REDACTED: f"{conf.get(_REDACTED, _REDACTED_KEYS)}|{exactly}"}


def connect_conf(settings: SparkSettings) -> dict[str, str]:
    """Return the settings for a Connect server's session, where ``spark.default.parallelism`` is not ours to set."""
    own = sql_conf(settings)
    if settings.parallelism:
        own["spark.sql.leafNodeDefaultParallelism"] = str(settings.parallelism)
    return own


SHARED = "shared"
LOCAL = "local[*]"
LOOPBACK = "127.0.0.1"
IDLE_SECONDS = 600.0
_TMP = "/tmp"  # what Java takes for its temporary files


def jvm_options() -> list[str]:
    """Return the options of each JVM.

    It ends at the first ``OutOfMemoryError``, since a thread of Spark that one ended leaves its jobs waiting for ever.
    It updates jstat's counters once a second, not every 50 ms: most JVMs of Spark are idle most of the time. And where
    ``/tmp`` can't be written, its temporary files go where Python's do: Java itself ignores ``TMPDIR``.
    """
    own = ["-XX:+ExitOnOutOfMemoryError", "-XX:PerfDataSamplingInterval=1000"]
    folder = os.environ.get("TMPDIR")
    return own if not folder or os.access(_TMP, os.W_OK) else [*own, f"-Djava.io.tmpdir={folder}"]


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Where Spark runs and how it is configured.

    ``url`` is a master (``local[*]``, ``spark://…``, ``yarn``), a Spark Connect server (``sc://…``), or ``shared``: the
    local Connect server of the project with this ``home``, started on demand and stopped after ``idle`` seconds without
    a session. ``conf`` overrides this package's own settings. ``parallelism`` is the number of tasks per job; without
    it, Spark's default. ``verbose`` shows Spark's log on stderr; a shared server logs to its file.
    """

    url: str = LOCAL
    conf: Mapping[str, str] = field(default_factory=dict[str, str])
    parallelism: int | None = None
    verbose: bool = False
    home: Path = Path(".conduit")
    idle: float = IDLE_SECONDS

    @property
    def connect(self) -> bool:
        """Whether ``url`` is a Spark Connect server not managed by this project."""
        return self.url.startswith("sc://")

    @property
    def shared(self) -> bool:
        """Whether ``url`` is the project's own Spark Connect server."""
        return self.url == SHARED

    @property
    def local(self) -> bool:
        """Whether the driver belongs to this process and its tasks run on this machine."""
        return self.url.startswith("local")
