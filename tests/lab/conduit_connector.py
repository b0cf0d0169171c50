"""A Conduit source connector as a process, driven through Conduit's plugin protocol (version 2)."""

from __future__ import annotations

import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2

VARIABLE = "CONDUIT_POSTGRES_CONNECTOR"
"""Environment variable with the path of Conduit's postgres connector, version 0.14.2."""
PLAIN_RECORDS = {
    "logrepl.withAvroSchema": "false",
    "sdk.schema.extract.key.enabled": "false",
    "sdk.schema.extract.payload.enabled": "false",
}
"""Settings for records as documents. Its Avro schemas don't allow null columns."""
_OPERATIONS = {1: "create", 2: "update", 3: "delete", 4: "snapshot"}
_PATIENCE = 60.0
_COOKIE = "204e8e812c3a1bb73b838928c575b42a105dd2e9aa449be481bc4590486df53f"
_BYTES, _STRING, _MESSAGE, _ENUM = 12, 9, 11, 5
_MESSAGES: dict[str, list[tuple[str, int, int, str, bool]]] = {
    # name, number, type, message type, is repeated
    "Data": [("raw_data", 1, _BYTES, "", False), ("structured_data", 2, _MESSAGE, ".google.protobuf.Struct", False)],
    "Change": [("before", 1, _MESSAGE, ".oracle.Data", False), ("after", 2, _MESSAGE, ".oracle.Data", False)],
    "Pair": [("key", 1, _STRING, "", False), ("value", 2, _STRING, "", False)],
    "Record": [
        ("position", 1, _BYTES, "", False),
        ("operation", 2, _ENUM, "", False),
        ("metadata", 3, _MESSAGE, ".oracle.Pair", True),
        ("key", 4, _MESSAGE, ".oracle.Data", False),
        ("payload", 5, _MESSAGE, ".oracle.Change", False),
    ],
    "Configure": [("config", 1, _MESSAGE, ".oracle.Pair", True)],
    "Position": [("position", 1, _BYTES, "", False)],
    "Acks": [("ack_positions", 1, _BYTES, "", True)],
    "Records": [("records", 1, _MESSAGE, ".oracle.Record", True)],
}
"""Fields of requests and responses; a map is encoded as a list of pairs."""


def _classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    file = descriptor_pb2.FileDescriptorProto(name="oracle.proto", package="oracle", syntax="proto3")
    file.dependency.append("google/protobuf/struct.proto")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, of, is_repeated in fields:
            made = message.field.add(name=field, number=number, type=kind, label=3 if is_repeated else 1)  # type: ignore[arg-type]
            if of:
                made.type_name = of
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"oracle.{name}")) for name in _MESSAGES}


_CLASSES = _classes()


def postgres_connector() -> Path | None:
    """Return the path of Conduit's postgres connector, a Go binary that is not part of this project; None if it is
    missing."""
    own = Path.home() / ".cache" / "conduit-dagster" / "conduit-connector-postgres-0.14.2"
    found = Path(os.environ.get(VARIABLE) or own)
    return found if found.exists() else None


class ConduitConnector:
    """A source connector as a context manager: configured, opened from its beginning, and running. Acks records on
    arrival."""

    def __init__(self, binary: Path, folder: Path, config: dict[str, str]) -> None:
        self._binary = binary
        self._log = folder / "connector.log"
        self._config = config
        self._acks: queue.Queue[Any] = queue.Queue()
        self._failure = ""

    def __enter__(self) -> Self:
        # a short path, since a Unix socket's path has at most 107 bytes
        self._folder = tempfile.TemporaryDirectory(prefix="conduit-")
        environment = {
            "CONDUIT_PLUGIN_MAGIC_COOKIE": _COOKIE, "PLUGIN_PROTOCOL_VERSIONS": "2", "CONDUIT_CONNECTOR_ID": "oracle",
            "CONDUIT_CONNECTOR_LOG_LEVEL": "warn", "CONDUIT_CONNECTOR_TOKEN": "oracle",
            "CONDUIT_CONNECTOR_UTILITIES_GRPC_TARGET": "127.0.0.1:1", "TMPDIR": self._folder.name,
            "CONDUIT_CONNECTOR_MAX_RECEIVE_RECORD_SIZE": str(4 << 20), "PATH": os.environ["PATH"],
        }  # fmt: skip
        with self._log.open("wb") as log:
            self._process = subprocess.Popen([self._binary], stdout=subprocess.PIPE, stderr=log, env=environment)
        assert self._process.stdout is not None
        fields = self._process.stdout.readline().decode().strip().split("|")
        assert len(fields) >= 5 and fields[1] == "2", (fields, self.said())
        self._channel = grpc.insecure_channel(f"unix:{fields[3]}" if fields[2] == "unix" else fields[3])
        self._call("Configure", _CLASSES["Configure"](config=_pairs(self._config)))
        self._call("LifecycleOnCreated", _CLASSES["Configure"](config=_pairs(self._config)))
        self._call("Open", _CLASSES["Position"]())
        self._records: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._acks.put(None)
        self._process.kill()
        self._process.wait()
        self._channel.close()
        self._folder.cleanup()

    def said(self) -> str:
        """Return the tail of the connector's log."""
        return self._log.read_text()[-3_000:]

    @property
    def pid(self) -> int:
        """Process id of the connector."""
        return self._process.pid

    def take(self, count: int) -> list[Any]:
        """Return the next ``count`` records. Raises ``RuntimeError`` if the connector ends, or stays silent for a
        minute."""
        found: list[Any] = []
        while len(found) < count:
            try:
                record = self._records.get(timeout=_PATIENCE)
            except queue.Empty:
                record = None
            if record is None:
                said = f"{self._failure}\n{self.said()}"
                raise RuntimeError(f"{self._binary.name} has ended, or is silent, after {len(found)}: {said}")
            found.append(record)
        return found

    def _call(self, name: str, request: Any) -> None:
        path = f"/connector.v2.SourcePlugin/{name}"
        try:
            self._channel.unary_unary(path, type(request).SerializeToString, bytes)(request, timeout=_PATIENCE)
        except grpc.RpcError as error:
            raise RuntimeError(f"{name}: {error}\n{self.said()}") from None

    def _run(self) -> None:
        run = self._channel.stream_stream(
            "/connector.v2.SourcePlugin/Run", _CLASSES["Acks"].SerializeToString, _CLASSES["Records"].FromString
        )
        try:
            for message in run(iter(self._acks.get, None)):
                self._acks.put(_CLASSES["Acks"](ack_positions=[record.position for record in message.records]))
                for record in message.records:
                    self._records.put(record)
        except grpc.RpcError as error:
            self._failure = str(error)
            self._records.put(None)


def operation_of(record: Any) -> str:
    """Return the operation by its name in this project."""
    return _OPERATIONS[record.operation]


def collection_of(record: Any) -> str:
    """Return the collection of a record, from its metadata."""
    return next(pair.value for pair in record.metadata if pair.key == "opencdc.collection")


def document_of(data: Any) -> dict[str, Any] | None:
    """Return a structured payload or key; None for any other."""
    return dict(_items(data.structured_data)) if data.HasField("structured_data") else None


def _items(structure: Any) -> Iterator[tuple[str, Any]]:
    for name, value in structure.fields.items():
        kind = value.WhichOneof("kind")
        yield name, None if kind == "null_value" else getattr(value, kind)


def _pairs(config: dict[str, str]) -> list[Any]:
    return [_CLASSES["Pair"](key=key, value=value) for key, value in config.items()]
