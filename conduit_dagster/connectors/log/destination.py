"""The ``log`` destination, which prints records to the log: for inspecting a pipeline, not for storing records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, cast

import structlog
from pydantic import Field

from conduit_dagster.record import Record, encode
from conduit_dagster.sdk import ConnectorSettings, Delivery, DriverDestination


class LogDestinationSettings(ConnectorSettings):
    """Logs every record as OpenCDC JSON."""

    level: Literal["trace", "debug", "info", "warn", "error"] = "info"
    """The level to log at."""
    message: str = Field("", description="What each line begins with.")


class LogDestination(DriverDestination):
    """One log line per record, in order, from the driver; a repeated delivery is logged again."""

    name = "log"
    Settings = LogDestinationSettings
    prints = True

    def __init__(self, settings: Any, context: Any) -> None:
        super().__init__(settings, context)
        own = cast(LogDestinationSettings, settings)
        self._message = own.message or "record"
        log = structlog.get_logger("conduit.log").bind(pipeline=context.pipeline, connector=context.connector)
        self._log = {"trace": log.debug, "warn": log.warning}.get(own.level) or getattr(log, own.level)

    def deliver(self, records: Iterable[Record], delivery: Delivery) -> None:
        """Log the records one at a time, so that memory does not grow with the delivery."""
        for record in records:
            self._log(self._message, record=encode(record).decode())
