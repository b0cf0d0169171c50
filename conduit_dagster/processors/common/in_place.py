"""Base classes of the built-in processors that change records in place: any part, one field, or the document."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from operator import is_, length_hint
from typing import Annotated, Any, ClassVar, cast

from pydantic import AfterValidator, ConfigDict
from typing_extensions import override

from conduit_dagster.config.findings import refuse
from conduit_dagster.config.scalars import comma_separated
from conduit_dagster.field_reference import Reference
from conduit_dagster.lazy_property import lazy_property
from conduit_dagster.payload_code import NoFitError, PayloadChain, PayloadCode, conditional
from conduit_dagster.record import Data, Document
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
from conduit_dagster.sdk.promises import keeps

Loop = Callable[[Iterator[Any]], None]
"""Fast path that changes one record after another. It may raise, for any reason, at a record that it has not changed
yet: :meth:`InPlaceProcessor.change` then handles that record, and the loop continues after it.
"""


def removing(names: Sequence[str]) -> PayloadCode:
    """Return code that removes top-level fields of the payload's document."""
    return PayloadCode("\n".join(f"after.pop({name!r}, None)" for name in names), {})


def if_present(code: PayloadCode) -> PayloadCode:
    """Return code that passes records without a payload unchanged."""
    return conditional(PayloadCode("after is not None", {}), code)


Parts = tuple[str, Data, Data, Data]


def parts_of(record: Record) -> Parts:
    """Return the parts that :func:`put_back` needs: operation, key and payloads."""
    return record.operation, record.key, record.before, record.after


def put_back(record: Record, parts: Parts) -> None:
    """Undo the replacement of whole parts, for a nack. As in Conduit, changes inside a document or metadata remain."""
    record.operation, record.key, record.before, record.after = parts


class InPlaceProcessor(Processor, ABC):
    """A processor that changes each record in place, or raises to nack it; it may also drop records.

    As in Conduit, a record that is nacked halfway keeps the changes made inside its documents and metadata.
    """

    shares_records: ClassVar[bool] = True
    loop: Loop | None = None
    """Fast path of a processor that changes more than the payload, and so has no ``payload_code``."""

    @abstractmethod
    def change(self, record: Record) -> None:
        """Change one record, whatever its content. A raised error becomes its nack."""

    @override
    def process(self, record: Record) -> Record | Drop:
        parts = parts_of(record)
        try:
            self.change(record)
        except BaseException:
            put_back(record, parts)
            raise
        return record

    @override
    def _each(self, records: list[Record]) -> list[Result]:
        loop = self._own_loop
        # a single record is mostly one that a loop has left
        if loop is not None and len(records) > 1:
            return self._looped(records, loop)
        results = [self._one(record) for record in records]
        return cast(list[Result], records) if all(map(is_, results, records)) else results

    @lazy_property
    def _own_loop(self) -> Loop | None:
        """The fast path; None if a class outside this package changes records in another way."""
        is_own = keeps(type(self), "payload_code", ("process", "change", "changed"))
        return self.loop or self._code_loop if is_own else None

    @lazy_property
    def _code_loop(self) -> Loop | None:
        return None if self.payload_code is None else _loop_of(PayloadChain([self.payload_code]))

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


def _never(code: int) -> None:
    raise AssertionError(f"code {code} drops a record")


def _loop_of(chain: PayloadChain) -> Loop:
    chain.over_records(iter(()), _never)  # compiles it: no record is at fault if that fails

    def loop(rest: Iterator[Any]) -> None:
        if chain.over_records(rest, _never) is not None:
            raise NoFitError

    return loop


class FieldProcessor(InPlaceProcessor):
    """A processor that changes the value of one field; a null or missing field stays unchanged."""

    keeps_fields: ClassVar[bool] = True
    sees_null: ClassVar[bool] = False
    """Whether :meth:`changed` is also called for null and missing fields."""

    def __init__(self, settings: Any, context: ProcessorContext) -> None:
        """``settings``: those of the subclass, with ``field``."""
        super().__init__(settings, context)
        self.field = Reference.parse(settings.field)
        if self.field.root == "after" and len(self.field.path) == 1:
            self.payload_code = self._code(self.field.path[0])

    def _code(self, name: str) -> PayloadCode:
        """Return the code for a top-level field of the payload."""
        source = f"value = after.get({name!r})\nif value is not None:\n    after[{name!r}] = changed(value)"
        return PayloadCode(source, {"changed": self.changed})

    @property
    @override
    def reads_key(self) -> bool:
        return self.field.root == "key"

    @override
    def change(self, record: Record) -> None:
        value = self.field.get(record)
        if value is None:
            self.field.create_way(record)
        if value is not None or self.sees_null:
            self.field.set(record, self.changed(value))

    def _invalid(self, what: str) -> ProcessError:
        """Return the nack of a record whose field can't be changed; ``what`` says what the field is or does."""
        return ProcessError(f"{self.field.text} {what}", code=f"{self.name}.invalid")

    @abstractmethod
    def changed(self, value: Any) -> Any:
        """Return the field's new value. A raised error becomes the record's nack.

        ``value`` is null only with ``sees_null``.
        """


def _some(text: str) -> str:
    if not comma_separated(text):
        raise refuse("the list of fields is empty", fix="write their names: name,count")
    return text


FieldNames = Annotated[str, AfterValidator(_some)]


def document_of(record: Record) -> Document | None:
    """Return the record's document; None if it has no payload. Raises :class:`ProcessError` for raw data."""
    after = record.after
    if isinstance(after, bytes):
        message = ".Payload.After does not contain structured data but raw data: put json.decode before it"
        raise ProcessError(message, code="field.unresolved")
    return after


class DocumentProcessor(InPlaceProcessor):
    """A processor that changes the record's document; a record without a payload passes unchanged."""

    keyless: ClassVar[bool] = True

    @override
    def change(self, record: Record) -> None:
        document = document_of(record)
        if document is not None:
            record.after = self.changed(document)

    @abstractmethod
    def changed(self, document: Document) -> Document:
        """Return the document, changed in place or replaced."""


class MapSettings(ProcessorSettings):
    """Settings whose keys are ``PREFIX.NAME``, one per name."""

    model_config = ConfigDict(extra="allow")
    prefix: ClassVar[str]

    @override
    def model_post_init(self, context: Any, /) -> None:
        if not self.names:
            raise refuse(f"there is no setting {self.prefix}NAME", fix=f"{self.prefix}old: new")

    @property
    def names(self) -> dict[str, str]:
        """Old names to new names, in the order of the file."""
        return self.below(self.prefix)
