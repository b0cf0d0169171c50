"""The ``chaos`` destination: the ``file`` destination, with a failure on demand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from conduit_dagster.connectors.chaos.fault import Fault, FaultSettings
from conduit_dagster.connectors.file.destination import FileDestination
from conduit_dagster.connectors.file.settings import FileDestinationSettings
from conduit_dagster.record import Record
from conduit_dagster.sdk import ConnectorContext, Delivery, Part, Refusal, Target, Writer, WriterTask


class ChaosDestinationSettings(FileDestinationSettings, FaultSettings):
    """Writes like the ``file`` destination, with plain payload lines by default."""

    fail_on: Literal["none", "open", "write", "publish", "ack"] = Field("none", alias="fail-on")
    """Where it fails. ``open``: before a run reads anything; ``write``: in a task, while records are staged;
    ``publish``: before anything of a delivery is in the file; ``ack``: after all of it is.
    """
    format: str = Field("payload/json", alias="sdk.record.format")
    """``opencdc/json`` (Conduit's record), ``template``, or ``payload/json`` (plain payload lines)."""


class ChaosDestination(FileDestination):
    """The ``file`` destination, which supports every strategy, failing at the point of ``fail-on``.

    A delivery fails as a whole: at ``publish`` and ``ack``, the first one that exceeds ``after`` records. At ``write``,
    the first block of records that exceeds it, in each task; records that are staged again count again.
    """

    name = "chaos"
    Settings = ChaosDestinationSettings

    def __init__(self, settings: ChaosDestinationSettings, context: ConnectorContext) -> None:
        super().__init__(settings, context)
        self._fault = Fault(settings, settings.fail_on, context)

    def check(self) -> None:
        """Fail, or try to open the file."""
        self._fault.strike("open", self._fault.passed + 1)
        super().check()

    def writer(self, task: WriterTask) -> Writer:
        """Return a writer that stages lines, or fails to."""
        writer = super().writer(task)
        return ChaosWriter(writer, self._fault) if self._fault.is_at("write") else writer

    def publish(self, delivery: Delivery) -> Target:
        """Fail before or after publishing, or publish."""
        upto = self._fault.passed + delivery.records
        self._fault.strike("publish", upto)
        target = super().publish(delivery)
        if not self._fault.is_at("write"):
            self._fault.passes(delivery.records)
        self._fault.strike("ack", upto)
        return target


class ChaosWriter(Writer):
    """Wraps another writer, which gets the records that it does not fail at or refuse."""

    def __init__(self, writer: Writer, fault: Fault) -> None:
        self._writer, self._fault = writer, fault
        self._place: tuple[str, int, Sequence[int]] = ("", 0, ())

    def place(self, source: str, first: int, origins: Sequence[int]) -> None:
        """Pass the origins of the next block on."""
        self._place = (source, first, origins)

    def write(self, records: list[Record]) -> Sequence[Refusal]:
        """Fail with the first block beyond ``after`` records, or refuse its records beyond them."""
        passed = self._fault.passed
        self._fault.strike("write", passed + len(records))
        bad = self._fault.refused(passed, len(records))
        good = [i for i in range(len(records)) if i not in bad]
        source, first, origins = self._place
        self._writer.place(source, first, [origins[i] for i in good])
        found = self._writer.write([records[i] for i in good])
        self._fault.passes(len(records))
        nack = self._fault.nack
        return [*(Refusal(good[place], why) for place, why in found), *(Refusal(i, nack) for i in bad)]

    def finish(self) -> Part | None:
        """Finish the wrapped writer."""
        return self._writer.finish()

    def abort(self) -> None:
        """Abort the wrapped writer."""
        self._writer.abort()
