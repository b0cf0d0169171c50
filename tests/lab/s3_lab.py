"""The ``s3`` connector with a real server, in a folder of its bucket."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from conduit_dagster.connectors.s3.bucket import Bucket, client_for
from conduit_dagster.connectors.s3.destination import S3Destination
from conduit_dagster.connectors.s3.settings import S3DestinationSettings, S3Settings, S3SourceSettings
from conduit_dagster.connectors.s3.source import S3Source
from conduit_dagster.expressions import Clock
from conduit_dagster.record import Record
from conduit_dagster.sdk import ConnectorContext, Delivery, WriterTask

from .s3_mock import S3Mock
from .s3_server import S3Server


class S3Lab:
    """Connectors of a pipeline ``p``, and what lies in their folder."""

    def __init__(self, server: S3Server | S3Mock, root: Path, prefix: str = "") -> None:
        self.server, self.root, self.prefix = server, root, prefix or root.name
        self.bucket = Bucket(S3Settings.model_validate(self.settings))

    @property
    def settings(self) -> dict[str, str]:
        """Bucket, login and prefix."""
        server = self.server
        return {
            "aws.bucket": server.bucket, "aws.accessKeyId": server.user, "aws.secretAccessKey": server.secret,
            "aws.region": "us-east-1", "aws.endpoint": server.address, "prefix": self.prefix,
        }  # fmt: skip

    def within(self, folder: str) -> S3Lab:
        """Return the lab of a folder in the folder."""
        return S3Lab(self.server, self.root, f"{self.prefix}/{folder}")

    def source(self, **more: str) -> S3Source:
        """Return a source that lists the folder at each look."""
        given = S3SourceSettings.model_validate({**self.settings, "pollingPeriod": "1us", **more})
        return S3Source(given, ConnectorContext("p", "in", str(self.root), Clock(7)))

    def destination(self, kind: str = "json", **more: str) -> S3Destination:
        """Return a destination that writes into the folder."""
        given = S3DestinationSettings.model_validate({**self.settings, "format": kind, **more})
        return S3Destination(given, ConnectorContext("p", "out", str(self.root), Clock(7), "exactly-once"))

    def put(self, name: str, data: bytes, **options: Any) -> None:
        """Write an object of the folder."""
        self.bucket.put(f"{self.prefix}/{name}", [data], options)

    def remove(self, name: str) -> None:
        """Remove an object of the folder."""
        client_for(self.destination().settings.login).delete_object(
            Bucket=self.bucket.name, Key=f"{self.prefix}/{name}"
        )

    def touch(self, name: str, data: bytes, second: int) -> None:
        """Write an object with a time of its own, where the server lets it: versitygw's times have seconds."""
        self.put(name, data)
        self.server.set_time(f"{self.prefix}/{name}", second)

    def names(self) -> list[str]:
        """Return the names of the folder's objects, in order."""
        return [one.key.removeprefix(f"{self.prefix}/") for one in self.bucket.objects(f"{self.prefix}/")]

    def content(self, name: str) -> bytes:
        """Return the bytes of an object of the folder."""
        found = self.bucket.read(f"{self.prefix}/{name}")
        assert found is not None
        return found.data

    def rows(self) -> list[dict[str, Any]]:
        """Return the records of all objects in order, with Conduit's names in small letters."""
        return [row for name in self.names() for row in _rows(name, self.content(name))]

    def numbers(self) -> list[int]:
        """Return ``i`` of the payload of each record."""
        return [json.loads(row["payload"])["i"] for row in self.rows()]


def _rows(name: str, data: bytes) -> list[dict[str, Any]]:
    if name.endswith(".json"):
        return [{key.lower(): value for key, value in json.loads(line).items()} for line in data.splitlines()]
    import pyarrow as pa

    table = pq.read_table(pa.BufferReader(data))
    return [
        {key: dict(value) if key == "metadata" else value.decode() for key, value in row.items()}
        for row in table.to_pylist()
    ]


def staged(destination: S3Destination, step: int, *tasks: Sequence[Record]) -> Delivery:
    """Return a prepared delivery, one part per task."""
    staging = f"{destination.context.root}/staging/{step}"
    writers = [destination.writer(WriterTask(staging, index, f"t{index}")) for index in range(len(tasks))]
    for writer, records in zip(writers, tasks, strict=True):
        assert list(writer.write(list(records))) == []
    parts = tuple(part for writer in writers if (part := writer.finish()) is not None)
    return Delivery(f"{step:02x}" * 32, step, "out", staging, parts, destination.target(None))
