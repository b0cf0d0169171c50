"""The class-data archive: Spark's classes as the JVM keeps them in memory, so that it need not load them anew.

One per Spark and Java, in the user's cache; ``archive_maker`` makes it in the background. Every failure here means
a slower start and nothing else: a JVM passes over an archive that does not fit, and one that it fails with is
removed. ``CONDUIT_SPARK_ARCHIVE=off`` keeps from making and using one.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.spark.java import require_java
from conduit_dagster.spark.spark_home import spark_home

# a quarter of a second of listing jars and asking Java is too long to be spent twice
_known: dict[str, Path | None] = {}
_ANOTHER_TRY = 24 * 3600
# the JVM sees other classes then, and says so
_OTHER_CLASSES = ("spark.driver.extraClassPath", "spark.driver.userClassPathFirst")


def archive_options(conf: Mapping[str, str]) -> list[str]:
    """The JVM's options that use the archive; none where there is no archive yet."""
    path = archive_path()
    if path is None or not path.is_file() or any(key in conf for key in _OTHER_CLASSES) or " " in str(path):
        return []
    # a word about an archive that does not fit would go to the user's terminal
    return [f"-XX:SharedArchiveFile={path}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def archive_path() -> Path | None:
    """Where the archive of this Spark and this Java is or will be; ``None`` where none is wanted or possible."""
    if os.environ.get("CONDUIT_SPARK_ARCHIVE", "").lower() in ("off", "0", "false"):
        return None
    key = "\0".join(os.environ.get(name, "") for name in ("JAVA_HOME", "PATH", "SPARK_HOME", "XDG_CACHE_HOME", "HOME"))
    if key not in _known:
        _known[key] = _path()
    return _known[key]


def _path() -> Path | None:
    from pyspark import __version__

    try:
        java = require_java()
        jars = spark_home() / "jars"
        content = [f"{jar.name} {jar.stat().st_size}" for jar in sorted(jars.iterdir())]
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except (ConduitError, OSError, RuntimeError):
        return None
    named = "\n".join([str(java.home), java.version, platform.machine(), str(jars), *content])
    digest = hashlib.sha256(named.encode()).hexdigest()[:12]
    return cache / "conduit-dagster" / "archives" / f"spark-{__version__}-java-{java.version}-{digest}.jsa"


def make_archive_later() -> None:
    """Has the archive made by a process of its own, nice and once, if there is none and it did not fail lately."""
    path = archive_path()
    if path is None or path.exists() or _failed_lately(path):
        return
    from conduit_dagster.spark.server_launch import package_path

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        maker = subprocess.Popen(
            [sys.executable, "-m", "conduit_dagster.spark.archive_maker"],
            cwd=path.parent, env={**os.environ, "PYTHONPATH": package_path()}, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        return
    _makers.append(maker)


_makers: list[subprocess.Popen[bytes]] = []


def distrust_archive() -> bool:
    """Removes an archive with which Spark did not start; whether there was one."""
    path = archive_path()
    if path is None or not path.exists():
        return False
    mark_failed(path)
    path.unlink(missing_ok=True)
    return True


def mark_failed(path: Path) -> None:
    """No other is made for a day."""
    try:
        path.with_suffix(".failed").touch()
    except OSError:
        pass


def _failed_lately(path: Path) -> bool:
    try:
        return time.time() - path.with_suffix(".failed").stat().st_mtime < _ANOTHER_TRY
    except OSError:
        return False
