"""What the built-in processors that change records in place have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from operator import length_hint
from typing import Any, ClassVar, cast

from typing_extensions import override

from conduit_dagster.processors.base import Nack, ProcessError, Processor, Record, Result, Results
from conduit_dagster.reference import FieldError

Loop = Callable[[Iterator[Any]], None]
"""Changes one record after another. It may raise at a record that it has not changed yet, for any
reason: :meth:`InPlaceProcessor.change` then looks at that record, and the loop goes on behind it."""


class InPlaceProcessor(Processor, ABC):
    """Changes each record in place, or raises to nack it.

    A record that is nacked after a part of its changes keeps that part, as in Conduit.
    """

    shares_records: ClassVar[bool] = True
    loop: Loop | None = None
    """The fast way for the common case. Without one each record goes through :meth:`change`."""

    @abstractmethod
    def change(self, record: Record) -> None:
        """Change one record, whatever it holds. Raises what becomes its nack."""

    @override
    def process(self, record: Record) -> Record:
        try:
            self.change(record)
        except FieldError as error:
            raise ProcessError(str(error), code=error.code) from error
        return record

    @override
    def process_block(self, records: list[Record]) -> list[Result]:
        if self.loop is not None:
            return self._looped(records, self.loop)
        results = [self._one(record) for record in records]
        return results if any(type(result) is Nack for result in results) else cast(list[Result], records)

    def _looped(self, records: list[Record], loop: Loop) -> list[Result]:
        results = cast(list[Result], records)
        rest = iter(records)
        while True:
            try:
                loop(rest)
                return results
            except Exception:  # noqa: BLE001  # whatever was special about the record, change decides about it
                at = len(records) - length_hint(rest) - 1
                results = self._looked_at(records, results, at)

    def _looked_at(self, records: list[Record], results: list[Result], at: int) -> list[Result]:
        result = self._one(records[at])
        if type(result) is not Nack:
            return results
        marked = results if isinstance(results, Results) else Results(records)
        marked.put(at, result)
        return marked
