"""``log export`` and ``log import``: a log in the binary layout of Transporter's commit log."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from conduit_dagster import storage
from conduit_dagster.commit_log.binary import EntryData, export_entries, import_entries
from conduit_dagster.commit_log.entries import Entry, encode_entries
from conduit_dagster.commit_log.segment_files import PartFile
from conduit_dagster.commit_log.segment_layout import LogFolder, Written, hidden, shown
from conduit_dagster.engine.bound_pipeline import BoundPipeline
from conduit_dagster.engine.operate.export_file import exported
from conduit_dagster.engine.operate.logs import require_range
from conduit_dagster.engine.operate.operator_errors import chosen, refused
from conduit_dagster.engine.operate.pipeline_lock import PipelineLock, begin_log_at, move_source, renew_source
from conduit_dagster.engine.operate.rewind import check_position, require_no_step
from conduit_dagster.engine.operate.source_positions import beyond, handled_of, joined_of, log_of
from conduit_dagster.engine.registering import register_sources
from conduit_dagster.recovery.errors import FatalError, from_os_error
from conduit_dagster.recovery.kill_points import reached
from conduit_dagster.state.history import record_event
from conduit_dagster.state.log_store import LogPart, LogState, LogStore
from conduit_dagster.state.pipeline_state import PipelineState, carry_memory


def export_log(
    database: sa.Engine,
    pipeline: str,
    base: str,
    file: Path,
    source: str | None,
    first: int | None,
    last: int | None,
    force: bool = False,
) -> dict[str, Any]:
    """Write the entries ``first`` to ``last``, both included, to a new file, all or nothing.

    The layout has no positions or times of a source: positions become text, times whole seconds. Raises ``FatalError``
    (``log.*``, ``usage.*``), ``TransientError`` (``file.*``).
    """
    require_range(first, last)
    view = log_of(database, pipeline, base, source)
    if first is not None and first >= view.state().next_offset:
        raise beyond(view, first)
    blocks = view.blocks(first or 0, None if last is None else last + 1)
    with exported(file, force, "exporting the log") as out:
        count = export_entries(blocks, out)
        size = out.tell()
    position = view.state().position
    return {"source": view.source, "file": str(file), "entries": count, "bytes": size, "source_position": position}


_BLOCK = 4096


def import_log(
    lock: PipelineLock,
    file: Path,
    source: str | None,
    position: Any = None,
    data: EntryData = "opencdc",
    dry_run: bool = False,
) -> dict[str, Any]:
    """Append all entries of the file, with their offsets, to the log of ``source``, or none of them.

    The log must be empty or end right before the file's first offset; if all its entries are delivered, it may also end
    earlier. ``position``: where the real source continues; None means its current position. ``data``: the type of the
    entries' data. Raises ``FatalError`` (``log.*``, ``usage.*``; ``positions.step_open`` if a step is prepared,
    ``positions.invalid`` if ``position`` is none of the source's).
    """
    facts = preview(lock.bound, file, source, data, position)
    # a prepared step ends with the positions that it was planned with, and registering sources may change their kind
    require_no_step(lock, lock.store.load())
    if not dry_run:
        register_sources(lock.pipeline, lock.store)
    imported = ImportedLog(file, facts["source"], data)
    adding = _Import(lock, imported, range(facts["first"], facts["last"] + 1))
    adding.check()
    if not dry_run:
        adding.run(position)
    return facts


def preview(
    bound: BoundPipeline, file: Path, source: str | None, data: EntryData = "opencdc", position: Any = None
) -> dict[str, Any]:
    """Return a summary of the file, which is read to its end.

    Raises ``FatalError`` (``log.*``, ``usage.*``, ``positions.invalid``).
    """
    name = chosen("source", source, [node.id for node in bound.compiled.sources], bound.id)
    if bound.compiled.program.log != "records":
        message = f"pipeline {bound.id} keeps no log of records, so there is nothing to import into"
        raise refused("log.positions_only", message, "set delivery.log: records in its file")
    if position is not None:
        node = next(node for node in bound.compiled.sources if node.id == name)
        check_position(node.source, name, node.source.initial(), position)
    first, last = _looked_through(ImportedLog(file, name, data))
    return {"source": name, "file": str(file), "first": first, "last": last, "entries": last - first + 1}


class ImportedLog(NamedTuple):
    """A file in the binary layout, and the options for reading its entries."""

    file: Path
    source: str
    data: EntryData

    def entries(self) -> Iterator[Entry]:
        """Yield the entries. Raises ``FatalError`` (``log.import_damaged``), ``TransientError`` (``file.*``)."""
        try:
            with self.file.open("rb") as stream:
                yield from import_entries(stream, self.source, self.data)
        except OSError as error:
            raise from_os_error(error, "importing a log") from error


def _looked_through(log: ImportedLog) -> tuple[int, int]:
    """Return the first and the last offset. Reads the whole file before any of it is used."""
    first, expected = None, 0
    for entry in log.entries():
        first, expected = (entry.offset, entry.offset) if first is None else (first, expected)
        if entry.offset != expected:
            raise _gap(log.file, expected, entry.offset)
        expected += 1
    if first is None:
        raise refused("log.import_empty", f"{log.file} holds no entry", "export it again; nothing was imported")
    return first, expected - 1


def _gap(file: Path, expected: int, found: int) -> FatalError:
    return refused(
        "log.import_gaps",
        f"{file} goes from offset {expected - 1} to {found}: what lies between was compacted, and no step can be read"
        " across a gap",
        f"export the whole part: conduit-dagster log export … --from {found}",
    )


class _Import:
    def __init__(self, lock: PipelineLock, imported: ImportedLog, offsets: range) -> None:
        self._lock, self._imported, self._source = lock, imported, imported.source
        self._first, self._last = offsets[0], offsets[-1]
        self._log = LogStore(lock.id)
        self._folder = LogFolder(lock.options.log_url, lock.id, self._source)
        self._state: PipelineState = lock.store.load()

    def check(self) -> None:
        """Raise ``FatalError`` if the file can't continue the log."""
        end, handled = self._logged().next_offset, self._handled()
        if self._first < end:
            message = f"the log of {self._source} has offsets up to {end - 1} already, and the file begins with"
            fix = "import into a pipeline that logged nothing of it yet, or export the part that is missing here"
            raise refused("log.import_overlaps", f"{message} {self._first}", fix)
        if self._first > end and handled != end:
            message = f"the log of {self._source} holds entries {handled} to {end - 1} that are not delivered yet"
            raise refused("log.not_read_up", message, "run it once first, then import")

    def _logged(self) -> LogState:
        return self._lock.store.transactions.read(lambda connection: self._log.state(connection, self._source))

    def _handled(self) -> int:
        """Return the offset after the last delivered entry."""
        return handled_of(self._state, self._source) if self._source in self._state.sources else 0

    def run(self, position: Any) -> None:
        self._remove_leftovers()
        written = self._write()
        reached("before-import", self._lock.id)
        log, handled = self._logged(), self._handled()
        known = log.position if position is None else position
        # the import does not wait for offsets that were never in this log
        jumps = handled == log.next_offset and handled != self._first

        def work(connection: sa.Connection) -> None:
            begin_log_at(connection, self._lock.id, self._source, self._first)
            if jumps:
                self._stand_at_first(connection)
            parts = [msgspec.structs.replace(part, position=known) for part in written]
            self._log.commit(connection, self._source, parts, known)
            detail = {"source": self._source, "first": self._first, "last": self._last, "by": self._lock.by}
            record_event(connection, self._lock.id, "log_imported", **detail)

        self._lock.store.transactions.run(work)
        for part in written:
            self._folder.publish_name(part.segment, part.name)

    def _remove_leftovers(self) -> None:
        """Remove what a killed import, or run, left in the newest segment and behind it: no manifest will list it."""
        newest = self._lock.store.transactions.read(lambda connection: self._log.active(connection, self._source)).first
        found = {first: self._folder.names(first) for first in self._folder.segments() if first >= newest}
        # read after listing the files, as the owner: what an earlier one still writes is never committed
        parts = self._lock.store.transactions.run(lambda connection: self._log.parts(connection, self._source, newest))
        listed = {(part.segment, part.name) for part in parts}
        for first, names in found.items():
            for name in names:
                if (first, shown(name)) not in listed:
                    storage.remove(storage.join(self._folder.segment(first), name))

    def _write(self) -> list[LogPart]:
        """Write the entries to files, durably. A failure, as of a full disk, leaves none of them."""
        written = list[LogPart]()
        try:
            for part in self._written():
                written.append(part)
                reached("mid-import", self._lock.id)
            for segment in {part.segment for part in written}:
                self._folder.sync(segment)
            storage.sync_entry(self._lock.options.log_url)
            storage.sync(self._lock.options.log_url)
        except Exception:
            for part in written:
                storage.remove(storage.join(self._folder.segment(part.segment), hidden(part.name)))
            raise
        return written

    def _stand_at_first(self, connection: sa.Connection) -> None:
        join = joined_of(self._state).get(self._source)
        if join is None:
            move_source(connection, self._lock.id, self._source, self._first, self._first)
            # within a generation every step begins where the one before it ended
            was = self._state.sources[self._source].generation
            renewed = renew_source(connection, self._lock.id, self._source)
            # nothing is read again: duplicates of what came before are known still
            carry_memory(connection, self._lock.id, self._source, was, renewed)
        else:
            moved = {**self._state.sources[join].position, self._source: self._first}
            move_source(connection, self._lock.id, join, moved, None)

    def _written(self) -> Iterator[LogPart]:
        size = self._lock.bound.config.delivery.log_segment_size
        active = self._lock.store.transactions.read(lambda connection: self._log.active(connection, self._source))
        # the first segment of an empty log begins with the file
        segment = active.for_append(self._first, size) if active.bytes else self._first
        entries, first = self._imported.entries(), self._first
        while first <= self._last:
            made = self._part(segment, first, entries, size)
            yield made.appended(segment, None)
            first += made.entries
            segment = first if made.bytes >= size else segment

    def _part(self, segment: int, first: int, entries: Iterator[Entry], size: int) -> Written:
        part, url = PartFile(self._folder.segment(segment), first, secrets.token_hex(8)), ""
        try:
            weight = 0
            while weight < size and (block := list(islice(entries, _BLOCK))):
                batch = encode_entries(block)
                weight += batch.nbytes
                part.write(batch)
            written, url = part.finish(), part.url
        except BaseException:
            part.abort()
            raise
        if written is None:
            storage.remove(url)
            raise refused("log.import_damaged", f"{self._imported.file} changed while it was read", "import it again")
        return written
