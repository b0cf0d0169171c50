"""The ``file`` source: follows a growing file line by line, or reads the files of a folder or glob."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from conduit_dagster.connectors.base import (
    Block,
    ConnectorContext,
    Limit,
    Position,
    ReadOptions,
    Source,
    Split,
)
from conduit_dagster.connectors.file.lines import Mark, nth_end, read_lines, scan
from conduit_dagster.connectors.file.settings import FileSourceSettings, as_source
from conduit_dagster.connectors.file.tracked import (
    FilePosition,
    Found,
    Tracked,
    is_many,
    list_files,
    look,
    mark_of,
    parse_position,
)
from conduit_dagster.record import READ_AT, SOURCE_CONNECTOR_ID, Record
from conduit_dagster.recovery.errors import FatalError, TransientError, from_os_error


class _Seen(NamedTuple):
    file: Tracked
    found: Found
    closed: bool
    """Rotated away, with something after it: nobody will finish its last line."""


class FileSource(Source):
    """Lines of files. An unterminated last line waits while the pipeline runs on, and is read when it drains.

    Survives rotation by rename: the renamed file (``path.*`` or ``path-*`` in the same folder) is finished first.
    A file that was truncated or replaced after all that was known of it had been read is begun anew; what was
    appended between our last look and that moment is lost without a trace, as no reader could know of it.
    """

    name = "file"
    Settings = FileSourceSettings
    sets_metadata = True

    def __init__(self, settings: Any, context: ConnectorContext) -> None:
        super().__init__(settings, context)
        self._settings = as_source(settings)
        self._path = context.resolve(self._settings.path)
        self._many = is_many(self._path)
        self._marks: dict[int, list[Mark]] = {}
        self._fruitless: dict[int, tuple[int, int]] = {}

    def initial(self) -> Position:
        """Before the first file."""
        return FilePosition().as_json()

    def horizon(self) -> Any:
        """The files there are, with their sizes."""
        return {self._ident(found): found.size for found in self._list()}

    def _ident(self, found: Found) -> str:
        return str(found.inode) if found.inode else found.name

    def _list(self) -> list[Found]:
        try:
            return list_files(self._path)
        except OSError as error:
            raise from_os_error(error, f"can't read {self._settings.path}") from error

    def latest(self, start: Position, limit: Limit, horizon: Any = None) -> Position:
        """Goes through the files in order until the limit is reached."""
        position, left = parse_position(start), limit
        moved = kept = self._kept(position)
        for seen in self._survey(position):
            end = self._advance(seen, left, horizon)
            if end is not None:
                left = Limit(left.records - (end.line - seen.file.line), left.bytes - (end.offset - seen.file.offset))
                moved = moved.moved(end)
            if left.records <= 0 or left.bytes <= 0:
                break
        return start if moved is kept else moved.as_json()

    def _kept(self, position: FilePosition) -> FilePosition:
        here = {seen.file.number for seen in self._survey(position)}
        return FilePosition(position.seen, tuple(file for file in position.files if file.number in here))

    def _survey(self, position: FilePosition) -> list[_Seen]:
        """Every file that may have something to read, in reading order. Fails where a known range is gone."""
        listed = self._list()
        if not listed and not position.seen and not self._many:
            raise TransientError(
                f"there is no file {self._settings.path}",
                code="file.missing",
                place=self._path,
                fix="create it, or correct the setting path",
            )
        matched = [(file, self._match(file, listed)) for file in position.files]
        for file, found in matched:
            if found is None and file.size > file.offset:
                self._gone(file)
        known = [(file, found) for file, found in matched if found is not None]
        fresh = self._fresh(position, listed, {found.url for _, found in known})
        files = known + fresh
        return [_Seen(f, found, not self._many and i < len(files) - 1) for i, (f, found) in enumerate(files)]

    def _match(self, file: Tracked, listed: list[Found]) -> Found | None:
        for found in listed:
            same = found.inode == file.inode if found.inode else found.name == file.name
            if same and found.size >= file.offset and mark_of(found.url, file.offset) == file.mark:
                return found
        return None

    def _gone(self, file: Tracked) -> None:
        if self._settings.on_gone == "fail":
            raise FatalError(
                f"bytes {file.offset} to {file.size} of {file.name} are gone: deleted, cut off or replaced unread",
                code="file.range_gone",
                place=self._path,
                fix="put the file back under any name that begins with the old one, or set on-gone: skip to lose them",
            )

    def _fresh(self, position: FilePosition, listed: list[Found], known: set[str]) -> list[tuple[Tracked, Found]]:
        new = [found for found in listed if found.url not in known]
        if not self._many:
            new = self._rotated_since(position, listed, new)
        return [(Tracked(f.name, position.seen + i, f.inode), f) for i, f in enumerate(new)]

    def _rotated_since(self, position: FilePosition, listed: list[Found], new: list[Found]) -> list[Found]:
        """Of one path's siblings only those that were rotated after the file we were reading was."""
        renamed = [f for f in listed if any(t.inode and t.inode == f.inode for t in position.files)]
        since = max((f.modified for f in renamed if f.url != self._path), default=None)
        return [f for f in new if f.url == self._path or (since is not None and f.modified > since)]

    def _advance(self, seen: _Seen, limit: Limit, horizon: Any) -> Tracked | None:
        file, found = seen.file, seen.found
        upto = found.size if horizon is None else min(found.size, horizon.get(self._ident(found), 0))
        if upto <= file.offset or self._fruitless.get(file.number) == (file.offset, upto):
            return None
        final = seen.closed or (horizon is not None and upto == found.size)
        end = self._end(file, found.url, upto, limit, final)
        if end.offset == file.offset:
            self._fruitless[file.number] = (file.offset, upto)
            return None
        return self._at(file, found.url, end, found.size)

    def _end(self, file: Tracked, url: str, upto: int, limit: Limit, final: bool) -> Mark:
        start = Mark(file.offset, file.line)
        marks = list(scan(url, start, min(upto, start.offset + limit.bytes), self._settings.max_line))
        if not marks:
            marks = self._one_line(url, start, upto)
        within = [mark for mark in marks if mark.line - start.line <= limit.records]
        if len(within) < len(marks):
            last = within[-1] if within else start
            within.append(nth_end(url, last, limit.records - (last.line - start.line)))
        self._marks[file.number] = within
        end = within[-1] if within else start
        if final and end.offset < upto <= start.offset + limit.bytes and end.line - start.line < limit.records:
            tail_ends = not any(scan(url, end, upto, self._settings.max_line))
            return Mark(upto, end.line + 1) if tail_ends else end
        return end

    def _one_line(self, url: str, start: Mark, upto: int) -> list[Mark]:
        """A line longer than a batch is a batch of its own."""
        for mark in scan(url, start, upto, self._settings.max_line):
            del mark
            return [nth_end(url, start, 1)]
        return []

    def _at(self, file: Tracked, url: str, end: Mark, size: int) -> Tracked:
        return Tracked(
            file.name,
            file.number,
            file.inode,
            end.offset,
            end.line,
            mark_of(url, end.offset),
            max(size, end.offset),
        )

    def verify(self, start: Position, end: Position) -> None:
        """Every file of the range still holds it, unchanged as far as its mark tells."""
        before, listed = parse_position(start), self._list()
        for file in parse_position(end).files:
            first = before.of(file.number)
            if file.offset > (first.offset if first else 0) and self._match(file, listed) is None:
                raise FatalError(
                    f"{file.name}, up to byte {file.offset}, is gone or was changed while it was to be read",
                    code="file.range_gone",
                    place=self._path,
                    fix="put the file back under any name that begins with the old one; nothing of it was acked",
                )

    def split(self, start: Position, end: Position, n: int) -> list[Split]:
        """Cuts between lines, near equal numbers of bytes."""
        position, splits, ordinal = parse_position(start), list[Split](), 0
        ranges = self._ranges(position, parse_position(end))
        share = max(1, sum(last.offset - first.offset for first, last, _ in ranges) // n)
        for first, last, url in ranges:
            for low, high in self._pieces(first, last, url, share):
                splits.append(self._split(position, first, url, low, high, last.size, ordinal))
                ordinal += high.line - low.line
            position = position.moved(last)
        return splits

    def _ranges(self, start: FilePosition, end: FilePosition) -> list[tuple[Tracked, Tracked, str]]:
        listed = self._list()
        ranges = list[tuple[Tracked, Tracked, str]]()
        for last in end.files:
            first = start.of(last.number) or Tracked(last.name, last.number, last.inode)
            if last.offset > first.offset:
                found = self._match(last, listed)
                ranges.append((first, last, found.url if found else self._path))
        return ranges

    def _pieces(self, first: Tracked, last: Tracked, url: str, share: int) -> Iterator[tuple[Mark, Mark]]:
        low, end = Mark(first.offset, first.line), Mark(last.offset, last.line)
        marks = self._marks.pop(last.number, None)
        if marks is None and end.offset - low.offset > share:
            marks = list(scan(url, low, end.offset, self._settings.max_line))
        for mark in marks or []:
            if mark.offset - low.offset >= share and low.offset < mark.offset < end.offset:
                yield low, mark
                low = mark
        yield low, end

    def _split(
        self, position: FilePosition, first: Tracked, url: str, low: Mark, high: Mark, size: int, ordinal: int
    ) -> Split:
        detail = {"url": url, "number": first.number, "from": list(low), "to": high.offset, "size": size}
        start = position.moved(self._at(first, url, low, size)) if low.offset else position
        if position.of(first.number) is None and not low.offset:
            start = position.moved(first)
        return Split(start.as_json(), ordinal, high.line - low.line, high.offset - low.offset, detail)

    def read(self, split: Split, options: ReadOptions) -> Iterator[Block]:
        """The lines of one file's range."""
        reader = _Reader(self, split, options)
        yield from reader.blocks()

    def metadata(self, name: str) -> dict[str, str]:
        """What every record of one file carries."""
        path = self._settings.path
        shown = path if not self._many else f"{path.rstrip('/').rsplit('*', 1)[0].rstrip('/')}/{name}"
        return {
            SOURCE_CONNECTOR_ID: self.context.full_id,
            "file.path": shown,
            READ_AT: str(self.context.clock.now_ns),
        }

    def prefix(self, file: Tracked) -> str:
        """What makes a record's position unique in the source: empty for the first file of a single path."""
        if self._many:
            return f"{file.number}:{file.name}:"
        return f"{file.number}:" if file.number else ""

    def check_open(self, url: str, file: Tracked) -> None:
        """The file under ``url`` is still the one that was planned."""
        found = look(url, file.name)
        if found is None or (found.inode and found.inode != file.inode):
            raise TransientError(
                f"{file.name} was renamed or replaced while it was to be read",
                code="file.moved",
                place=url,
                fix="run again; the step is repeated from the file's new place",
            )

    @property
    def unit(self) -> dict[str, Any]:
        """The absolute path: however it is spelt in the pipeline file, it is the same data."""
        return {"plugin": self.name, "path": self._path}

    def place(self, position: Position) -> Any:
        """Without the sizes, which are what we happened to see."""
        files = [{k: v for k, v in file.items() if k != "size"} for file in position["files"]]
        return {"seen": position["seen"], "files": files}

    def lag(self, position: Position) -> int | None:
        """Bytes that are there and not read yet."""
        return sum(max(0, seen.found.size - seen.file.offset) for seen in self._survey(parse_position(position)))


class _Reader:
    """Reads one split, block by block."""

    def __init__(self, source: FileSource, split: Split, options: ReadOptions) -> None:
        detail = split.detail
        self._source, self._options = source, options
        self._position = parse_position(split.start)
        file = self._position.of(detail["number"])
        assert file is not None
        self._file, self._url, self._end, self._size = file, detail["url"], detail["to"], detail["size"]
        self._start = Mark(*detail["from"])
        self._metadata = source.metadata(file.name)
        self._prefix = source.prefix(file)

    def blocks(self) -> Iterator[Block]:
        self._source.check_open(self._url, self._file)
        at = self._start
        for lines in read_lines(self._url, at.offset, self._end, self._options.block_bytes):
            for i in range(0, len(lines), self._options.block_records):
                some = lines[i : i + self._options.block_records]
                yield self._block(some, at)
                at = Mark(at.offset + sum(map(len, some)) + len(some), at.line + len(some))

    def _block(self, lines: list[bytes], at: Mark) -> Block:
        metadata, labels = self._metadata, _Labels(self, lines, at)
        records = [Record(0, metadata, line) for line in lines]  # positions are filled in where they are asked for
        if not self._options.keys:
            return Block(records, labels.boundary, labels.complete)
        for i, record in enumerate(records):
            labels.complete(i, record)
        return Block(records, labels.boundary)

    def offset(self, offset: int) -> int:
        """The last line of a file may lack its end."""
        return min(offset, self._end)

    def position(self, offset: int) -> int | str:
        """A record's own position: unique in the source and its generation."""
        return f"{self._prefix}{offset}" if self._prefix else offset

    def boundary(self, mark: Mark) -> Position:
        """The source's position at a place inside this file."""
        digest, size = mark_of(self._url, mark.offset), max(self._size, mark.offset)
        file = msgspec.structs.replace(self._file, offset=mark.offset, line=mark.line, mark=digest, size=size)
        return self._position.moved(file).as_json()


class _Labels:
    """Keys, positions and boundaries of one block's records, worked out only when asked for."""

    def __init__(self, reader: _Reader, lines: list[bytes], at: Mark) -> None:
        self._reader, self._lines, self._at = reader, lines, at

    @cached_property
    def _lengths(self) -> list[int]:
        return list(accumulate(map(len, self._lines)))

    def _offset(self, i: int) -> int:
        return self._reader.offset(self._at.offset + self._lengths[i] + i + 1)

    def boundary(self, i: int) -> Position:
        return self._reader.boundary(Mark(self._offset(i), self._at.line + i + 1))

    def complete(self, i: int, record: Record) -> None:
        record.key = b"%d" % (self._at.line + i + 1)
        record.position = self._reader.position(self._offset(i))
