"""Options of every JVM that tests start."""

from __future__ import annotations

from conduit_dagster.spark.class_data import archive_path

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The JVM lives for seconds, so optimising compilation costs more than it gains."""


def archive_switch() -> str:
    """Of ``CONDUIT_SPARK_ARCHIVE``: an archive that exists is used, and none is made beside a test."""
    path = archive_path()
    return "" if path is not None and path.exists() else "off"
