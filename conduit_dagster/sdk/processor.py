"""Interface of processors, for built-ins and user code alike; and of those with state from earlier steps."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict

from conduit_dagster.expressions import Clock
from conduit_dagster.field_reference import FieldError
from conduit_dagster.payload_code import PayloadCode
from conduit_dagster.record import Nack, Record
from conduit_dagster.recovery.classify import ENDINGS, lack_of_memory, with_members
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.sdk.context import IdempotencyKeys, RecordKey
from conduit_dagster.sdk.promises import withdraw
from conduit_dagster.spark.sql.query import SqlQuery


class Drop(enum.Enum):
    """The type of :data:`DROP`."""

    DROP = "drop"


DROP: Final = Drop.DROP
"""Return value of a processor for a record to filter out. The record is acked."""

Result = Record | list[Record] | Drop | Nack


class Results(list[Result]):
    """Results with the places of all but single records, so that the engine need not inspect every one."""

    def __init__(self, records: list[Record]) -> None:
        super().__init__(records)
        self.special: list[int] = []

    def put(self, place: int, result: Result) -> None:
        """Set the result for the record at ``place``; places come in order."""
        self[place] = result
        self.special.append(place)


class ProcessorSettings(BaseModel):
    """Base of a processor's settings: one model drives parsing, validation, ``describe`` and the reference page."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    open_keys: ClassVar[tuple[str, ...]] = ()
    """Patterns (``fnmatch``) of keys beyond the fields, such as ``headers.*``; for a model with ``extra="allow"``."""

    def below(self, prefix: str) -> dict[str, str]:
        """Return the settings whose keys begin with ``prefix``, with the prefix removed."""
        extra = self.model_extra or {}
        return {key.removeprefix(prefix): str(value) for key, value in extra.items() if key.startswith(prefix)}


def _same(record: Record) -> Record:
    return record


@dataclass(frozen=True)
class ProcessorContext:
    """A processor's place in its pipeline."""

    pipeline: str
    node_id: str
    clock: Clock
    """The step's recorded time, so that a repeated step produces the same bytes (DELIVERY.md, Plan)."""
    consumer: str = ""
    """The destination that the processor belongs to; empty before the fan-out."""
    idempotency: IdempotencyKeys = field(default_factory=IdempotencyKeys)
    mask: Callable[[Record], Record] = _same
    """Return the record without the values of the pipeline's redacted fields. Use it for everything that is printed."""

    @property
    def delivery_hash(self) -> str:
        """The hash of the current delivery: the same for every attempt. Store it with side effects (CASES D12)."""
        return self.idempotency.hash_of(self.consumer)

    def record_key(self, record: Record) -> RecordKey:
        """Return the idempotency key of a record: source, generation and position; the same for every attempt."""
        return self.idempotency.key_of(record)


class ProcessError(Exception):
    """Raised by a processor to nack a record with its own code; any other exception nacks with ``processor.error``."""

    code: str = "processor.error"

    def __init__(self, message: str, *, code: str = "processor.error") -> None:
        super().__init__(message)
        self.code, self.message = str(code), str(message)  # authors also pass an exception


class StepError(FatalError):
    """Raised by a processor whose error is no single record's fault: it stops the pipeline instead of nacking."""


@dataclass(frozen=True)
class Example:
    """Example of a processor: one record before and after. ``processors describe`` shows it, and a test runs it."""

    title: str
    settings: Mapping[str, str]
    given: Record
    gives: Record | list[Record] | Drop | str
    """Expected result; for a nack its code."""


_PROMISES = ("shares_records", "keyless", "keeps_fields", "reads_key", "reads_position", "made_of")
_ONE_RECORD = ("process", "change", "changed")
"""Methods that process one record, of ``Processor`` and of the built-in base classes."""


