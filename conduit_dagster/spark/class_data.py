"""The class-data archive: Spark's classes in the JVM's memory layout, so that the JVM need not load them again.

One per Spark and Java, in the user's cache; ``archive_maker`` makes it in the background. A failure here only means
a slower start: the JVM ignores an archive that does not match, and an archive that breaks the start is removed.
``CONDUIT_SPARK_ARCHIVE=off`` disables both making and using it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from conduit_dagster.recovery.errors import ConduitError
from conduit_dagster.spark.java import require_java
from conduit_dagster.spark.spark_settings import spark_home

# listing the jars and running Java takes a quarter of a second: too long to do twice
_known: dict[str, Path | None] = {}
_ANOTHER_TRY = 24 * 3600
_LATEST_JAVA = 17
_UNUSED = 30 * 24 * 3600
# with these the JVM sees other classes and warns about the archive
_OTHER_CLASSES = ("spark.driver.extraClassPath", "spark.driver.userClassPathFirst")


def archive_options(conf: Mapping[str, str]) -> list[str]:
    """Return the JVM options that use the archive; empty if it does not exist yet."""
    path = archive_path()
    if path is None or not path.is_file() or any(key in conf for key in _OTHER_CLASSES) or " " in str(path):
        return []
    with suppress(OSError):
        os.utime(path)  # for forget_unused: many file systems keep no access times
    # a warning about an archive that does not match would go to the user's terminal
    return [f"-XX:SharedArchiveFile={path}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def archive_path() -> Path | None:
    """Return the path of the archive for this Spark and Java; ``None`` if it is disabled or unsupported.

    Java 21 takes none: it compares class paths entry by entry, and Spark's names one jar twice.
    """
    if os.environ.get("CONDUIT_SPARK_ARCHIVE", "").lower() in ("off", "0", "false"):
        return None
    environment = _environment()
    if environment not in _known:
        _known[environment] = _path()
    return _known[environment]


def _environment() -> str:
    """Return all on which the path depends."""
    names = ("JAVA_HOME", "PATH", "SPARK_HOME", "XDG_CACHE_HOME", "HOME")
    return "\0".join(os.environ.get(name, "") for name in names)


def _path() -> Path | None:
    from pyspark import __version__

    try:
        java = require_java()
        if java.major > _LATEST_JAVA:
            return None
        jars = spark_home() / "jars"
        content = [f"{jar.name} {jar.stat().st_size}" for jar in sorted(jars.iterdir())]
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except (ConduitError, OSError, RuntimeError):
        return None
    named = "\n".join([str(java.home), java.version, platform.machine(), str(jars), *content])
    digest = hashlib.sha256(named.encode()).hexdigest()[:12]
    return cache / "conduit-dagster" / "archives" / f"spark-{__version__}-java-{java.version}-{digest}.jsa"


def make_archive_later() -> None:
    """Start one low-priority process that makes the archive, unless it exists or an attempt failed recently."""
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
    """Remove an archive with which Spark failed to start; return whether one existed."""
    path = archive_path()
    if path is None or not path.exists():
        return False
    mark_failed(path)
    try:
        path.unlink(missing_ok=True)
    except OSError:  # part of a read-only image: this process does without it
        _known[_environment()] = None
    return True


def mark_failed(path: Path) -> None:
    """Record a failure: no new attempt is made for a day."""
    try:
        path.with_suffix(".failed").touch()
    except OSError:
        pass


def forget_unused(folder: Path) -> None:
    """Remove archives that no JVM has used for a month: those of deleted environments."""
    for archive in folder.glob("spark-*.jsa"):
        try:
            if time.time() - archive.stat().st_mtime > _UNUSED:
                for suffix in (".jsa", ".lock", ".failed"):
                    archive.with_suffix(suffix).unlink(missing_ok=True)
        except OSError:
            continue  # another process removes it as well


def _failed_lately(path: Path) -> bool:
    try:
        return time.time() - path.with_suffix(".failed").stat().st_mtime < _ANOTHER_TRY
    except OSError:
        return False
