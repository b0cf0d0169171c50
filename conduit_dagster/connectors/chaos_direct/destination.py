"""The ``chaos.direct`` destination: lines sent record by record, with a failure on demand."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field

from conduit_dagster.connectors.chaos.fault import Fault, FaultSettings
from conduit_dagster.connectors.formats import make_format
from conduit_dagster.record import Nack, Record
from conduit_dagster.recovery.errors import from_os_error
from conduit_dagster.sdk import ConnectorContext, DirectDestination, Receipt, Sender, SenderTask


class ChaosDirectSettings(FaultSettings):
    """Appends every sent record to a file, also each repeat."""

    path: str
    """The file; a line of plain payload per record."""
    fail_on: Literal["none", "open", "write", "ack"] = Field("none", alias="fail-on")
    """Where it fails. ``open``: before a run reads anything; ``write``: in a task, before a batch of at most 1000
    records is in the file; ``ack``: after the batch is written, losing its ack.
    """


class ChaosDirectDestination(DirectDestination):
    """Lines in the order in which they were sent, with repeats after an error, so that a test can count them.

    An error without ``code`` and ``fatal`` names no record: the batch is then sent in halves.
    """

    name = "chaos.direct"
    Settings = ChaosDirectSettings
    settings: ChaosDirectSettings

    def __init__(self, settings: ChaosDirectSettings, context: ConnectorContext) -> None:
        super().__init__(settings, context)
        self._path = Path(context.resolve(settings.path))
        self._fault = Fault(settings, settings.fail_on, context)

    @property
    def address(self) -> str:
        """The absolute path."""
        return str(self._path.absolute())

    def check(self) -> None:
        """Fail, or create the folder."""
        self._fault.strike("open", self._fault.passed + 1)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise from_os_error(error, f"can't write {self._path}") from error

    def sender(self, task: SenderTask) -> Sender:
        """Return a sender that appends to the file."""
        del task
        return ChaosSender(self._path, self._fault)


class ChaosSender(Sender):
    """Writes batches durably; each batch is acked as a whole, except for refused records."""

    def __init__(self, path: Path, fault: Fault) -> None:
        self._path, self._fault = path, fault
        self._format = make_format("payload/json", "")

    def send(self, records: list[Record], first: int) -> Iterable[Receipt] | None:
        """Fail with the first batch beyond ``after`` records, or refuse its records beyond them."""
        passed = self._fault.passed
        upto = passed + len(records)
        self._fault.strike("write", upto)
        bad = self._fault.refused(passed, len(records))
        nacks = self._write(records, bad)
        self._fault.passes(len(records))
        self._fault.strike("ack", upto)
        return [Receipt(first + i, nacks.get(i)) for i in range(len(records))] if nacks else None

    def _write(self, records: list[Record], bad: range) -> dict[int, Nack]:
        good = [i for i in range(len(records)) if i not in bad]
        lines, unfit = self._format.encode_block([records[i] for i in good])
        with self._path.open("ab") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        return {**dict.fromkeys(bad, self._fault.nack), **{good[place]: nack for place, nack in unfit}}