class Processor:
    """Turns a record into one or several records, drops it, or nacks it by raising.

    A ``TransientError`` is not a nack: the pipeline recovers and repeats the step. Nor is a ``MemoryError``.

    One instance lives in a Spark worker and processes many blocks. It may be recreated at any time and a step may be
    repeated, so the result of ``process`` must depend on the record alone.
    """

    name: ClassVar[str]
    """The plugin's name in a pipeline file, such as ``field.set``."""
    Settings: ClassVar[type[ProcessorSettings]] = ProcessorSettings
    examples: ClassVar[Sequence[Example]] = ()
    deterministic: ClassVar[bool] = True
    """False if the same record may give a different result the next time. If the staging of a prepared step is lost, it
    then can't be staged again and waits for an operator (``delivery.rebuild_differs``).
    """
    keyless: ClassVar[bool] = False
    """True only if neither ``record.key`` nor ``record.position`` is ever read."""
    keeps_fields: ClassVar[bool] = False
    """True only if each top-level field of ``.Payload.After`` depends on that field alone, not on another field, the
    key or ``.Payload.Before``.
    """
    payload_code: PayloadCode | None = None
    """What ``process_block`` does to nearly every record, if that changes nothing but ``.Payload.After``.

    The engine runs it instead, joined with the code of the processors beside it, and calls ``process_block`` for the
    records that it doesn't fit. Requires :attr:`shares_records`, and one result for each record, or none. A class that
    derives from a built-in processor has none, unless it sets its own in the class's body.
    """
    shares_records: ClassVar[bool] = False
    """True only if ``process`` replaces ``record.metadata`` instead of changing it in place, and adds no value that
    JSON can't hold. Otherwise the engine passes copies of the records and checks the results.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        withdraw(cls, Processor, _PROMISES, (*_ONE_RECORD, "process_block"))
        # a built-in's may leave out the methods that the class overrides
        withdraw(cls, Processor, ("process_block",), _ONE_RECORD)

    def __init__(self, settings: ProcessorSettings, context: ProcessorContext) -> None:
        self.settings = settings
        self.context = context

    @classmethod
    def travelling(cls, settings: Mapping[str, str], root: str) -> dict[str, str]:
        """Return the settings to send to tasks, with the content of the files that they name on the driver.

        ``root``: the project's folder. Raises ``FatalError``.
        """
        del root
        return dict(settings)

    @classmethod
    def files(cls, settings: Mapping[str, str], root: str) -> Sequence[Path]:
        """Return the files whose content :meth:`travelling` adds: a change of one is a change of the pipeline."""
        del settings, root
        return ()

    @property
    def reads_key(self) -> bool:
        """Whether ``process`` may read ``record.key`` or ``record.position``; a source may leave out an unread key."""
        return not self.keyless

    @property
    def reads_position(self) -> bool:
        """Whether ``process`` reads ``record.position``, if :attr:`reads_key` is False."""
        return False

    def made_of(self, field: str) -> Collection[str] | None:
        """Return the input fields, by their earlier names, that a top-level field of ``.Payload.After`` may depend on.

        None if unknown, which is the default. Used for column lineage in Dagster, and to keep fields derived from a
        redacted field out of a destination's preview.
        """
        return (field,) if self.keeps_fields else None

    @property
    def query(self) -> SqlQuery | None:
        """SQL that Spark computes while the processor handles a block; None if it is all Python."""
        return None

    def process(self, record: Record) -> Record | list[Record] | Drop:
        """Process one record; return one or several records, or :data:`DROP`.

        Raising nacks the record, unless it is a ``TransientError`` or a ``MemoryError``.
        """
        raise TypeError(f"{type(self).__name__} defines neither process nor process_block")

    def process_block(self, records: list[Record]) -> list[Result]:
        """Process a block; return a result for each record, in order. An exception fails the step and nacks nothing.

        Returning the same list object that was passed in means that all records were changed in place and none was
        dropped.
        """
        return self._each(records)

    def _each(self, records: list[Record]) -> list[Result]:
        """Return what :meth:`process` gives for each record; in any way that leaves out no overridden method."""
        return [self._one(record) for record in records]

    def _one(self, record: Record) -> Result:
        try:
            return self.process(record)
        except BaseException as error:  # noqa: BLE001  # whatever an author's code raises is that record's nack
            return nack_of(error)


def nack_of(error: BaseException) -> Nack:
    """Return the nack of the record that an author's code raised this for. Raises what is no record's fault.

    An ``ExceptionGroup`` counts as what is in it.
    """
    found = with_members(error)
    for one in found:
        # an outage is not the record's fault: the step is repeated (reference 3, Open questions)
        if isinstance(one, (TransientError, StepError, *ENDINGS)):
            raise one
    if (lack := lack_of_memory(error)) is not None:
        raise lack
    own = next((one for one in found if isinstance(one, ProcessError | FatalError | FieldError)), error)
    if isinstance(own, FieldError):
        return Nack(own.code, str(own))
    if isinstance(own, ProcessError | FatalError):
        # an author's class may have an ``__init__`` that leaves out ours
        return Nack(str(own.code), str(getattr(own, "message", None) or _text(own)))
    return Nack("processor.error", f"{type(error).__name__}: {_text(error)}")


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failed:  # noqa: BLE001  # an author's exception may fail at that too
        return f"its text can't be read, {type(failed).__name__}"


Key = int | str | bytes


class Entries:
    """Stored entries, in order, as columns: an object per entry would take much more memory and time."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.owners = array("q")
        """Number that identifies each entry's record, the same for every attempt."""
        self.numbers = array("q")
        """Ordinal of each entry's record among the records with a key, from 1, over all steps; ascending."""
        self.at_ns = array("q")
        """Times of the steps."""

    def __len__(self) -> int:
        return len(self.keys)

    def extend(self, keys: list[Key], owners: array[int], numbers: array[int], at_ns: array[int]) -> None:
        """Append columns of equal length."""
        self.keys.extend(keys)
        self.owners.extend(owners)
        self.numbers.extend(numbers)
        self.at_ns.extend(at_ns)

    def since(self, place: int) -> Entries:
        """Return a copy of the entries from index ``place`` on."""
        made = Entries()
        made.extend(self.keys[place:], self.owners[place:], self.numbers[place:], self.at_ns[place:])
        return made

    def forget(self, count: int) -> None:
        """Remove the first ``count`` entries."""
        del self.keys[:count], self.owners[:count], self.numbers[:count], self.at_ns[:count]


class StatefulProcessor(Processor, ABC):
    """A processor whose result for a record depends on earlier records, in the pipeline's order.

    The engine runs it in one task, restores its state before each step, and stores new entries with the step: a
    repeated step starts with the same state, and a step that did not count leaves nothing behind.
    """

    count: int = 0
    """Number of records with a key received so far, over all steps."""

    @property
    @abstractmethod
    def basis(self) -> str:
        """Definition of the keys. Entries stored under another definition are discarded."""

    @abstractmethod
    def recall(self, count: int, entries: Entries) -> None:
        """Replace the whole state by this count and these entries."""

    @abstractmethod
    def news(self) -> Entries:
        """Return the entries added since :meth:`recall` or the last :meth:`settle` that still matter."""

    @abstractmethod
    def settle(self) -> None:
        """Mark the new entries as stored."""

    @abstractmethod
    def entries(self) -> Entries:
        """Return all entries that still matter, and forget the earlier ones."""

    @abstractmethod
    def forget(self, number: int) -> None:
        """Forget all entries up to this number, whether they still matter or not."""

    @abstractmethod
    def is_over(self, number: int, at_ns: int) -> bool:
        """Return whether an entry with this number and time no longer matters."""
