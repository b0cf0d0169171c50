"""Kafka's own jars for tests, fetched once by Ivy, which comes with PySpark, and kept outside of the checkout."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from conduit_dagster.spark.java import find_java

VERSION = "4.1.0"
_MODULES = (("org.apache.kafka", "kafka_2.13", VERSION), ("org.slf4j", "slf4j-simple", "1.7.36"))
_LEAST = 45
"""A broker needs more than forty jars: fewer are half a download."""


class NoKafkaError(RuntimeError):
    """The jars, or a Java, can't be had here."""


def java() -> str:
    """The program that runs the broker."""
    found = find_java()
    if found is None:
        raise NoKafkaError("no Java was found")
    return str(Path(found.home) / "bin" / "java")


def kafka_jars() -> Path:
    """The folder with the jars. Raises ``NoKafkaError`` where they are missing and can't be fetched.

    ``CONDUIT_KAFKA_JARS`` names another folder. It appears with one rename, so that it is never seen half full.
    """
    own = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "conduit-dagster" / f"kafka-{VERSION}"
    folder = Path(os.environ.get("CONDUIT_KAFKA_JARS") or own)
    if len(list(folder.glob("*.jar"))) >= _LEAST:
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".kafka-") as aside:
        _fetch(Path(aside))
        try:
            (Path(aside) / "jars").rename(folder)
        except OSError:
            # another process was first
            if len(list(folder.glob("*.jar"))) < _LEAST:
                raise
    return folder


def _fetch(aside: Path) -> None:
    lines: list[str] = []
    for module in _MODULES:
        command = _command(aside, module)
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        except subprocess.TimeoutExpired:
            raise NoKafkaError(f"Kafka {VERSION} could not be fetched within five minutes") from None
        lines += (ran.stdout + ran.stderr).strip().splitlines()
    if len(list(aside.glob("jars/*.jar"))) < _LEAST:
        raise NoKafkaError(f"Kafka {VERSION} could not be fetched: {lines[-1] if lines else 'no reason given'}")


def _command(aside: Path, module: tuple[str, str, str]) -> list[str]:
    import pyspark

    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"), None)
    if ivy is None:
        raise NoKafkaError("PySpark came without Ivy")
    names = str(aside / "jars" / "[artifact]-[revision](-[classifier]).[ext]")
    main = [java(), "-cp", str(ivy), "org.apache.ivy.Main", "-error", "-cache", str(aside / "cache")]
    return [*main, "-dependency", *module, "-confs", "default", "-retrieve", names, "-types", "jar", "bundle"]
