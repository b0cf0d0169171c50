"""Memory of stateful processors: files that tasks write and that the steps' decisions name.

``LOG/PIPELINE/~memory/STEP-TOKEN.msgpack.zst``. A step's plan names the files that it begins with, so that a repeat
of it meets the same memory, and its decision those that the next one begins with. A file that neither names is left
over.
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
from conduit_dagster.processors.common.stateful import Entries, StatefulProcessor
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state.steps import Memory, MemoryPart
from conduit_dagster.storage import Sink

_FOLDER: Final = "~memory"
_DEPTH: Final = 4
"""The folder, the pipeline's, that of all logs, and the one that it is in."""
_MOST_PARTS: Final = 16
"""Then one file takes the place of all."""


def memory_folder(log_url: str, pipeline: str) -> str:
    """Return the URL of the folder for the memory of a pipeline's processors."""
    return storage.join(log_url, storage.safe_name(pipeline), _FOLDER)


class StatefulNode:
    """A processor with its memory, in a task."""

    def __init__(self, processor: StatefulProcessor) -> None:
        self._processor = processor
        self._at: Memory | None = None
        """What it stands at; None where a step has begun since."""
        self._began = Memory()

    def recall(self, node: str, memory: Memory, folder: str) -> None:
        """Load the memory that a step begins with. Raises ``FatalError`` (``memory.damaged``)."""
        before = _newest.get((folder, node))
        if before is not None and before is not self:
            before.forget()
        _newest[folder, node] = self
        if self._at != memory:
            entries = Entries()
            for part in memory.parts:
                _read_into(entries, self._processor.basis, node, folder, part)
            self._processor.recall(memory.count, entries)
        # in a task that fails it is neither what it was nor what it would have been
        self._began, self._at = memory, None

    def forget(self) -> None:
        """Drop the memory: the processor of a changed file, or of a replay, has taken its place."""
        self._at = None
        self._processor.recall(0, Entries())

    def keep(self, folder: str, step: int) -> Memory:
        """Store what was added; return the memory that the next step begins with.

        What the processor knows is then what those files hold: a worker that reads them must give the same answers.
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
        self._at = Memory(parts, processor.count, self._began.generations)
        return self._at


_newest: WeakValueDictionary[tuple[str, str], StatefulNode] = WeakValueDictionary()
"""Who remembers, by folder and node: a worker keeps several programs of a pipeline, and one memory."""


class _File(msgspec.Struct, array_like=True):
    basis: str
    keys: list[Any]
    owners: bytes
    numbers: bytes
    at_ns: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_File).decode


def _write(folder: str, step: int, entries: Entries, basis: str) -> MemoryPart:
    # here, because validating a pipeline must not import pyarrow
    import pyarrow as pa

    storage.make_folder(folder)
    # random per attempt: a second one never meets the file of the first
    name = f"{step:012d}-{secrets.token_hex(8)}.msgpack.zst"
    file = storage.NewFile(storage.join(folder, name))
    columns = map(_bytes_of, (entries.owners, entries.numbers, entries.at_ns))
    with pa.CompressedOutputStream(pa.PythonFile(Sink(file), "w"), "zstd") as stream:
        stream.write(_encode(_File(basis, entries.keys, *columns)))
    digest = file.finish()
    return MemoryPart(name, len(entries), file.bytes, digest, entries.numbers[-1], entries.at_ns[-1])


def _read_into(entries: Entries, basis: str, node: str, folder: str, part: MemoryPart) -> None:
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
        entries.extend(stored.keys, *map(_column_of, (stored.owners, stored.numbers, stored.at_ns)))


def _bytes_of(column: array[int]) -> bytes:
    """Return numbers in a byte order that any machine can read."""
    return _little(array("q", column)).tobytes()


def _column_of(data: bytes) -> array[int]:
    return _little(array("q", data))


def _little(column: array[int]) -> array[int]:
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
class Memories:
    """Memory of a pipeline's processors, as seen by the driver."""

    folder: str

    def sync(self, before: Mapping[str, Memory], after: Mapping[str, Memory]) -> None:
        """Make the names of new files durable, before a decision names them."""
        if not _names([after]) - _names([before]):
            return
        url = self.folder
        for _ in range(_DEPTH):
            storage.sync(url)
            url = url.rsplit("/", 1)[0]

    def forget(self, before: Mapping[str, Memory], after: Mapping[str, Memory]) -> None:
        """Remove the files that a done step began with and nothing needs any more."""
        self._remove(_names([before]) - _names([after]))

    def clean(self, kept: Iterable[Mapping[str, Memory]], decided: int) -> None:
        """Remove the files that none of these names: they are left over from executions that never counted.

        Only of steps up to ``decided``, the newest one that is prepared or done: an old owner that was frozen here and
        goes on knows of no later step, and takes nothing of a newer owner's.
        """
        left = set(storage.files(self.folder)) - _names(kept)
        self._remove(name for name in left if name[:12].isdecimal() and int(name[:12]) <= decided)

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            storage.remove(storage.join(self.folder, name))


def _names(memories: Iterable[Mapping[str, Memory]]) -> set[str]:
    return {part.name for memory in memories for one in memory.values() for part in one.parts}
