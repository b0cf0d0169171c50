"""Spark session of the driver, for connectors that are Spark plans."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from conduit_dagster.processors.common.modules import module_of
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError
from conduit_dagster.sdk import ConnectorContext
from conduit_dagster.spark.connect import has_opened
from conduit_dagster.spark.explain import explain, is_sparks
from conduit_dagster.spark.jobs import JobCancelled, jobs_of, lost_session, session_expired
from conduit_dagster.spark.shared import current_shared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")


_PATTERN: Final = re.compile(r"[\\\[\]{}*?]")


def literal(path: str) -> str:
    """Return the path as Spark takes it literally, not as a pattern."""
    return _PATTERN.sub(lambda found: f"\\{found[0]}", path)


def current_session() -> SparkSession:
    """Return the session that the pipeline runs on.

    Raises ``FatalError`` if this process never had one, and ``TransientError`` while it has lost that of its server.
    """
    # imported late: validating a pipeline must not import pyspark
    from pyspark.sql import SparkSession

    # PySpark's own is per thread, and may still be that of a server that has ended
    if (shared := current_shared()) is not None:
        return shared
    try:
        return SparkSession.active()
    except Exception as error:
        if has_opened():
            raise session_expired() from error
        raise FatalError(
            "there is no Spark session in this process",
            code="spark.no_session",
            fix="run the pipeline with conduit-dagster run or in Dagster; dry-run and tests open no session for this",
        ) from error


def has_session() -> bool:
    """Return whether this process has a Spark session."""
    if "pyspark" not in sys.modules:
        return False
    try:
        current_session()
    except ConduitError:
        return False
    return True


_OWN_OPTIONS: Final = "correct the settings that are the format's own options, or start again once the cause is gone"
_FIXES: Final = {
    # Java looks for drivers by themselves only among the jars that its process began with
    "No suitable driver": "name the driver's class, such as driver: org.postgresql.Driver, and its package in "
    "conduit.yaml, such as spark.conf: {spark.jars.packages: org.postgresql:postgresql:42.7.7}",
    "No FileSystem for scheme": "with spark:FORMAT, paths, state.staging and state.log must be URLs that Spark opens, "
    "such as s3a:// in place of s3://",
    "Relative path in absolute URI": "Spark reads no folder in which a file's name has a colon, nor a glob there: "
    "rename that file",
    # in a project that was moved; Spark asks for the files of the stream's last batch, wherever it goes on
    "Wrong basePath": "Spark's checkpoint of a stream names its files by their whole paths: move the project back to "
    "where it was",
}
"""Parts of Spark's messages, and what helps."""


@contextmanager
def asked(
    context: ConnectorContext, format_: str, doing: str, registers: str = ""
) -> Generator[tuple[SparkSession, threading.Event]]:
    """Yield the session, and an event that is set when the pipeline is stopped by force, which ends Spark jobs inside.

    ``registers``: the project's Python data source to register with the session first, as ``FILE.py:CLASS``.

    Spark's errors inside become a one-line ``TransientError`` that names the format, or says that the session is lost;
    a forced stop becomes ``JobCancelled``.
    """
    spark = current_session()
    try:
        with jobs_of(context.pipeline, spark) as cancelled, ExitStack() as using:
            if registers:
                using.enter_context(_registrations.holding(spark, _loaded(context.root, registers), cancelled))
            yield spark, cancelled
    except ConduitError:
        raise
    except Exception as error:
        if not is_sparks(error):
            raise
        if (lost := lost_session(spark, error)) is not None:
            raise lost from error
        if _is_missing(error):
            raise _no_format(spark.version, format_) from error
        text = explain(error)
        raise TransientError(
            f"Spark's {format_} can't {doing}: {text}",
            code="spark.format_failed",
            fix=next((fix for part, fix in _FIXES.items() if part in text), _OWN_OPTIONS),
        ) from error


_PACKAGES = {
    "kafka": (
        "org.apache.spark:spark-sql-kafka-0-10_2.13",
        "; or use the connector kafka without spark:",
    ),
    "avro": ("org.apache.spark:spark-avro_2.13", ""),
}
"""Formats that come with Spark but not with PySpark."""


def _is_missing(error: Exception) -> bool:
    text = str(error)
    return "DATA_SOURCE_NOT_FOUND" in text or "Failed to find data source" in text


def _no_format(version: str, format_: str) -> FatalError:
    package, more = _PACKAGES.get(format_, ("GROUP:ARTIFACT", ""))
    number = version if format_ in _PACKAGES else "VERSION"
    fix = f"name its package in conduit.yaml, spark.conf: {{spark.jars.packages: {package}:{number}}}{more}"
    return FatalError(f"Spark has no format {format_}", code="spark.no_data_source", fix=fix)


class _Registrations:
    """Registered data sources, of which a session has one of each name: classes that share a name take turns.

    A process's pipelines share its session: one that registered its class while another's was in use would have that
    one read or write with it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._used: dict[tuple[int, str], list[tuple[str, str]]] = {}
        """By session and name of the data source: the class that is in use, once for each use."""

    @contextmanager
    def holding(self, spark: SparkSession, found: Any, cancelled: threading.Event) -> Generator[None]:
        """Register a class, and keep it registered until the block ends.

        Raises ``JobCancelled`` if the pipeline is stopped by force before the name is free.
        """
        used = self._used.setdefault((id(spark), found.name()), [])
        own = found.__module__, found.__qualname__  # the module's name has a digest of its text
        with self._changed:
            while any(one != own for one in used):
                if cancelled.is_set():
                    raise JobCancelled("the data source is in use by another connector", code="spark.job_cancelled")
                self._changed.wait(_LOOK)
            used.append(own)
        try:
            spark.dataSource.register(found)
            yield
        finally:
            with self._changed:
                used.remove(own)
                self._changed.notify_all()


_LOOK: Final = 0.2
_registrations = _Registrations()


def _loaded(root: str, source: str) -> Any:
    """Return the class of a data source. Raises ``FatalError`` if the file can't be loaded or has no such class."""
    file, _, name = source.rpartition(":")
    found = getattr(_module(Path(root, file)), name, None)
    if found is None:
        raise FatalError(
            f"{file} has no class {name}",
            code="spark.no_data_source",
            place=file,
            fix="correct the setting register",
        )
    return found


def _module(path: Path) -> Any:
    from pyspark import cloudpickle

    try:
        text = path.read_text()
        module = module_of("conduit_dagster_spark", path.stem, text, str(path))
    except Exception as error:
        raise FatalError(
            f"{path.name} can't be loaded: {type(error).__name__}: {error}",
            code="spark.no_data_source",
            place=str(path),
            fix="correct the file, or the setting register",
        ) from error
    # workers have no such module: its classes are pickled by value
    cloudpickle.register_pickle_by_value(module)
    return module
