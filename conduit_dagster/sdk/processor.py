"""Interface of processors, for built-ins and for users alike."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from pydantic import BaseModel, ConfigDict

from conduit_dagster.expressions import Clock
from conduit_dagster.idempotency_keys import IdempotencyKeys, RecordKey
from conduit_dagster.record import Nack, Record
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.spark.sql.query import SqlQuery


class Drop(enum.Enum):
    """The type of :data:`DROP`."""

    DROP = "drop"


DROP: Final = Drop.DROP
"""What a processor returns for a record that goes no further. The record is acked."""

Result = Record | list[Record] | Drop | Nack


class Results(list[Result]):
    """Results that name the places of all that is not just one record, which spares a look at every one."""

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
        """Return the settings whose keys begin with ``prefix``, without it."""
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
    """The step's recorded time, so that a repeat of the step gives the same bytes (DELIVERY.md, Plan)."""
    consumer: str = ""
    """The destination that the processor belongs to; empty before the fan-out."""
    idempotency: IdempotencyKeys = field(default_factory=IdempotencyKeys)
    mask: Callable[[Record], Record] = _same
    """Gives the record without the values that the pipeline's file redacts: for whatever is printed."""

    @property
    def delivery_hash(self) -> str:
        """The hash of what is being delivered: the same for every attempt. Store it with a side effect (CASES D12)."""
        return self.idempotency.hash_of(self.consumer)

    def record_key(self, record: Record) -> RecordKey:
        """Source, generation and position: the record's own name for side effects, the same for every attempt."""
        return self.idempotency.key_of(record)


class ProcessError(Exception):
    """Raise it to nack a record with a code of your own; any other exception nacks with code ``processor.error``."""

    def __init__(self, message: str, *, code: str = "processor.error") -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True)
class Example:
    """Example of a processor: one record before and after. ``processors describe`` shows it, and a test runs it."""

    title: str
    settings: Mapping[str, str]
    given: Record
    gives: Record | list[Record] | Drop | str
    """What comes out; of a nack its code."""


class Processor:
    """Turns a record into one record or several, drops it, or raises to nack it; a ``TransientError`` is no nack: the
    pipeline recovers and the step is repeated.

    One instance lives in a Spark worker and sees many blocks, one after another; it may be made again at any time and
    a step may be repeated, so what ``process`` returns must depend on the record alone.
    """

    name: ClassVar[str]
    """The plugin's name in a pipeline file, such as ``field.set``."""
    Settings: ClassVar[type[ProcessorSettings]] = ProcessorSettings
    examples: ClassVar[Sequence[Example]] = ()
    deterministic: ClassVar[bool] = True
    """False where the same record may become something else the next time: a step whose staging is lost after it was
    prepared can't be staged again then, and waits for an operator (``delivery.rebuild_differs``)."""
    keyless: ClassVar[bool] = False
    """True only where neither ``record.key`` nor ``record.position`` is ever looked at."""
    keeps_fields: ClassVar[bool] = False
    """True only where each top-level field of ``.Payload.After`` is made of that field alone: no field gets anything
    of another one, of the key or of ``.Payload.Before``."""
    shares_records: ClassVar[bool] = False
    """True only where ``process`` replaces ``record.metadata`` instead of changing it, and makes nothing that JSON
    cannot hold. Otherwise the engine hands over records of their own and checks what comes back."""

    def __init__(self, settings: ProcessorSettings, context: ProcessorContext) -> None:
        self.settings = settings
        self.context = context

    @classmethod
    def travelling(cls, settings: Mapping[str, str], root: str) -> dict[str, str]:
        """Return the settings as tasks receive them: with the content of files that they name on the driver.

        ``root``: the project's folder. Raises ``FatalError``.
        """
        del root
        return dict(settings)

    @property
    def reads_key(self) -> bool:
        """Whether ``record.key`` or ``record.position`` may be looked at; a source may leave an unread key out."""
        return not self.keyless

    @property
    def reads_position(self) -> bool:
        """Whether ``record.position`` is looked at where :attr:`reads_key` is false."""
        return False

    def made_of(self, field: str) -> Collection[str] | None:
        """Return the fields that a top-level field of ``.Payload.After`` may be made of, as they were called before.

        None if that can't be told, which is the default. It becomes the column lineage in Dagster, and keeps what was
        made of a redacted field out of the preview of a destination.
        """
        return (field,) if self.keeps_fields else None

    @property
    def query(self) -> SqlQuery | None:
        """What it has Spark compute while it processes a block; None for what is all Python."""
        return None

    def process(self, record: Record) -> Record | list[Record] | Drop:
        """Process one record; return one or several records, or :data:`DROP`. Raising nacks the record, unless it is a
        ``TransientError``."""
        raise TypeError(f"{type(self).__name__} defines neither process nor process_block")

    def process_block(self, records: list[Record]) -> list[Result]:
        """Process a block; return a result for each record, in order. Anything raised fails the step; it is no nack.

        Returning the very list that was given says that every record was changed in place and goes on.
        """
        return [self._one(record) for record in records]

    def _one(self, record: Record) -> Result:
        try:
            return self.process(record)
        except ProcessError as error:
            return Nack(error.code, error.message)
        except TransientError:
            raise  # an outage is not the record's fault: the step is repeated (reference 3, Open questions)
        except FatalError as error:
            return Nack(str(error.code), error.message)
        except Exception as error:  # noqa: BLE001  # whatever an author's code raises is that record's nack
            return Nack("processor.error", f"{type(error).__name__}: {error}")
