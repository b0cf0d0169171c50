"""The ``chaos`` source: numbered records, and a failure on demand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from conduit_dagster.connectors.chaos.fault import Fault, FaultSettings
from conduit_dagster.connectors.generator.source import GeneratorSettings, GeneratorSource
from conduit_dagster.record import COLLECTION, Record
from conduit_dagster.sdk import Block, ConnectorContext, Limit, Position, ReadOptions, Source, Split


class ChaosSourceSettings(FaultSettings):
    """Generates records ``{"id": 1}``, ``{"id": 2}``, …"""

    fail_on: Literal["none", "open", "read", "ack"] = Field("none", alias="fail-on")
    """Where it fails. ``open``: when a run first polls for new records; ``read``: in a task, at the first record after
    ``after`` ones; ``ack``: when more than ``after`` records are acked.
    """
    records: int = Field(0, ge=0)
    """Total number of records; 0 means unlimited."""
    rate: float = Field(0, ge=0)
    """Records per second; 0 means as fast as possible."""
    collections: str = ""
    """Comma-separated names of collections, assigned to the records in turn. Empty: records without a collection."""

    @property
    def names(self) -> list[str]:
        """The collections; a single empty name if none is set."""
        return [name.strip() for name in self.collections.split(",")]


class ChaosSource(Source):
    """Numbered records, identical whenever a range is read again, failing at the point of ``fail-on``.

    The position is the number. With ``fail-on: read`` a step fails once per attempt, however many tasks read it.
    """

    name = "chaos"
    Settings = ChaosSourceSettings
    settings: ChaosSourceSettings
    lag_unit = "records"

    def __init__(self, settings: ChaosSourceSettings, context: ConnectorContext) -> None:
        super().__init__(settings, context)
        self._fault = Fault(settings, settings.fail_on, context)
        self._numbers = GeneratorSource(_numbers(settings), context)
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
        """Split into equal parts."""
        return self._numbers.split(start, end, n)

    def read(self, split: Split, options: ReadOptions) -> Iterator[Block]:
        """Yield the records; those before the failing one come first."""
        assert split.records is not None
        fault, end = self._fault, split.start + split.records
        # only the first of the step's failing records counts: the tasks of the others succeed
        fails_at = max(fault.after, split.start - split.ordinal)
        for first, last in _ranges(split.start, end, options.block_records, fails_at):
            if first == fails_at or fault.is_slow:
                fault.strike("read", last if fault.is_slow else first + 1)
            yield Block(self._records(first, last), lambda i, first=first: first + i + 1)

    def _records(self, first: int, last: int) -> list[Record]:
        shared = [{COLLECTION: name} if name else {} for name in self.settings.names]
        return [
            Record(number, shared[(number - 1) % len(shared)], {"id": number}, json.dumps(number).encode())
            for number in range(first + 1, last + 1)
        ]

    def lag(self, position: Position) -> int | None:
        """Return the number of remaining records, if ``records`` is set."""
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
