"""``unwrap.kafkaconnect``: unwrap the payload of a Kafka Connect record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typing_extensions import override

from conduit_dagster.payload_code import NoFitError
from conduit_dagster.processors.common.setting_kinds import ConduitSettings
from conduit_dagster.processors.common.unwrapping import (
    PayloadField,
    UnwrappingProcessor,
    document_in,
    invalid,
    unwrapped_key,
)
from conduit_dagster.sdk import Example, Record


class UnwrapKafkaconnectSettings(ConduitSettings):
    """Settings of ``unwrap.kafkaconnect``."""

    field: PayloadField = ".Payload.After"
    """The field that holds the Kafka Connect record, as a document or as JSON."""


class UnwrapKafkaconnect(UnwrappingProcessor):
    """Replace the payload by that of a Kafka Connect record: a create, without ``.Payload.Before``.

    A key with a ``payload`` is replaced by that payload; position and metadata stay. A record whose ``payload`` is not
    a document is nacked.
    """

    name = "unwrap.kafkaconnect"
    Settings = UnwrapKafkaconnectSettings
    settings: UnwrapKafkaconnectSettings
    examples = (
        Example(
            "From JSON",
            {},
            Record("1", {"m": "x"}, b'{"payload": {"name": "a"}, "schema": {}}', {"payload": {"id": 27}, "schema": {}}),
            Record("1", {"m": "x"}, {"name": "a"}, {"id": 27}),
        ),
        Example("No payload", {}, Record("1", {}, {"id": 1}), "unwrap.invalid"),
    )

    @override
    def change(self, record: Record) -> None:
        payload = document_in(record, self._field).get("payload")
        if not isinstance(payload, dict):
            raise invalid(f"{self.settings.field} has no payload")
        record.operation, record.before, record.after = "create", None, payload
        record.key = unwrapped_key(record.key)

    @staticmethod
    @override
    def _unwrapped(rest: Iterator[Any]) -> None:
        """Unwrap payloads that are already Kafka Connect documents."""
        for record in rest:
            payload = record.after["payload"]
            if type(payload) is not dict:
                raise NoFitError
            record.key = unwrapped_key(record.key)
            record.operation, record.before, record.after = "create", None, payload
