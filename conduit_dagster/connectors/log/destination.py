"""The ``log`` destination, which prints records to the log: for inspecting a pipeline, not for storing records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from conduit_dagster.lazy_property import lazy_property
from conduit_dagster.record import Record, encode
from conduit_dagster.sdk import ConnectorSettings, Delivery, DriverDestination


class LogDestinationSettings(ConnectorSettings):
    """Logs every record as OpenCDC JSON."""

    level: Literal["trace", "debug", "info", "warn", "error"] = "info"
    """The level to log at."""
    message: str = ""
    """What each line begins with."""


class LogDestination(DriverDestination):
    """One log line per record, in order, from the driver; a repeated delivery is logged again."""

    name = "log"
    Settings = LogDestinationSettings
    settings: LogDestinationSettings
    prints = True

    @lazy_property
    def _log(self) -> Callable[..., Any]:
        # imported late: every pipeline without its own queue has one of these, and most commands print no record
        import structlog

        context, level = self.context, self.settings.level
        log = structlog.get_logger("conduit.log").bind(pipeline=context.pipeline, connector=context.connector)
        return {"trace": log.debug, "warn": log.warning}.get(level) or getattr(log, level)

    def deliver(self, records: Iterable[Record], delivery: Delivery) -> None:
        """Log the records one at a time, so that memory does not grow with the delivery."""
        message = self.settings.message or "record"
        for record in records:
            self._log(message, record=encode(record).decode())
