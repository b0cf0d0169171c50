"""The ``file`` source: follows a growing file line by line, or reads the files of a folder or glob."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from conduit_dagster.connectors.file.file_places import FileFinder
from conduit_dagster.connectors.file.file_position import (
    Copied,
    CopyEnd,
    FileLists,
    FilePosition,
    FileStates,
    cut_at,
    parse_position,
    place_of,
)
from conduit_dagster.connectors.file.file_scan import FileScan, ScanResult, SeenFile
from conduit_dagster.connectors.file.file_state import FoundFile, TrackedFile, parse_tracked
from conduit_dagster.connectors.file.line_reader import FileLabels, LineReader, Mark, file_moved, header_text
from conduit_dagster.connectors.file.listing import is_many, is_rotated, require_local
from conduit_dagster.connectors.file.open_file import FileChanged, OpenFile, is_packed, open_tracked
from conduit_dagster.connectors.file.settings import FileSourceSettings
from conduit_dagster.connectors.file.step_ranges import Bound, Drain, FileSteps, Step
from conduit_dagster.connectors.path_settings import located, modes_of
from conduit_dagster.connectors.step_planning import MOST_FILES
from conduit_dagster.record import Mode
from conduit_dagster.recovery.errors import ConduitError, FatalError, TransientError
from conduit_dagster.sdk import Block, ConnectorContext, KeptValues, Limit, Position, ReadOptions, Source, Split

_LOOKS = 3


class FileSource(Source):
    """Lines of files. A last line without its line end becomes a record only once it is ended or its file is complete.

    Bytes, size and marks always come from one open descriptor. A file is considered the same while inode and birth
    agree and the part already read is unchanged. Survives rotation: the rotated file (``path.*`` or ``path-*`` in the
    same folder) is finished first, whether it was renamed, compressed (``.gz``, ``.bz2``, ``.xz``), or copied and
    truncated. A file that was truncated or replaced after all its known content had been read is read from the start;
    content appended between the last scan and that moment is lost without a trace if no copy is left of it.
    """

    name = "file"
    Settings = FileSourceSettings
    settings: FileSourceSettings
    sets_metadata = True
    gives_json = True
    gives_plain = True

    def __init__(self, settings: FileSourceSettings, context: ConnectorContext) -> None:
        super().__init__(settings, context)
        self._path = located(context, settings.path)
        self._many = is_many(settings.path, context.root)
        self._labels = FileLabels(context, settings, self._many)
        if self._many:
            require_local(settings.path)
        self._scan = FileScan(settings, self._path, context.root, self._many)
        self._steps = FileSteps(settings)
        self._drain = Drain(self._scan, settings)
        self._lists = FileLists(context)

    @property
    def unit(self) -> dict[str, Any]:
        """Absolute path: the spelling in the pipeline file does not change the data."""
        return {"plugin": self.name, "path": self._path}

    def reads_when_rotated(self, path: str) -> bool:
        """Return whether a file at this path would be taken for a rotated version of the followed one."""
        (folder, name), (home, of) = os.path.split(path), os.path.split(os.path.realpath(self._path))
        return not self._many and folder == home and is_rotated(name, of)

    def attach_kept(self, kept: KeptValues) -> None:
        """Store fully read files there instead of in the position; only for a folder or glob."""
        self._lists.attach(kept)

    def initial(self) -> Position:
        """Return the position before the first file."""
        return FilePosition().as_json()

    def place(self, position: Position) -> Any:
        """Return the position without sizes and times, which are mere observations."""
        return place_of(position)

    def horizon(self) -> Any:
        """Return how much of each existing file to read, after giving half-written last lines time to be ended."""
        self._scan.examine_all()
        return self._drain.horizon()

    # -- how far ------------------------------------------------------------------------------------------------

    def latest(self, start: Position, limit: Limit, horizon: Any = None) -> Position:
        """Return the position reached by reading the files in order up to the limit."""
        for _ in range(_LOOKS):
            try:
                return self._latest(start, limit, horizon)
            except FileChanged:
                continue
        if horizon is None:
            return start  # the next attempt follows shortly
        raise TransientError(
            f"files of {self.settings.path} were replaced {_LOOKS} times while they were looked at",
            code="file.moved",
            place=self._path,
            fix="run again, or rotate less often",
        )

    def _latest(self, start: Position, limit: Limit, horizon: Any) -> Position:
        """Try :meth:`latest` once. Raises ``FileChanged`` if a file differs from the listed one."""
        position, left = parse_position(start), limit
        found = self._scan.look(position, self._lists.of(position))
        changed, copied = dict[int, TrackedFile](), Copied(position.copied)
        unread = self._scan.unread(found)
        for seen in unread:
            bound = None if horizon is None else self._drain.bound(horizon, seen, position.seen)
            if bound is not None and self._is_new_copy(seen, horizon, bound):
                break  # it would not be read once a later file is known
            try:
                step = self._steps.take(seen, left, bound)
            except ConduitError:
                if not changed:
                    raise
                break  # what comes before it is read first; the next call raises it
            if step.after is not None:
                changed[seen.file.number] = step.after
                lines, read = self._steps.records(seen.file, step.after), step.after.offset - seen.file.offset
                # the late end of a line that was read without it is not a record
                if lines:
                    copied.read(self._labels.unchecked(seen.file), step.after)
                left = Limit(left.records - lines, left.bytes - read)
            elif seen.file.number >= position.seen and (horizon is None or seen.found.ident in horizon):
                # without a record yet: unless it is known, it is not found again after a rotation
                changed[seen.file.number] = seen.file.at_first(seen.found)
            if step.done < step.upto:
                copied.leave(self._labels.unchecked(seen.file))
            if self._must_wait(seen, step) or min(left) <= 0 or len(changed) >= MOST_FILES:
                break  # later files come after this file's lines
        if not changed:
            return start
        if copied.open:
            self._leave(copied, unread, position.seen)
        kept = self._kept(position, found, changed)
        return msgspec.structs.replace(kept, copied=copied.ends).as_json()

    def _is_new_copy(self, seen: SeenFile, horizon: Any, bound: Bound) -> bool:
        """Return whether a single path's file came into being after the run had begun, and has others behind it."""
        return not self._many and seen.followed and bound.upto == 0 and seen.found.ident not in horizon

    def _leave(self, copied: Copied, unread: Iterator[SeenFile], first: int) -> None:
        """Record the collections of the files that a step has not reached; ``first``: number of the first new file.

        In a folder it checks only the first new file with something to read: others follow it.
        """
        for seen in unread:
            if seen.found.size > seen.file.offset:
                copied.leave(self._labels.unchecked(seen.file))
                if self._many and seen.file.number >= first:
                    last = self._scan.last_paths(self._labels.collections.unchecked)
                    for name in [name for name in copied.open if last.get(name, "") >= seen.found.url]:
                        copied.leave(name)
                    return
            if not copied.open:
                return

    def _must_wait(self, seen: SeenFile, step: Step) -> bool:
        """Return whether this file has lines that must be read before those of the next one."""
        unfinished = seen.followed and step.done < step.upto
        return step.limited or (unfinished and not self._many)

    def _kept(self, position: FilePosition, found: ScanResult, changed: dict[int, TrackedFile]) -> FilePosition:
        """Return the position after a step, with only the files that still exist."""
        here = {file.number: seen for file, seen in found.known}
        gone = [file for file in position.files if file.number not in here]
        # a file renamed into an already listed part of the folder must not be mistaken for a new one later
        if (gone or found.rewritten) and self._scan.is_there([*gone, *found.rewritten]):
            raise FileChanged
        there = [file.at(here[file.number]) for file in position.files if file.number in here]
        # versions without birth times stored none
        files = [msgspec.structs.replace(file, birth=file.birth or here[file.number].birth) for file in there]
        kept = msgspec.structs.replace(position, files=tuple(files))
        if self._many and self._lists.is_writable:
            states = FileStates(here, gone, found.listed, [*found.rewritten, *found.superseded])
            kept = self._lists.left(kept, states, changed, self._scan.alive)
        elif position.read is not None:
            kept = msgspec.structs.replace(kept, read=position.read.moved(gone, ()))
        return kept.with_back(changed, self._lists.back(position, changed))

    def check(self) -> None:
        """Raise if the file is missing, or a file can't be opened."""
        self._scan.require_readable()

    # -- planned ranges -------------------------------------------------------------------------------------------

    def verify(self, start: Position, end: Position) -> None:
        """Raise ``FatalError`` unless all files of the range still hold it, unchanged as far as their marks show."""
        finder = self._finder()
        for _, last in self._lists.range(start, end).files:
            self._open(last, finder).close()

    def gives_up(self, start: Position, end: Position) -> bool:
        """Return whether the range is missing and may be lost, which only ``on-gone: skip`` allows."""
        if self.settings.on_gone != "skip":
            return False
        try:
            self.verify(start, end)
        except FatalError:
            return True
        return False

    def _finder(self) -> FileFinder:
        return FileFinder(self._scan.places, self._scan.copies, self._scan.files)

    def _open(self, file: TrackedFile, finder: FileFinder) -> OpenFile:
        opened = finder.open(file)
        if opened is None:
            raise FatalError(
                f"{file.name}, up to byte {file.offset}, is gone or was changed while it was to be read",
                code="file.range_gone",
                place=self._path,
                fix=f"move the file back; or put a copy of it there, named {file.name}.1; or on-gone: skip loses it",
            )
        return opened

    def within(self, start: Position, end: Position, boundary: Any) -> Position:
        """Return the position at a boundary: files before the boundary's are fully read, those after it not at all."""
        cut, changed = parse_tracked(boundary), dict[int, TrackedFile]()
        before, after, files = self._lists.range(start, end)
        for first, last in files:
            if last.number == cut.number:
                if cut.offset > first.offset:
                    changed[cut.number] = cut_at(cut, last)
                break
            changed[last.number] = last
        if not changed:
            return start
        position = before.like(after).with_back(changed, self._lists.back(before, changed))
        ends = {name: end for name, end in after.copied.items() if name in before.copied or end.is_within(changed)}
        return msgspec.structs.replace(position, copied=ends).as_json()

    def split(self, start: Position, end: Position, n: int) -> list[Split]:
        """Split between lines into pieces of about equal size."""
        finder, splits, ordinal = self._finder(), list[Split](), 0
        span = self._lists.range(start, end)
        share = max(1, sum(last.offset - first.offset for first, last in span.files) // n)
        for first, last in span.files:
            with self._open(last, finder) as opened:
                try:
                    collection = self._labels.unchecked(first)
                    pieces = self._steps.pieces(first, last, opened, share)
                    for low, high in _cut_at_end(pieces, span.copy_end(collection, first.number)):
                        split = _split_of(first, opened, low, high, ordinal)
                        splits.append(span.with_mode(split, collection, first.number))
                        ordinal += high.line - low.line
                except FileChanged:
                    raise file_moved(first, opened.url) from None
        return splits

    def relocate(self, split: Split) -> Split:
        """Return the split with the file's current name, which may have changed."""
        opened = self._finder().open(parse_tracked(split.start))
        if opened is None:
            return split
        with opened:
            return msgspec.structs.replace(split, detail={**split.detail, "url": opened.url})

    # -- reading --------------------------------------------------------------------------------------------------

    def read(self, split: Split, options: ReadOptions) -> Iterator[Block]:
        """Yield the lines of one file's range. Raises ``TransientError`` (``file.moved``) if the file is not found."""
        file = parse_tracked(split.start)
        opened = self._open_split(split, file)
        header = header_text(opened, self.settings.max_line) if self.settings.header else ""
        labels = self._labels.of(file, split.detail["url"], split.detail.get("mode", ""), header)
        yield from LineReader(split, opened, labels, options).blocks()

    def _open_split(self, split: Split, file: TrackedFile) -> OpenFile:
        """Open the planned file under its current name, never another file at its path."""
        url = split.detail["url"]
        found = FoundFile(url, file.name, file.inode, 0, 0, unpacked=is_packed(url))
        opened = open_tracked(found, file) or self._finder().open(file)
        if opened is None:
            raise file_moved(file, url)
        return opened

    def lag(self, position: Position) -> int | None:
        """Return the number of unread bytes."""
        where = parse_position(position)
        found = self._scan.look(where, self._lists.of(where))
        return sum(max(0, seen.found.size - seen.file.offset) for seen in self._scan.unread(found))

    def collection_modes(self, position: Position) -> Mapping[str, Mode]:
        """Return ``complete`` for each collection whose files are all read, as of the last scan."""
        where = parse_position(position)
        finished = self._lists.of(where)
        unread = {
            self._labels.collection(seen.file)
            for seen in self._scan.unread(self._scan.look(where, finished))
            if seen.found.size > seen.file.offset
        }
        known = {self._labels.collection(file) for file in (*finished.rows.values(), *where.files)}
        return modes_of(known, unread)

    def counts(self, position: Position) -> Mapping[str, int]:
        """Return the number of fully read files, and of others, as of the last scan."""
        where = parse_position(position)
        active = {file.number for file in where.files}
        finished = sum(number not in active for number in self._lists.of(where).rows)
        unread = sum(file.size > file.offset for file in where.files)
        return {"files_read": finished + len(active) - unread, "files_unread": unread}


def _split_of(first: TrackedFile, opened: OpenFile, low: Mark, high: Mark, ordinal: int) -> Split:
    """Return a part of a file's range as a split. Raises ``FileChanged`` if the file was truncated meanwhile."""
    mark = opened.mark(low.offset) if low.offset != first.offset else first.mark
    start = msgspec.structs.replace(first.at(opened.found), offset=low.offset, line=low.line, mark=mark)
    detail = {"url": opened.url, "from": list(low), "to": high.offset}
    return Split(msgspec.structs.asdict(start), ordinal, high.line - low.line, high.offset - low.offset, detail)


def _cut_at_end(pieces: Iterable[tuple[Mark, Mark]], end: CopyEnd | None) -> Iterator[tuple[Mark, Mark]]:
    """Yield the pieces of a file; a piece that contains the end of a copy is cut there."""
    for low, high in pieces:
        if end is not None and low.offset < end.offset < high.offset:
            yield low, Mark(end.offset, end.line)
            low = Mark(end.offset, end.line)
        yield low, high
