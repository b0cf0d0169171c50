"""``unwrap.debezium``: unwrap the change in a Debezium record."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, Final

from typing_extensions import override

from conduit_dagster.change_marks import TRUNCATE, UNCHANGED_TOAST, unchanged_text
from conduit_dagster.field_reference import kind_of
from conduit_dagster.payload_code import NoFitError
from conduit_dagster.processors.common.setting_kinds import ConduitSettings
from conduit_dagster.processors.common.unwrapping import (
    PAYLOADS,
    PayloadField,
    UnwrappingProcessor,
    document_in,
    document_key,
    invalid,
    text_of,
    unwrapped_key,
)
from conduit_dagster.record import READ_AT, Data, Document
from conduit_dagster.sdk import Example, ProcessError, Record

_OPERATIONS: Final = {"c": "create", "u": "update", "d": "delete", "r": "snapshot", "$unset": "update"}
_TRUNCATE: Final = "t"
_NEEDED: Final = ("after", "source", "op")
_NO_METADATA: Final = frozenset({"after", "before", "op", "source", "ts_ms"})
_MILLISECOND: Final = 1_000_000
_UNAVAILABLE: Final = "__debezium_unavailable_value"
"""What stands for a large value that an update did not touch, which PostgreSQL does not send."""
_UNAVAILABLE_TEXTS: Final = frozenset(
    {_UNAVAILABLE, base64.b64encode(_UNAVAILABLE.encode()).decode(), f'{{"{_UNAVAILABLE}":"{_UNAVAILABLE}"}}'}
)
"""The same for text and JSON, for bytes, and for an ``hstore``, in the forms that Debezium 3.3 writes."""
_UNAVAILABLE_VALUES: Final = ([_UNAVAILABLE], list(_UNAVAILABLE.encode()), {_UNAVAILABLE: _UNAVAILABLE})
"""The same for arrays of text and of numbers, and for an ``hstore`` as a map."""


class UnwrapDebeziumSettings(ConduitSettings):
    """Settings of ``unwrap.debezium``."""

    field: PayloadField = ".Payload.After"
    """The field that holds the Debezium record, as a document or as JSON."""


class UnwrapDebezium(UnwrappingProcessor):
    """Replace the record by the one that Debezium wrapped, except for its position.

    Operation and payloads are Debezium's. Its ``source`` becomes metadata, and so do its other fields, with the prefix
    ``debezium.``; they replace existing entries. ``ts_ms`` becomes ``opencdc.readAt``. A key with a ``payload`` is
    replaced by that payload. Any other record is nacked.

    A record without ``payload``, as converters without schemas and ``avro.decode`` give it, may be the change itself;
    its key then becomes a document if it is one as JSON. A large value that an update did not touch
    (``__debezium_unavailable_value``) is left out and named in ``postgres.unchanged_toast``, so that the ``postgres``
    destination keeps it; a ``create`` with one, as a row gets with another key, is nacked. A truncate is a ``delete``
    without key and payloads, with ``postgres.truncate: "true"``.
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
        Example(
            "An update without schemas, of a row whose large text it did not touch",
            {},
            Record(
                "1",
                {},
                {
                    "before": None,
                    "after": {"id": 27, "paid": True, "text": _UNAVAILABLE},
                    "source": {"table": "orders"},
                    "op": "u",
                },
                b'{"id": 27}',
            ),
            Record(
                "1",
                {"table": "orders", UNCHANGED_TOAST: "text"},
                {"id": 27, "paid": True},
                {"id": 27},
                operation="update",
            ),
        ),
        Example("Something else", {}, Record("1", {}, {"id": 1}), "unwrap.invalid"),
    )

    @override
    def change(self, record: Record) -> None:
        envelope = document_in(record, self._field)
        change = envelope.get("payload", envelope)
        if not isinstance(change, dict):
            raise invalid(f"{self.settings.field} has no payload")
        if missing := [name for name in _NEEDED if name not in change]:
            place = "the payload in " if "payload" in envelope else ""
            raise invalid(f"{place}{self.settings.field} has no {' and no '.join(missing)}")
        if change["op"] == _TRUNCATE:
            _truncate(record, change)
            return
        operation = _OPERATIONS.get(change["op"]) if isinstance(change["op"], str) else None
        if operation is None:
            names = ", ".join([*_OPERATIONS, _TRUNCATE])
            raise invalid(f"{change['op']!r} is not an operation of Debezium: {names}")
        before, after, metadata = _data(change, "before"), _data(change, "after"), _metadata(change, record.metadata)
        if isinstance(after, dict):
            after = _without_unavailable(after, operation, metadata)
        record.metadata = metadata
        record.operation, record.before, record.after = operation, before, after
        record.key = _key(record.key, envelope)

    @staticmethod
    @override
    def _unwrapped(rest: Iterator[Any]) -> None:
        """Unwrap payloads that are already Debezium documents, with no text in place of a document."""
        for record in rest:
            envelope = record.after
            change = envelope.get("payload", envelope)
            operation, before, after = _OPERATIONS[change["op"]], change.get("before"), change["after"]
            if type(after) not in PAYLOADS or type(before) not in PAYLOADS:
                raise NoFitError
            key, metadata = _key(record.key, envelope), _metadata(change, record.metadata)
            if after:
                after = _without_unavailable(after, operation, metadata)
            record.metadata, record.operation = metadata, operation
            record.key, record.before, record.after = key, before, after


def _truncate(record: Record, change: Document) -> None:
    record.metadata = {**_metadata(change, record.metadata), TRUNCATE: "true"}
    record.operation, record.key, record.before, record.after = "delete", None, None, None


def _without_unavailable(after: Document, operation: str, metadata: dict[str, str]) -> Document:
    """Return the row without the values that the update did not touch, whose names go into ``metadata``."""
    names = _unavailable(after)
    if not names:
        return after
    if operation != "update":
        # a row with another key comes as a delete and a create: nothing has the value any more
        message = f"Debezium had no value for {', '.join(names)}: on the source, ALTER TABLE … REPLICA IDENTITY FULL"
        raise ProcessError(message, code="unwrap.unavailable")
    metadata[UNCHANGED_TOAST] = unchanged_text(names)
    return {name: value for name, value in after.items() if name not in names}


def _unavailable(after: Document) -> list[str]:
    try:
        if _UNAVAILABLE_TEXTS.isdisjoint(after.values()):
            return []  # most rows, in less than half of the time below
    except TypeError:
        pass  # lists and documents
    return [
        name
        for name, value in after.items()
        if (value in _UNAVAILABLE_TEXTS if type(value) is str else value in _UNAVAILABLE_VALUES)
    ]


def _key(key: Data, envelope: Document) -> Data:
    found = unwrapped_key(key)
    return found if "payload" in envelope else document_key(found)


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
