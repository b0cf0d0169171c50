"""The ``file`` source: follows a growing file line by line, or reads the files of a folder or glob."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec

from conduit_dagster.connectors.base import Block, ConnectorContext, Limit, Position, ReadOptions, Source, Split
from conduit_dagster.connectors.file.lines import Mark, scan
from conduit_dagster.connectors.file.listing import Found, is_many, look
from conduit_dagster.connectors.file.reach import Reach, reach
from conduit_dagster.connectors.file.reader import Reader
from conduit_dagster.connectors.file.settings import FileSourceSettings, as_source
from conduit_dagster.connectors.file.survey import Seen, Surveyor
from conduit_dagster.connectors.file.tracked import (
    FilePosition,
    Tracked,
    mark_of,
    parse_position,
    parse_tracked,
)
from conduit_dagster.record import READ_AT, SOURCE_CONNECTOR_ID
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.state import storage

_LOOKS = 3
_MOST_FILES = 1_000
"""Files per step: each is a split, and a step is recorded whole."""


class FileSource(Source):
    """Lines of files. An unterminated last line waits while the pipeline runs on, and is read when it drains.

    Survives rotation by rename: the renamed file (``path.*`` or ``path-*`` in the same folder) is finished first.
    A file that was truncated or replaced after all that was known of it had been read is begun anew; what was
    appended between our last look and that moment is lost without a trace, as no reader could know of it.
    """

    name = "file"
    Settings = FileSourceSettings
    sets_metadata = True
    gives_json = True

    def __init__(self, settings: Any, context: ConnectorContext) -> None:
        super().__init__(settings, context)
        self._settings = as_source(settings)
        self._path = context.resolve(self._settings.path)
        self._many = is_many(self._settings.path, context.root)
        self._surveyor = Surveyor(self._settings, self._path, context.root, self._many)
        self._marks: dict[int, list[Mark]] = {}
        self._fruitless: dict[str, tuple[Any, ...]] = {}

    @property
    def unit(self) -> dict[str, Any]:
        """The absolute path: however it is spelt in the pipeline file, it is the same data."""
        return {"plugin": self.name, "path": self._path}

    def initial(self) -> Position:
        """Before the first file."""
        return FilePosition().as_json()

    def place(self, position: Position) -> Any:
        """Without sizes and times, which are what we happened to see."""
        return parse_position(position).place()

    def horizon(self) -> Any:
        """The files there are, with their sizes."""
        return {found.ident: found.size for found in self._surveyor.files()}

    # -- how far ------------------------------------------------------------------------------------------------

    def latest(self, start: Position, limit: Limit, horizon: Any = None) -> Position:
        """Goes through the files in order until the limit is reached."""
        for _ in range(_LOOKS):
            end = self._latest(start, limit, horizon)
            if end is not None:
                return end
        return start

    def _latest(self, start: Position, limit: Limit, horizon: Any) -> Position | None:
        """None where a file was renamed since it was listed: what was read may have been another one's."""
        position, left = parse_position(start), limit
        survey = self._surveyor.survey(position)
        moved: dict[int, Tracked] = {}
        for seen in survey:
            step = self._reach(seen, left, horizon)
            if step is not None and step.end.offset > seen.file.offset:
                after = self._at(seen, step)
                if not _is_there(seen.found):
                    return None
                moved[seen.file.number] = after
                read = Limit(step.end.line - seen.file.line, step.end.offset - seen.file.offset)
                left = Limit(left.records - read.records, left.bytes - read.bytes)
            if self._must_wait(seen, step, horizon) or min(left) <= 0 or len(moved) >= _MOST_FILES:
                break  # what follows comes after this file's lines
        if not moved:
            return start
        here = {seen.file.number for seen in survey}
        kept = tuple(file for file in position.files if file.number in here)
        return FilePosition(position.seen, kept).with_files(moved).as_json()

    def _must_wait(self, seen: Seen, step: Reach | None, horizon: Any) -> bool:
        """Whether this file has lines that must be read before those of the next one."""
        if step is not None and step.limited:
            return True
        done = step.end.offset if step is not None else seen.file.offset
        unfinished = seen.followed and not seen.closed and done < seen.found.size
        return unfinished and not self._many and horizon is None

    def _reach(self, seen: Seen, limit: Limit, horizon: Any) -> Reach | None:
        file, found = seen.file, seen.found
        upto = found.size if horizon is None else min(found.size, horizon.get(found.ident, 0))
        final = seen.closed if horizon is None else upto == found.size
        tried = (file.offset, upto, final, found.modified)
        if upto <= file.offset or self._fruitless.get(found.ident) == tried:
            return None
        start = _start(file, found.url)
        step = reach(found.url, start, upto, limit, final, self._settings.max_line)
        if step.end.offset <= file.offset:
            self._fruitless[found.ident] = tried
        self._marks[file.number] = step.marks
        return step

    def _at(self, seen: Seen, step: Reach) -> Tracked:
        found, end = seen.found, step.end
        return msgspec.structs.replace(
            seen.file,
            offset=end.offset,
            line=end.line,
            mark=mark_of(found.url, end.offset),
            unended=step.unended,
            size=max(found.size, end.offset),
            modified=found.modified,
        )

    # -- ranges that were given -----------------------------------------------------------------------------------

    def verify(self, start: Position, end: Position) -> None:
        """Every file of the range still holds it, unchanged as far as its mark tells."""
        places = self._surveyor.places()
        for _, last in _moved(parse_position(start), parse_position(end)):
            self._find(last, places)

    def gives_up(self, start: Position, end: Position) -> bool:
        """Only with ``on-gone: skip``, and only where the range is gone."""
        if self._settings.on_gone != "skip":
            return False
        try:
            self.verify(start, end)
        except FatalError:
            return True
        return False

    def _find(self, file: Tracked, places: dict[str, Found]) -> Found:
        found = self._surveyor.match(file, places)
        if found is None:
            raise FatalError(
                f"{file.name}, up to byte {file.offset}, is gone or was changed while it was to be read",
                code="file.range_gone",
                place=self._path,
                fix="put the file back under any name that begins with the old one, or set on-gone: skip to lose it",
            )
        return found

    def within(self, start: Position, end: Position, boundary: Any) -> Position:
        """The files before the boundary's are read whole, those after it not at all."""
        cut, before = parse_tracked(boundary), parse_position(start)
        moved: dict[int, Tracked] = {}
        for first, last in _moved(before, parse_position(end)):
            if last.number == cut.number:
                if cut.offset > first.offset:
                    moved[cut.number] = msgspec.structs.replace(cut, size=last.size, modified=last.modified)
                break
            moved[last.number] = last
        return before.with_files(moved).as_json() if moved else start

    def split(self, start: Position, end: Position, n: int) -> list[Split]:
        """Cuts between lines, near equal numbers of bytes."""
        places, splits, ordinal = self._surveyor.places(), list[Split](), 0
        ranges = list(_moved(parse_position(start), parse_position(end)))
        share = max(1, sum(last.offset - first.offset for first, last in ranges) // n)
        for first, last in ranges:
            url = self._find(last, places).url
            for low, high in self._pieces(first, last, url, share):
                splits.append(_split(first, url, low, high, ordinal))
                ordinal += high.line - low.line
        return splits

    def _pieces(self, first: Tracked, last: Tracked, url: str, share: int) -> Iterator[tuple[Mark, Mark]]:
        low, end = _start(first, url), Mark(last.offset, last.line)
        marks = self._marks.pop(last.number, None)
        if marks is None and end.offset - low.offset > share:
            marks = list(scan(url, low, end.offset, self._settings.max_line))
        for mark in marks or []:
            if mark.offset - low.offset >= share and low.offset < mark.offset < end.offset:
                yield low, mark
                low = mark
        yield low, end

    def relocate(self, split: Split) -> Split:
        """The file may have another name by now."""
        found = self._surveyor.places().get(parse_tracked(split.start).ident)
        if found is None:
            return split
        return msgspec.structs.replace(split, detail={**split.detail, "url": found.url})

    # -- reading --------------------------------------------------------------------------------------------------

    def read(self, split: Split, options: ReadOptions) -> Iterator[Block]:
        """The lines of one file's range."""
        file = parse_tracked(split.start)
        yield from Reader(split, self._metadata(split.detail["url"]), self._prefix(file), options).blocks()

    def _metadata(self, url: str) -> dict[str, str]:
        """What every record of one file carries; paths as written."""
        return {
            SOURCE_CONNECTOR_ID: self.context.full_id,
            "file.path": self._shown(url) if self._many else self._settings.path,
            READ_AT: str(self.context.clock.now_ns),
        }

    def _shown(self, url: str) -> str:
        is_relative = storage.local_path(self._settings.path) and not self._settings.path.startswith(("/", "file:"))
        return os.path.relpath(url, self.context.root) if is_relative else url

    def _prefix(self, file: Tracked) -> str:
        """What makes a record's position unique in the source: empty for the first file of a single path."""
        if self._many:
            return f"{file.number}:{file.name}:"
        return f"{file.number}:" if file.number else ""

    def lag(self, position: Position) -> int | None:
        """Bytes that are there and not read yet."""
        survey = self._surveyor.survey(parse_position(position))
        return sum(max(0, seen.found.size - seen.file.offset) for seen in survey)


def _is_there(found: Found) -> bool:
    now = look(found.url, found.name)
    return now is not None and now.ident == found.ident


def _moved(start: FilePosition, end: FilePosition) -> Iterator[tuple[Tracked, Tracked]]:
    """Each file of which the range holds something, at its start and at its end, in reading order."""
    before = {file.number: file for file in start.files}
    for last in end.files:
        first = before.get(last.number) or Tracked(last.name, last.number, last.inode)
        if last.offset > first.offset:
            yield first, last


def _start(file: Tracked, url: str) -> Mark:
    """Where the next line begins: behind the end of one that was read without it."""
    if file.unended and next(storage.chunks(url, file.offset, 1), b"") == b"\n":
        return Mark(file.offset + 1, file.line)
    return Mark(file.offset, file.line)


def _split(first: Tracked, url: str, low: Mark, high: Mark, ordinal: int) -> Split:
    mark = mark_of(url, low.offset) if low.offset != first.offset else first.mark
    start = msgspec.structs.replace(first, offset=low.offset, line=low.line, mark=mark)
    detail = {"url": url, "from": list(low), "to": high.offset}
    return Split(msgspec.structs.asdict(start), ordinal, high.line - low.line, high.offset - low.offset, detail)
