"""What a task reports: numbers, nacks and names, never records."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from conduit_dagster.engine.teed import Teed
from conduit_dagster.learn import learn
from conduit_dagster.recovery.classify import classify
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError
from conduit_dagster.state.steps import LetterPart, Memory, Namespaces, Part, SourceCount


class NackRow(msgspec.Struct):
    """One nacked source record."""

    source: str
    ordinal: int
    """Its place in the step's range of its source, from 0."""
    position: str
    node: str
    code: str
    message: str
    by_destination: bool = False
    before: Any = None
    """The source's position right before it; only where the nack window may cut there."""


class TaskError(msgspec.Struct):
    """An error that ended a task; expected ones travel here, because Spark would keep only their text."""

    fatal: bool
    code: str
    message: str
    place: str | None = None
    fix: str | None = None
    node: str | None = None
    trace: str = ""

    @property
    def is_unforeseen(self) -> bool:
        """Whether its text is that of an exception that nobody classified, whatever that says."""
        return self.code in ("connector.failed", "processor.failed", "task.failed")

    def masked(self, mask: Callable[[str], str]) -> TaskError:
        """The same with other texts."""
        fix = mask(self.fix) if self.fix else self.fix
        return msgspec.structs.replace(self, message=mask(self.message), fix=fix, trace=mask(self.trace))

    def without_text(self, instead: str) -> TaskError:
        """The same, saying this and no more."""
        return msgspec.structs.replace(self, message=instead, fix=None, trace="")

    def as_error(self) -> ConduitError:
        """The error again, with its class."""
        kind = FatalError if self.fatal else TransientError
        error = kind(self.message, code=self.code, place=self.place, fix=self.fix, node=self.node)
        if self.trace:
            error.add_note(self.trace)
        return error


class SourceFailure(msgspec.Struct):
    """A source that failed in the middle of a split."""

    source: str
    ordinal: int
    """How many records of the step's range it gave before."""
    before: Any
    """The source's own position behind the last of them."""
    error: TaskError


class Ledger(msgspec.Struct):
    """One task's report."""

    task: int
    sources: dict[str, SourceCount] = {}
    nacks: list[NackRow] = []
    """One row per nack, as far as the driver needs them (``nack_rows.py``)."""
    letters: LetterPart | None = None
    """The file of the archive with all of them."""
    nacked: dict[str, int] = {}
    """All nacks, by ``node code``."""
    filtered: dict[str, int] = {}
    parts: dict[str, Part] = {}
    """Consumer to what was staged for it; missing where there was nothing."""
    origins: dict[str, Part] = {}
    """Consumer to the origins of what was staged for it, where it keeps them (``origins.py``)."""
    records: dict[str, Part] = {}
    """Consumer to its share as whole records, where that was asked for."""
    namespaces: Namespaces = {}
    teed: list[Teed] = []
    """What it has logged as well, in order."""
    memory: dict[str, Memory] = {}
    """By node, what processors remember from here on."""
    error: TaskError | None = None
    failed: SourceFailure | None = None
    """Nothing of the task counts but this: the step is cut right before the failure."""

    def encode(self) -> bytes:
        """As it travels back."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(data: bytes) -> Ledger:
        """The ledger behind :meth:`encode`."""
        return msgspec.msgpack.decode(data, type=Ledger)


def task_error(error: BaseException, doing: str) -> TaskError:
    """Any exception of a task, classified. What nobody foresaw is transient and keeps its trace for ``--verbose``."""
    known = classify(error, doing=doing, code="task.failed")
    # an error of ours and one of the operating system say enough themselves
    origin = error.__cause__ if isinstance(error, ConduitError | OSError) else error
    trace = "".join(traceback.format_exception(origin)) if origin else ""
    return TaskError(known.fatal, known.code, known.message, known.place, known.fix, known.node, trace)


learn(Ledger)
