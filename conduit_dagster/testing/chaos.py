"""The ``chaos`` connectors: a source of numbered records and two destinations that fail as they are told to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import Field

from conduit_dagster.connectors.file.destination import FileDestination
from conduit_dagster.connectors.file.settings import FileDestinationSettings
from conduit_dagster.connectors.formats import make_format
from conduit_dagster.connectors.generator import GeneratorSettings, GeneratorSource
from conduit_dagster.record import COLLECTION, Nack, Record
from conduit_dagster.recovery.errors import from_os_error
from conduit_dagster.sdk import (
    Block,
    ConnectorContext,
    Delivery,
    DirectDestination,
    Limit,
    Part,
    Position,
    ReadOptions,
    Receipt,
    Refusal,
    Sender,
    SenderTask,
    Source,
    Split,
    Target,
    Writer,
    WriterTask,
)
from conduit_dagster.testing.fault import Fault, FaultSettings


class ChaosSourceSettings(FaultSettings):
    """Makes records ``{"id": 1}``, ``{"id": 2}``, …"""

    fail_on: Literal["none", "open", "read", "ack"] = Field("none", alias="fail-on")
    """Where it fails. ``open``: when a run first looks for new records; ``read``: in a task, at the record behind the
    first ``after`` ones; ``ack``: when it is told that more than ``after`` records are handled."""
    records: int = Field(0, ge=0)
    """How many records in all; 0 for no end."""
    rate: float = Field(0, ge=0)
    """Records per second; 0 for as fast as possible."""
    collections: str = ""
    """Comma separated names of collections, which the records go to in turn. Empty: records without a collection."""

    @property
    def names(self) -> list[str]:
        """The collections; one without a name where none is set."""
        return [name.strip() for name in self.collections.split(",")]


class ChaosSource(Source):
    """Numbered records, the same ones whenever a range is read again; it fails where ``fail-on`` says.

    The position is the number. With ``fail-on: read`` a step fails once per attempt, however many tasks read it.
    """

    name = "chaos"
    Settings = ChaosSourceSettings
    lag_unit = "records"

    def __init__(self, settings: Any, context: ConnectorContext) -> None:
        super().__init__(settings, context)
        self._settings = cast(ChaosSourceSettings, settings)
        self._fault = Fault(self._settings, self._settings.fail_on, context)
        self._numbers = GeneratorSource(_numbers(self._settings), context)
        self._opened = False

    def initial(self) -> Position:
        """Return the position before the first record. Called at the start of every run."""
        self._opened = False
        return self._numbers.initial()

    def latest(self, start: Position, limit: Limit, horizon: Any = None) -> Position:
        """Return the position after the records that are due."""
        if not self._opened:
            self._fault.strike("open", start + 1)
            self._opened = True
        return self._numbers.latest(start, limit, horizon)

    def split(self, start: Position, end: Position, n: int) -> list[Split]:
        """Equal parts."""
        return self._numbers.split(start, end, n)

    def read(self, split: Split, options: ReadOptions) -> Iterator[Block]:
        """Yield the records; those before the failing one come first."""
        assert split.records is not None
        fault, end = self._fault, split.start + split.records
        # of the step's failing records the first one decides: the tasks of the others get through
        fails_at = max(fault.after, split.start - split.ordinal)
        for first, last in _ranges(split.start, end, options.block_records, fails_at):
            if first == fails_at or fault.is_slow:
                fault.strike("read", last if fault.is_slow else first + 1)
            yield Block(self._records(first, last), lambda i, first=first: first + i + 1)

    def _records(self, first: int, last: int) -> list[Record]:
        shared = [{COLLECTION: name} if name else {} for name in self._settings.names]
        return [
            Record(number, shared[(number - 1) % len(shared)], {"id": number}, json.dumps(number).encode())
            for number in range(first + 1, last + 1)
        ]

    def lag(self, position: Position) -> int | None:
        """Return the number of records to go, if there is an end."""
        return self._numbers.lag(position)

    def ack(self, upto: Position, generation: int) -> None:
        """Fail, or do nothing."""
        del generation
        self._fault.strike("ack", upto)


def _numbers(settings: ChaosSourceSettings) -> GeneratorSettings:
    values = {"recordCount": settings.records, "rate": settings.rate, "format.type": "raw", "format.options.id": "int"}
    return GeneratorSettings.model_validate(values)


def _ranges(start: int, end: int, size: int, cut: int) -> Iterator[tuple[int, int]]:
    """Return ranges of at most ``size``; one of them begins at ``cut``, if that is inside."""
    first = start
    while first < end:
        last = min(first + size, end)
        if first < cut < last:
            last = cut
        yield first, last
        first = last


class ChaosDestinationSettings(FileDestinationSettings, FaultSettings):
    """Writes as the ``file`` destination does, plain payload lines unless told otherwise."""

    fail_on: Literal["none", "open", "write", "publish", "ack"] = Field("none", alias="fail-on")
    """Where it fails. ``open``: before a run reads anything; ``write``: in a task, while records are staged;
    ``publish``: before anything of a delivery is in the file; ``ack``: when all of it is."""
    format: str = Field("payload/json", alias="sdk.record.format")
    """``opencdc/json`` (Conduit's record), ``template``, or ``payload/json`` (plain payload lines)."""


class ChaosDestination(FileDestination):
    """The ``file`` destination, which keeps every strategy; it fails where ``fail-on`` says.

    A delivery fails whole: at ``publish`` and ``ack`` the first one that goes beyond ``after`` records. At ``write``
    it is the first block of records that does, in each task; records that are staged again count again.
    """

    name = "chaos"
    Settings = ChaosDestinationSettings

    def __init__(self, settings: Any, context: ConnectorContext) -> None:
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
    """Hands on to another writer what it does not fail at or refuse."""

    def __init__(self, writer: Writer, fault: Fault) -> None:
        self._writer, self._fault = writer, fault
        self._place: tuple[str, int, Sequence[int]] = ("", 0, ())

    def place(self, source: str, first: int, origins: Sequence[int]) -> None:
        """Keep the origins for the next block."""
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


class ChaosDirectSettings(FaultSettings):
    """Appends to a file what it is sent, each time that it is sent it."""

    path: str
    """The file; a line of plain payload for each record."""
    fail_on: Literal["none", "open", "write", "ack"] = Field("none", alias="fail-on")
    """Where it fails. ``open``: before a run reads anything; ``write``: in a task, before a batch of at most 1000
    records is in the file; ``ack``: when the batch is there, and its ack is lost."""


class ChaosDirectDestination(DirectDestination):
    """Lines in the order in which they were sent, some of them twice after an error, so that a test can count them.

    An error without ``code`` and ``fatal`` is one that names no record: the batch is then sent one at a time.
    """

    name = "chaos.direct"
    Settings = ChaosDirectSettings

    def __init__(self, settings: Any, context: ConnectorContext) -> None:
        super().__init__(settings, context)
        self._settings = cast(ChaosDirectSettings, settings)
        self._path = Path(context.resolve(self._settings.path))
        self._fault = Fault(self._settings, self._settings.fail_on, context)

    @property
    def address(self) -> str:
        """The absolute path."""
        return str(self._path.absolute())

    def check(self) -> None:
        """Fail, or make the folder."""
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
    """Writes batches, durably; each batch is acked whole, but for the records that are refused."""

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
