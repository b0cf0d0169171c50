"""Destinations of the kill matrix: how each is set up, and read back as one ordered stream."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
from deltalake import DeltaTable
from lab.kafka_server import create_topic, read_topic
from lab.parts_stream import read_folder
from psycopg import sql

Row = dict[str, Any]
_COLUMNS = "n bigserial PRIMARY KEY, i bigint, m text"
_LETTER_COLUMNS = "n bigserial PRIMARY KEY, position text, operation text, metadata jsonb, key jsonb, payload jsonb"


class Place(ABC):
    """One kind of destination in one project folder. ``name`` is a plain word, one per output."""

    plugin: str

    def __init__(self, root: Path, database: str | None) -> None:
        self.root = root
        self.database = database

    def prepare(self, name: str, letters: bool, constraint: str = "") -> None:
        """Create what must exist before the first run; ``constraint`` is SQL that refuses records."""
        del name, letters, constraint

    @abstractmethod
    def settings(self, name: str, letters: bool) -> dict[str, str]:
        """The connector's settings."""

    @abstractmethod
    def rows(self, name: str) -> list[Row]:
        """The content, in order of delivery; half a line left by a kill does not count."""


def _documents(lines: Iterator[bytes]) -> Iterator[Row]:
    for line in lines:
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue  # at-most-once may leave a partial line: its record is missing, which the verdict detects


class OrderedFilePlace(Place):
    """One ordered file."""

    plugin = "builtin:file"

    def settings(self, name: str, letters: bool) -> dict[str, str]:
        """Plain payload lines; for a dead letter the payload is the failed record."""
        return {"path": f"./{name}.jsonl", "sdk.record.format": "payload/json"}

    def rows(self, name: str) -> list[Row]:
        """Its lines."""
        path = self.root / f"{name}.jsonl"
        return list(_documents(iter(path.read_bytes().splitlines()))) if path.exists() else []


class FolderPlace(Place):
    """A folder of parts."""

    plugin = "builtin:file"

    def settings(self, name: str, letters: bool) -> dict[str, str]:
        """As for the ordered file, with a slash."""
        return {"path": f"./{name}/", "sdk.record.format": "payload/json"}

    def rows(self, name: str) -> list[Row]:
        """The lines of its deliveries."""
        path = self.root / name
        return list(_documents(read_folder(path))) if path.exists() else []


class DeltaPlace(Place):
    """A Delta table."""

    plugin = "builtin:delta"
    suffix = "delta"
    """Of the folder's name."""

    def settings(self, name: str, letters: bool) -> dict[str, str]:
        """Columns are inferred for dead letters, whose payload is nested."""
        columns = {} if letters else {"columns": "i:long, m:string"}
        return {"path": f"./{name}.{self.suffix}", **columns}

    def rows(self, name: str) -> list[Row]:
        """File by file: rows within one are in order, and names sort by step."""
        path = self.root / f"{name}.{self.suffix}"
        if not DeltaTable.is_deltatable(str(path)):
            return []
        files = sorted(DeltaTable(str(path)).file_uris(), key=lambda uri: uri.rpartition("/")[2])
        return [row for uri in files for row in pq.read_table(uri).to_pylist()]


class ParquetPlace(DeltaPlace):
    """A folder of Parquet files, with the columns of the Delta table."""

    plugin = "builtin:parquet"
    suffix = "parquet"

    def rows(self, name: str) -> list[Row]:
        """Step by step, part by part."""
        files = sorted((self.root / f"{name}.{self.suffix}").glob("step=*/*.parquet"))
        return [row for path in files for row in pq.ParquetFile(path).read().to_pylist()]


class PostgresPlace(Place):
    """A table with a counter, so that rows can be read back in the order in which they went in."""

    plugin = "builtin:postgres"

    def prepare(self, name: str, letters: bool, constraint: str = "") -> None:
        """Creates the table."""
        columns = _LETTER_COLUMNS if letters else _COLUMNS
        with self._connect() as connection:
            connection.execute(f'CREATE TABLE "{name}" ({columns})'.encode())
            if constraint:
                connection.execute(constraint.replace("{table}", name).encode())

    def settings(self, name: str, letters: bool) -> dict[str, str]:
        """The table by its name."""
        assert self.database is not None
        return {"url": self.database, "table": name}

    def rows(self, name: str) -> list[Row]:
        """By the counter."""
        query = sql.SQL("SELECT to_jsonb(t) FROM {} t ORDER BY n").format(sql.Identifier(name))
        with self._connect() as connection:
            return [row[0] for row in connection.execute(query).fetchall()]

    def _connect(self) -> psycopg.Connection[Any]:
        assert self.database is not None
        return psycopg.connect(self.database, autocommit=True)


_SEVEN = 'hasSuffix "7" (toString .Payload.After.i)'


class KafkaPlace(Place):
    """A topic of one partition; ``database`` is the broker. Its topics and its transactional ids are the folder's own.

    What refuses records: a check names them, as a topic that is missing does; a deferred one does not, as the brokers
    do not for messages that are too large.
    """

    plugin = "builtin:kafka"

    def __init__(self, root: Path, database: str | None) -> None:
        super().__init__(root, database)
        self._own = hashlib.sha256(str(root).encode()).hexdigest()[:12]
        self._refuses: dict[str, str] = {}

    def _topic(self, name: str) -> str:
        return f"{self._own}-{name}"

    def prepare(self, name: str, letters: bool, constraint: str = "") -> None:
        """Creates the topic."""
        del letters
        assert self.database is not None
        create_topic(self.database, self._topic(name), max_message_bytes="3000" if "DEFERRABLE" in constraint else "")
        self._refuses[name] = "large" if "DEFERRABLE" in constraint else "missing" if constraint else ""

    def settings(self, name: str, letters: bool) -> dict[str, str]:
        """Plain payloads."""
        assert self.database is not None
        topic, refuses = self._topic(name), self._refuses.get(name, "")
        settings = {
            "servers": self.database, "topic": topic, "transactional-id": topic, "sdk.record.format": "payload/json",
            "create-topics": "never",
        }  # fmt: skip
        if refuses == "missing":
            settings["topic"] = f'{{{{ ternary "{topic}-no" "{topic}" ({_SEVEN}) }}}}'
        if refuses == "large":
            padded = f'{{{{ replace "7}}" "7{" " * 9_000}}}" (toJson .Payload.After) }}}}'
            settings |= {"sdk.record.format": "template", "sdk.record.format.options": padded, "compression": "none"}
        return settings

    def rows(self, name: str) -> list[Row]:
        """As readers of committed messages see them, and equal for each of two."""
        assert self.database is not None
        first, second = ([m.value() or b"" for m in read_topic(self.database, self._topic(name))] for _ in range(2))
        assert first == second
        return list(_documents(iter(first)))


PLACES: dict[str, type[Place]] = {
    "file": OrderedFilePlace,
    "folder": FolderPlace,
    "delta": DeltaPlace,
    "parquet": ParquetPlace,
    "postgres": PostgresPlace,
}
"""Every destination that keeps exactly-once; a new one is added here."""
ALL_PLACES: dict[str, type[Place]] = {**PLACES, "kafka": KafkaPlace}
"""With those that have a server of their own, and tests of their own."""
SECOND = {
    "file": "postgres",
    "folder": "file",
    "delta": "folder",
    "parquet": "file",
    "postgres": "delta",
    "kafka": "file",
}
"""The kind of the second destination beside the first."""
