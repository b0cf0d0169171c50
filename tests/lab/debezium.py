"""Debezium's embedded engine beside our source: an independent reader of the same database."""

from __future__ import annotations

import json
import queue
import secrets
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from psycopg.conninfo import conninfo_to_dict

# the benchmarks import it as a part of the tests
from .maven_jars import JarSet, java
from .postgres_tables import drop_slots

VERSION = "3.3.1.Final"
JARS = JarSet(
    "debezium-3.3.1",
    (
        ("io.debezium", "debezium-embedded", VERSION),
        ("io.debezium", "debezium-connector-postgres", VERSION),
        ("org.slf4j", "slf4j-simple", "1.7.36"),
    ),
    least=65,
)
_PROGRAM = Path(__file__).with_name("DebeziumReader.java")
_PATIENCE = 60.0
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m")


class Event(NamedTuple):
    """A change event, with the schemas of its key and of its value."""

    key: dict[str, Any] | None
    value: dict[str, Any]

    @property
    def payload(self) -> dict[str, Any]:
        """Debezium's envelope."""
        return self.value["payload"]

    @property
    def table(self) -> str:
        """The table, as ``schema.table``."""
        source = self.payload["source"]
        return f"{source['schema']}.{source['table']}"


def properties(url: str, name: str, **more: str) -> dict[str, str]:
    """Return the settings of a connector on a database; slot and publication are named ``name``."""
    known = conninfo_to_dict(url)
    return {
        "name": name,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "topic.prefix": "oracle",
        "database.hostname": str(known["host"]),
        "database.port": str(known["port"]),
        "database.user": str(known["user"]),
        "database.password": str(known["password"]),
        "database.dbname": str(known["dbname"]),
        "plugin.name": "pgoutput",
        "slot.name": name,
        "publication.name": name,
        "publication.autocreate.mode": "disabled",
        **more,
    }


def command(folder: Path, settings: dict[str, str], *words: str, options: tuple[str, ...] = _OPTIONS) -> list[str]:
    """Return the command that starts the program. Raises ``NoJarsError``."""
    path = folder / f"{settings['name']}.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    path.chmod(0o600)
    return [java(), *options, _QUIET, "-cp", f"{JARS.folder()}/*", str(_PROGRAM), str(path), *words]


class Debezium:
    """One engine, as a context manager; on exit the process is ended and its slot dropped. Raises ``NoJarsError``."""

    def __init__(self, url: str, folder: Path, **more: str) -> None:
        self.url = url
        self.name = f"debezium_{secrets.token_hex(4)}"
        self._command = command(folder, properties(url, self.name, **more))
        self._log = folder / f"{self.name}.log"
        self._lines: queue.Queue[str | None] = queue.Queue()

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        drop_slots(self.url, self.name)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def until(self, is_last: Callable[[Event], bool]) -> list[Event]:
        """Return the next events, up to the last one. Raises if the engine ends before, or stalls."""
        found = [self._next()]
        while not is_last(found[-1]):
            found.append(self._next())
        return found

    def take(self, count: int) -> list[Event]:
        """Return this many events. Raises if the engine ends before, or stalls."""
        return [self._next() for _ in range(count)]

    def _next(self) -> Event:
        try:
            line = self._lines.get(timeout=_PATIENCE)
        except queue.Empty:
            line = None
        if line is None:
            raise RuntimeError(f"Debezium has ended, or is silent:\n{self.said()}")
        return Event(**json.loads(line))

    def said(self) -> str:
        """Return the end of its log."""
        return self._log.read_text()[-4_000:]
