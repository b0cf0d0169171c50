"""Request to a staging task, besides the program, and the ledger it returns: numbers and nacks, never records."""

from __future__ import annotations

import socket
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from conduit_dagster import storage
from conduit_dagster.commit_log.segment_layout import Written, hidden
from conduit_dagster.engine.spark_tasks import seen_here
from conduit_dagster.msgspec_warmup import learn
from conduit_dagster.recovery.classify import classify
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError
from conduit_dagster.sdk import Split
from conduit_dagster.secret_values import hide
from conduit_dagster.state.steps import LetterPart, Namespaces, Part, ProcessorState, SourceCount


class LogRequest(msgspec.Struct, frozen=True):
    """Destination of one source's records in the log."""

    folder: str
    """URL of the segment."""
    first: int
    """Offset of the step's first record."""


class LogResult(msgspec.Struct, frozen=True):
    """Records of one source that a task has logged."""

    source: str
    ordinal: int
    """Index of its first record in the step's range."""
    written: Written | None
    """The written file; None if there was no record."""
    boundary: Any
    """The source's own position after the last logged record."""


class SplitOf(msgspec.Struct, frozen=True):
    """A split and the source it belongs to."""

    source: str
    split: Split


class StageJob(msgspec.Struct, frozen=True):
    """One execution of one step: everything its tasks need besides the program."""

    clock_ns: int
    tasks: list[list[SplitOf]]
    staging: dict[str, str]
    """Consumer to the folder URL for this execution."""
    hashes: dict[str, str] = {}
    generations: dict[str, int] = {}
    as_records: list[str] = []
    """Consumers that keep origins, and whose share is also staged as whole records."""
    nacked: dict[str, list[int]] = {}
    """By source, log offsets of records whose nack is already recorded (``Plan.nacked``)."""
    log_requests: dict[str, LogRequest] = {}
    """Sources that are read directly and logged on the way, by id."""
    offsets: dict[str, int] = {}
    """The offset of each source's first record."""
    archive: tuple[str, int] = ("", 0)
    """Folder of the archive of nacked records, and the step's number; an empty folder archives nothing."""

    memory: dict[str, ProcessorState] = {}
    """Initial state of stateful processors, by node (``Plan.memory``)."""
    state_folder: str = ""
    """Folder of the state files."""

    def written_by(self, ledger: Ledger) -> Iterator[str]:
        """Yield the URL of each file that a task reports."""
        for parts in (ledger.parts, ledger.origins, ledger.records):
            yield from (storage.join(self.staging[consumer], part.name) for consumer, part in parts.items())
        if ledger.letters:
            yield storage.join(self.archive[0], ledger.letters.name)
        for state in ledger.memory.values():
            yield from (storage.join(self.state_folder, file.name) for file in state.parts)
        for logged in ledger.log_results:
            if logged.written:
                yield storage.join(self.log_requests[logged.source].folder, hidden(logged.written.name))


learn(StageJob)


class NackRow(msgspec.Struct):
    """One nacked source record."""

    source: str
    ordinal: int
    """Index of the record in the step's range of its source, from 0."""
    position: str
    node: str
    code: str
    message: str
    by_destination: bool = False
    before: Any = None
    """The source's position right before it; only if the nack window may cut there."""


class TaskError(msgspec.Struct):
    """An error that ended a task. Expected errors are reported here, because Spark would keep only their text."""

    fatal: bool
    code: str
    message: str
    place: str | None = None
    fix: str | None = None
    node: str | None = None
    trace: str = ""
    host: str = msgspec.field(default_factory=socket.gethostname)
    """The machine on which the task ran."""

    @property
    def is_unforeseen(self) -> bool:
        """Whether its text comes from an unclassified exception, which may contain anything."""
        return self.code in ("connector.failed", "processor.failed", "task.failed")

    def masked(self, mask: Callable[[str], str]) -> TaskError:
        """Return a copy with all texts masked."""
        fix = mask(self.fix) if self.fix else self.fix
        return msgspec.structs.replace(self, message=mask(self.message), fix=fix, trace=mask(self.trace))

    def without_text(self, instead: str) -> TaskError:
        """Return a copy with this message, without fix and trace."""
        return msgspec.structs.replace(self, message=instead, fix=None, trace="")

    def as_error(self) -> ConduitError:
        """Return it as an exception of its original class; ``spark.not_shared`` if it misses a file that is here."""
        kind = FatalError if self.fatal else TransientError
        error = kind(self.message, code=self.code, place=self.place, fix=self.fix, node=self.node)
        if self.trace:
            error.add_note(self.trace)
        return seen_here(error, self.host)


class SourceFailure(msgspec.Struct):
    """A source that failed in the middle of a split."""

    source: str
    ordinal: int
    """Number of records of the step's range that it returned before the failure."""
    before: Any
    """The source's own position after the last of them."""
    error: TaskError


class Ledger(msgspec.Struct):
    """Report of one task."""

    task: int
    sources: dict[str, SourceCount] = {}
    nacks: list[NackRow] = []
    """One row per nack that the driver needs (:class:`NackRows`)."""
    letters: LetterPart | None = None
    """The archive file with all nacked records."""
    nacked: dict[str, int] = {}
    """Counts of all nacks, by ``node code``."""
    filtered: dict[str, int] = {}
    parts: dict[str, Part] = {}
    """Staged part per consumer; missing if nothing was staged."""
    origins: dict[str, Part] = {}
    """Consumer to the origins of its staged part, if it keeps them (``origins.py``)."""
    records: dict[str, Part] = {}
    """Consumer to its share as whole records, if requested."""
    namespaces: Namespaces = {}
    log_results: list[LogResult] = []
    """Records that the task also wrote to the log, in order."""
    memory: dict[str, ProcessorState] = {}
    """By node, the new state of stateful processors."""
    error: TaskError | None = None
    failed: SourceFailure | None = None
    """If set, nothing else of the task counts: the step is cut right before the failure."""
    host: str = msgspec.field(default_factory=socket.gethostname)
    """The machine on which it ran."""


def task_error(error: BaseException, doing: str) -> TaskError:
    """Classify an exception of a task. Unforeseen ones are transient and keep their traceback for ``--verbose``."""
    known = classify(error, doing=doing, code="task.failed")
    # a ConduitError or OSError is clear enough without its own traceback
    origin = error.__cause__ if isinstance(error, ConduitError | OSError) else error
    trace = hide("".join(traceback.format_exception(origin))) if origin else ""
    return TaskError(known.fatal, known.code, known.message, known.place, known.fix, known.node, trace)


learn(Ledger)


_SAMPLE = 20
"""Number of reported nacks per split if they can't affect the step; the archive has all of them."""


class NackRows:
    """Selects the nacks of a split that get a row: enough to decide where the step is cut, and a sample.

    Once the nacks of the split alone exceed the threshold, the step is cut here or earlier, so later ones don't matter.
    Without a window nothing is cut, and the rows are only for display.
    """

    def __init__(self, size: int, threshold: int) -> None:
        self._size, self._recent = size, deque[int](maxlen=threshold + 1)
        self._left = _SAMPLE if size == 0 else None
        self._decided = False

    def wants(self, ordinal: int) -> bool:
        """Return whether the nack of this record gets a row. Call once per nack, in order."""
        if self._left is not None:
            self._left -= 1
            return self._left >= 0
        if self._decided:
            return False
        self._recent.append(ordinal)
        full = len(self._recent) == self._recent.maxlen
        self._decided = full and ordinal - self._recent[0] < self._size
        return True
