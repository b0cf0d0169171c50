"""Base classes of the built-in processors that change records in place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from operator import is_, length_hint
from typing import Any, ClassVar, cast

from typing_extensions import override

from conduit_dagster.field_reference import FieldError, Reference
from conduit_dagster.record import Data
from conduit_dagster.sdk import (
    Drop,
    ProcessError,
    Processor,
    ProcessorContext,
    ProcessorSettings,
    Record,
    Result,
    Results,
)

Loop = Callable[[Iterator[Any]], None]
"""Fast path that changes one record after another. It may raise, for any reason, at a record that it has not changed
yet: :meth:`InPlaceProcessor.change` then handles that record, and the loop continues after it.
"""


def removing(names: Sequence[str]) -> Loop:
    """Return a loop that removes top-level fields of the payload's document."""

    def loop(rest: Iterator[Any]) -> None:
        for record in rest:
            pop = record.after.pop
            for name in names:
                pop(name, None)

    return loop


Parts = tuple[str, Data, Data, Data]


def parts_of(record: Record) -> Parts:
    """Return the parts that :func:`put_back` needs: operation, key and payloads."""
    return record.operation, record.key, record.before, record.after


def put_back(record: Record, parts: Parts) -> None:
    """Undo the replacement of whole parts, for a nack. As in Conduit, changes inside a document or metadata remain."""
    record.operation, record.key, record.before, record.after = parts


class LookAgain(Exception):  # noqa: N818  # no error: the record is special
    """Raised by a loop to leave the record to :meth:`InPlaceProcessor.change`."""


class InPlaceProcessor(Processor, ABC):
    """A processor that changes each record in place, or raises to nack it; it may also drop records.

    As in Conduit, a record that is nacked halfway keeps the changes made inside its documents and metadata.
    """

    shares_records: ClassVar[bool] = True
    loop: Loop | None = None
    """Fast path for the common case. Without one, each record goes through :meth:`change`."""

    @abstractmethod
    def change(self, record: Record) -> None:
        """Change one record, whatever its content. A raised error becomes its nack."""

    @override
    def process(self, record: Record) -> Record | Drop:
        parts = parts_of(record)
        try:
            self.change(record)
        except Exception as error:
            put_back(record, parts)
            if isinstance(error, FieldError):
                raise ProcessError(str(error), code=error.code) from error
            raise
        return record

    @override
    def process_block(self, records: list[Record]) -> list[Result]:
        if self.loop is not None:
            return self._looped(records, self.loop)
        results = [self._one(record) for record in records]
        return cast(list[Result], records) if all(map(is_, results, records)) else results

    def _looped(self, records: list[Record], loop: Loop) -> list[Result]:
        results = cast(list[Result], records)
        rest = iter(records)
        while True:
            try:
                loop(rest)
                return results
            except Exception:  # noqa: BLE001  # for any special record, `change` decides
                at = len(records) - length_hint(rest) - 1
                results = self._looked_at(records, results, at)

    def _looked_at(self, records: list[Record], results: list[Result], at: int) -> list[Result]:
        result = self._one(records[at])
        if result is records[at]:
            return results
        marked = results if isinstance(results, Results) else Results(records)
        marked.put(at, result)
        return marked


class FieldProcessor(InPlaceProcessor):
    """A processor that changes the value of one field; a null or missing field stays unchanged."""

    keeps_fields: ClassVar[bool] = True
    sees_null: ClassVar[bool] = False
    """Whether :meth:`changed` is also called for null and missing fields."""

    def __init__(self, settings: ProcessorSettings, context: ProcessorContext, field: str) -> None:
        super().__init__(settings, context)
        self.field = Reference.parse(field)
        if self.field.root == "after" and len(self.field.path) == 1:
            self.loop = self._loop(self.field.path[0])

    def _loop(self, name: str) -> Loop:
        changed = self.changed

        def loop(rest: Iterator[Any]) -> None:
            for record in rest:
                document = record.after
                value = document[name]
                if value is None:
                    raise LookAgain
                document[name] = changed(value)

        return loop

    @property
    @override
    def reads_key(self) -> bool:
        return self.field.root == "key"

    @override
    def change(self, record: Record) -> None:
        self.field.create_way(record)
        value = self.field.get(record)
        if value is not None or self.sees_null:
            self.field.set(record, self.changed(value))

    @abstractmethod
    def changed(self, value: Any) -> Any:
        """Return the field's new value. A raised error becomes the record's nack.

        ``value`` is null only with ``sees_null``.
        """
