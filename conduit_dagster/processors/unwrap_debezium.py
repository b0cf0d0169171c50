"""``unwrap.debezium``: unwrap the change in a Debezium record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from typing_extensions import override

from conduit_dagster.field_reference import kind_of
from conduit_dagster.payload_code import NoFitError
from conduit_dagster.processors.common.setting_kinds import ConduitSettings
from conduit_dagster.processors.common.unwrapping import (
    PAYLOADS,
    PayloadField,
    UnwrappingProcessor,
    document_in,
    invalid,
    text_of,
    unwrapped_key,
)
from conduit_dagster.record import READ_AT, Data, Document
from conduit_dagster.sdk import Example, Record

_OPERATIONS: Final = {"c": "create", "u": "update", "d": "delete", "r": "snapshot", "$unset": "update"}
_NEEDED: Final = ("after", "source", "op")
_NO_METADATA: Final = frozenset({"after", "before", "op", "source", "ts_ms"})
_MILLISECOND: Final = 1_000_000


class UnwrapDebeziumSettings(ConduitSettings):
    """Settings of ``unwrap.debezium``."""

    field: PayloadField = ".Payload.After"
    """The field that holds the Debezium record, as a document or as JSON."""


class UnwrapDebezium(UnwrappingProcessor):
    """Replace the record by the one that Debezium wrapped, except for its position.

    Operation and payloads are Debezium's. Its ``source`` becomes metadata, and so do its other fields, with the prefix
    ``debezium.``; they replace existing entries. ``ts_ms`` becomes ``opencdc.readAt``. A key with a ``payload`` is
    replaced by that payload. Any other record is nacked.
    """

    name = "unwrap.debezium"
    Settings = UnwrapDebeziumSettings
    settings: UnwrapDebeziumSettings
    examples = (
        Example(
            "An insert",
            {},
            Record(
                "1",
                {"m": "x"},
                {
                    "payload": {
                        "before": None,
                        "after": {"id": 27},
                        "source": {"table": "orders"},
                        "op": "c",
                        "ts_ms": 1674061777225,
                    }
                },
                b'{"payload": "27"}',
            ),
            Record("1", {"m": "x", READ_AT: "1674061777225000000", "table": "orders"}, {"id": 27}, b"27"),
        ),
        Example("Something else", {}, Record("1", {}, {"id": 1}), "unwrap.invalid"),
    )

    @override
    def change(self, record: Record) -> None:
        change = document_in(record, self._field).get("payload")
        if not isinstance(change, dict):
            raise invalid(f"{self.settings.field} has no payload")
        if missing := [name for name in _NEEDED if name not in change]:
            raise invalid(f"the payload in {self.settings.field} has no {' and no '.join(missing)}")
        operation = _OPERATIONS.get(change["op"]) if isinstance(change["op"], str) else None
        if operation is None:
            raise invalid(f"{change['op']!r} is not an operation of Debezium: {', '.join(_OPERATIONS)}")
        before, after, metadata = _data(change, "before"), _data(change, "after"), _metadata(change, record.metadata)
        record.metadata = metadata
        record.operation, record.before, record.after = operation, before, after
        record.key = unwrapped_key(record.key)

    @staticmethod
    @override
    def _unwrapped(rest: Iterator[Any]) -> None:
        """Unwrap payloads that are already Debezium documents, with no text in place of a document."""
        for record in rest:
            change = record.after["payload"]
            operation, before, after = _OPERATIONS[change["op"]], change.get("before"), change["after"]
            if type(after) not in PAYLOADS or type(before) not in PAYLOADS:
                raise NoFitError
            key = unwrapped_key(record.key)
            record.metadata, record.operation = _metadata(change, record.metadata), operation
            record.key, record.before, record.after = key, before, after


def _data(change: Document, name: str) -> Data:
    value = change.get(name)
    if value is None or isinstance(value, dict):
        return value
    if isinstance(value, str):
        return value.encode()
    raise invalid(f"{name} is {kind_of(value)}, not a document or text")


def _metadata(change: Document, known: dict[str, str]) -> dict[str, str]:
    found, source = known.copy(), change["source"]
    for name in change:
        if name not in _NO_METADATA:
            found.update(_flat(f"debezium.{name}", change[name]))
    if "ts_ms" in change:
        found[READ_AT] = _nanoseconds(change["ts_ms"])
    # the source comes last: it wins
    if type(source) is not dict:
        found.update(_flat("", source))
        return found
    for name, value in source.items():
        if type(value) is str:
            found[name] = value
        else:
            found.update(_flat(name, value))
    return found


def _nanoseconds(value: Any) -> str:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise invalid(f"ts_ms is {kind_of(value)}, not a number")
    return str(int(value) * _MILLISECOND)


def _flat(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(f"{key}.{name}" if key else name, inner)
    elif value is not None:
        yield key, text_of(value)
