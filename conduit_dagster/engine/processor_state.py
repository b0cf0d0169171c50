"""State of stateful processors: files that tasks write and steps' decisions name.

``LOG/PIPELINE/~memory/STEP-TOKEN.msgpack.zst``. A step's plan names the files of its initial state, so that a repeat
begins with the same state; its decision names those of the next step. Files that neither names are left over.
"""

from __future__ import annotations

import hashlib
import secrets
import sys
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec

from conduit_dagster import storage
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk.processor import Entries, StatefulProcessor
from conduit_dagster.sdk.staging import discard_file
from conduit_dagster.sink import Sink
from conduit_dagster.state.steps import ProcessorState, ProcessorStatePart

_FOLDER: Final = "~memory"
_DEPTH: Final = 4
"""Folder levels to sync: the memory, its pipeline, the folder of all logs, and its parent."""
_MOST_PARTS: Final = 16
"""Number of files from which on all are merged into one."""


def state_folder(log_url: str, pipeline: str) -> str:
    """Return the URL of the folder for the memory of a pipeline's processors."""
    return storage.join(log_url, storage.safe_name(pipeline), _FOLDER)


class StatefulNode:
    """A processor with its state, in a task."""

    def __init__(self, processor: StatefulProcessor) -> None:
        self._processor = processor
        self._at: ProcessorState | None = None
        """Current state; None while a step is running."""
        self._began = ProcessorState()

    def recall(self, node: str, memory: ProcessorState, folder: str) -> None:
        """Load the state that a step begins with. Raises ``FatalError`` (``memory.damaged``)."""
        before = _newest.get((folder, node))
        if before is not None and before is not self:
            before.forget()
        _newest[folder, node] = self
        if self._at != memory:
            entries = Entries()
            for part in memory.parts:
                _read_into(entries, self._processor.basis, node, folder, part)
            self._processor.recall(memory.count, entries)
        # unknown until the step ends: a failed task leaves neither the old nor the new state
        self._began, self._at = memory, None

    def forget(self) -> None:
        """Drop the state: the processor of a changed file, or of a replay, takes over."""
        self._at = None
        self._processor.recall(0, Entries())

    def keep(self, folder: str, step: int) -> ProcessorState:
        """Store additions; return the state that the next step begins with.

        The processor then knows exactly what those files hold: a worker that reads them must give the same results.
        """
        processor, parts = self._processor, list(self._began.parts)
        while parts and processor.is_over(parts[0].number, parts[0].at_ns):
            processor.forget(parts.pop(0).number)
        fresh = processor.news()
        if len(parts) >= _MOST_PARTS:
            fresh, parts = processor.entries(), []
        if fresh:
            parts.append(_write(folder, step, fresh, processor.basis))
        processor.settle()
        self._at = ProcessorState(parts, processor.count, self._began.generations)
        return self._at


_newest: WeakValueDictionary[tuple[str, str], StatefulNode] = WeakValueDictionary()
"""Current owner of the state, by folder and node: a worker caches several programs of a pipeline, but one state."""


class _File(msgspec.Struct, array_like=True):
    basis: str
    keys: list[Any]
    owners: bytes
    numbers: bytes
    at_ns: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_File).decode


def _write(folder: str, step: int, entries: Entries, basis: str) -> ProcessorStatePart:
    # imported late: validating a pipeline must not import pyarrow
    import pyarrow as pa

    storage.make_folder(folder)
    # random per attempt: a retry never collides with the file of an earlier attempt
    name = f"{step:012d}-{secrets.token_hex(8)}.msgpack.zst"
    columns = (_little(column).tobytes() for column in (entries.owners, entries.numbers, entries.at_ns))
    with storage.NewFile(storage.join(folder, name)) as file:
        with pa.CompressedOutputStream(pa.PythonFile(Sink(file), "w"), "zstd") as stream:
            stream.write(_encode(_File(basis, entries.keys, *columns)))
        digest = file.finish()
    return ProcessorStatePart(name, len(entries), file.bytes, digest, entries.numbers[-1], entries.at_ns[-1])


def _read_into(entries: Entries, basis: str, node: str, folder: str, part: ProcessorStatePart) -> None:
    import pyarrow as pa

    url = storage.join(folder, part.name)
    try:
        with storage.open_read(url) as file:
            data = file.read()
    except FileNotFoundError:
        raise _damaged(node, url, "is gone") from None
    if (len(data), hashlib.sha256(data).hexdigest()) != (part.bytes, part.sha256):
        raise _damaged(node, url, "is not what was written")
    stored = _decode(pa.CompressedInputStream(pa.BufferReader(data), "zstd").read())
    if stored.basis == basis:
        entries.extend(stored.keys, *map(_little, (stored.owners, stored.numbers, stored.at_ns)))


def _little(numbers: array[int] | bytes) -> array[int]:
    """Return a copy of numbers in the byte order of the file, or of those of a file in this machine's."""
    column = array("q", numbers)
    if sys.byteorder == "big":
        column.byteswap()
    return column


def _damaged(node: str, url: str, what: str) -> FatalError:
    return FatalError(
        f"a file of what the processor remembers {what}",
        code="memory.damaged",
        node=node,
        place=url,
        fix="put it back as it was; or give the processor another id: it begins without a memory then",
    )


@dataclass(frozen=True)
class ProcessorStateFiles:
    """State files of a pipeline's processors, as managed by the driver."""

    folder: str

    def sync(self, before: Mapping[str, ProcessorState], after: Mapping[str, ProcessorState]) -> None:
        """Make the names of new files durable, before a decision names them."""
        if _names([after]) - _names([before]):
            storage.sync_levels(self.folder, _DEPTH)

    def forget(self, before: Mapping[str, ProcessorState], after: Mapping[str, ProcessorState]) -> None:
        """Remove files of a done step's initial state that are no longer needed."""
        self._remove(_names([before]) - _names([after]))

    def clean(self, kept: Iterable[Mapping[str, ProcessorState]], decided: int) -> None:
        """Remove files that none of these names: they are left over from executions that did not count.

        Only of steps up to ``decided``, the newest one that is prepared or done: a frozen owner that resumes knows of
        no later step, so it removes nothing of a newer owner's.
        """
        left = set(storage.files(self.folder)) - _names(kept)
        self._remove(name for name in left if name[:12].isdecimal() and int(name[:12]) <= decided)

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            discard_file(storage.join(self.folder, name))


def _names(states: Iterable[Mapping[str, ProcessorState]]) -> set[str]:
    return {part.name for state in states for one in state.values() for part in one.parts}
