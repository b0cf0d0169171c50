"""Lines of byte ranges: counted on the driver, read as blocks of labelled records in tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from operator import add
from typing import Any, Final, NamedTuple, cast

import msgspec

from conduit_dagster.connectors.file.file_state import TrackedFile, parse_tracked
from conduit_dagster.connectors.file.open_file import MARK, FileChanged, OpenFile
from conduit_dagster.connectors.file.settings import FileSourceSettings
from conduit_dagster.connectors.path_settings import CollectionPattern, shown_path
from conduit_dagster.lazy_property import lazy_property
from conduit_dagster.record import COLLECTION, FILE_HEADER, MODE, READ_AT, SOURCE_CONNECTOR_ID, Record
from conduit_dagster.recovery.errors import FatalError, TransientError
from conduit_dagster.sdk import Block, ConnectorContext, Keys, PayloadIds, Payloads, PlainBlock, ReadOptions, Split

_END: Final = 10


class Mark(NamedTuple):
    """A place between two lines: the byte offset after a line end, and the number of lines before it."""

    offset: int
    line: int

    def behind(self, lines: list[bytes]) -> Mark:
        """Return the place after these lines, each with a line end."""
        return Mark(self.offset + sum(map(len, lines)) + len(lines), self.line + len(lines))


def scan(file: OpenFile, start: Mark, upto: int, max_line: int) -> Iterator[Mark]:
    """Count lines from ``start``; yield a mark after the last line end of every chunk, about one per MiB.

    Raises ``FatalError`` (``file.line_too_long``), after a mark before the line that is.
    """
    offset, line, last = start.offset, start.line, start.offset
    for chunk in file.chunks(start.offset, upto - start.offset):
        too_long = _too_long(chunk, last - offset, max_line)
        data = chunk if too_long is None else chunk[: max(0, too_long)]
        end = data.rfind(b"\n") + 1
        if end:
            line += _line_ends(data)
            last = offset + end
            file.passed(last, data[max(0, end - MARK) : end])
            yield Mark(last, line)
        offset += len(data)
        if too_long is not None or offset - last > max_line:
            raise FatalError(
                f"line {line + 1} of {file.url} is longer than {max_line} bytes",
                code="file.line_too_long",
                place=f"{file.url}, byte {last}",
                fix="is it a file of lines? if so, raise the setting max-line",
            )


def _too_long(data: bytes, begin: int, max_line: int) -> int | None:
    """Return where the first line of more than ``max_line`` bytes begins, of those that end in ``data``; None without.

    ``begin``: where the first line begins, 0 or less.
    """
    import numpy as np

    if data.find(b"\n") - begin > max_line:
        return begin
    if len(data) <= max_line:
        return None
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == _END)
    long = np.flatnonzero(np.diff(ends) > max_line + 1)
    return int(ends[long[0]]) + 1 if long.size else None


def _line_ends(data: bytes) -> int:
    """Count line ends, at two fifths of the cost of ``bytes.count``."""
    import numpy as np

    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == _END))


def nth_end(file: OpenFile, start: Mark, lines: int) -> Mark:
    """Return the place right after the next ``lines`` lines."""
    offset, left = start.offset, lines
    for data in file.chunks(start.offset):
        found = _line_ends(data)
        if found < left:
            left, offset = left - found, offset + len(data)
            continue
        at = 0
        for _ in range(left):
            at = data.index(b"\n", at) + 1
        file.passed(offset + at, data[max(0, at - MARK) : at])
        return Mark(offset + at, start.line + lines)
    return Mark(offset, start.line + lines - left)


def read_lines(file: OpenFile, start: int, end: int, piece: int) -> Iterator[list[bytes]]:
    """Yield the lines of a range that begins and ends between two lines, one list per ``piece`` bytes or so.

    The last line of a file may lack its end. Raises ``FatalError`` if the range has become shorter.
    """
    rest: list[bytes] = []
    at = start
    while at < end:
        data = file.read_at(at, min(piece, end - at))
        if not data:
            raise FatalError(
                f"bytes {at} to {end} of {file.url} are gone: the file was cut off while it was read",
                code="file.range_gone",
                place=file.url,
                fix="restore the file and run again, or set on-gone: skip to lose that range",
            )
        at += len(data)
        if b"\n" not in data:
            rest.append(data)
            continue
        lines = data.split(b"\n")
        if rest:
            lines[0] = b"".join([*rest, lines[0]])
        last = lines.pop()
        rest = [last] if last else []
        yield lines
    if rest:
        yield [b"".join(rest)]


class LineLabels(NamedTuple):
    """Text shared by all records of a file."""

    metadata: dict[str, str]
    prefix: str
    """Prefix of their positions."""


def header_text(opened: OpenFile, max_line: int) -> str:
    """Return the header without its line end and byte-order mark; bytes that are not UTF-8 become U+FFFD."""
    data = b""
    while len(data) < max_line and (piece := opened.read_at(len(data), 4_096)):
        line, end, _ = piece.partition(b"\n")
        data += line
        if end:
            break
    return data.removesuffix(b"\r").decode(errors="replace").removeprefix("\ufeff")


class FileLabels:
    """Labels of one source's records."""

    def __init__(self, context: ConnectorContext, settings: FileSourceSettings, many: bool) -> None:
        """``many``: whether the path means a folder or a glob."""
        self._context, self._settings, self._many = context, settings, many
        self.collections = CollectionPattern(settings.collection)
        # a followed file keeps its collection when it is rotated, which changes its name
        self._followed = None if many else _name_in(settings.path)
        self._collection = None if self._followed is None else self.collections.unchecked(self._followed)

    def of(self, file: TrackedFile, url: str, mode: str, header: str = "") -> LineLabels:
        """Return the labels of a file at a URL, with paths as written; empty ``mode`` or ``header`` means none."""
        collection = self.collection(file)
        metadata = {
            SOURCE_CONNECTOR_ID: self._context.full_id,
            **({COLLECTION: collection} if collection else {}),
            **({MODE: mode} if mode else {}),
            "file.path": shown_path(self._context, self._settings.path, url) if self._many else self._settings.path,
            **({FILE_HEADER: header} if header else {}),
            READ_AT: str(self._context.clock.now_ns),
        }
        return LineLabels(metadata, self._prefix(file))

    def collection(self, file: TrackedFile) -> str:
        """Return the file's collection. Raises ``FatalError`` (``source.collection_unsafe``)."""
        return self.collections.of(self._followed or _name_in(file.name))

    def unchecked(self, file: TrackedFile) -> str:
        """Return the file's collection, or the unsafe text: reading earlier files must not fail because of it."""
        return self.collections.unchecked(_name_in(file.name)) if self._collection is None else self._collection

    def _prefix(self, file: TrackedFile) -> str:
        """Return the prefix that makes positions unique in the source: empty for the first file of a single path."""
        if self._many:
            return f"{file.number}:{file.name}:"
        return f"{file.number}:" if file.number else ""


def _name_in(path: str) -> str:
    return path.rsplit("/", 1)[-1]


class LineReader:
    """Lines of one split, all from one open file: later changes to its path have no effect."""

    def __init__(self, split: Split, opened: OpenFile, labels: LineLabels, options: ReadOptions) -> None:
        """``opened``: the split's file, verified to be the planned one."""
        self._file: TrackedFile = parse_tracked(split.start)
        self._opened, self._end = opened, split.detail["to"]
        self._start = Mark(*split.detail["from"])
        self._completes = split.detail.get("completes", False)
        (self._metadata, self.prefix), self._options = labels, options

    def blocks(self) -> Iterator[Block]:
        """Yield blocks in order. Raises ``FatalError`` if the file ends before the split does."""
        at = self._start
        for lines in read_lines(self._opened, at.offset, self._end, self._options.block_bytes):
            for i in range(0, len(lines), self._options.block_records):
                some = lines[i : i + self._options.block_records]
                after = at.behind(some)
                if self._completes and after.offset >= self._end:
                    yield from self._last_blocks(some, at)
                else:
                    yield self._block(some, at, self._metadata)
                at = after

    def _last_blocks(self, lines: list[bytes], at: Mark) -> Iterator[Block]:
        """Yield the lines before the last line of a copy, then that line separately."""
        *others, last = lines
        if others:
            yield self._block(others, at, self._metadata)
        yield self._block([last], at.behind(others), {**self._metadata, MODE: "complete"})

    def _block(self, lines: list[bytes], at: Mark, metadata: dict[str, str]) -> Block:
        labels = _BlockLabels(self, lines, at, metadata)
        records = labels.payloads(self._options.keys)
        if not self._options.payloads:
            records = records.all()
        of_block = cast("list[Record]", records)
        if self._options.keys is Keys.ALL:
            return Block(of_block, labels.boundary, again=labels.again)
        return Block(
            of_block, labels.boundary, labels.complete, {}, labels.plain, labels.again, positions=labels.positions
        )

    def offset(self, offset: int) -> int:
        """Return the offset, limited to the split's end: the last line of a file may lack its line end."""
        return min(offset, self._end)

    def position(self, offset: int) -> int | str:
        """Return a record's own position, unique in the source and its generation."""
        return f"{self.prefix}{offset}" if self.prefix else offset

    def boundary(self, mark: Mark, line: bytes) -> Any:
        """Return this file's state right after a line; the source inserts it into the complete position.

        Raises ``TransientError`` if that line is no longer in the file.
        """
        # the file may have been truncated and rewritten since the line was read: its mark would cover unread bytes
        try:
            digest = self._opened.mark(mark.offset, line[-MARK:])
        except FileChanged:
            raise file_moved(self._file, self._opened.url) from None
        file = msgspec.structs.replace(self._file, offset=mark.offset, line=mark.line, mark=digest, unended=False)
        return msgspec.structs.asdict(file)


def file_moved(file: TrackedFile, url: str) -> TransientError:
    """Return the error for a file found under none of its names, or changed while it was read."""
    return TransientError(
        f"{file.name} was renamed or replaced while it was to be read",
        code="file.moved",
        place=url,
        fix="run again; the step is repeated from the file's new place",
    )


_FEW: Final = 3
"""Number of lines of a block after which the lengths of all are computed at once."""


class _BlockLabels:
    """Keys, positions and boundaries of one block's records, computed only on demand."""

    def __init__(self, reader: LineReader, lines: list[bytes], at: Mark, metadata: dict[str, str]) -> None:
        self._reader, self._lines, self._at, self._metadata = reader, lines, at, metadata
        self._ends: dict[int, int] = {}

    @lazy_property
    def _lengths(self) -> list[int]:
        return list(accumulate(map(len, self._lines)))

    def _end(self, i: int) -> int:
        """Return the offset after line i and its line end, whether or not the file has that."""
        end = self._ends.get(i)
        if end is None:
            few = len(self._ends) < _FEW  # as for most blocks: the sum up to one line costs a third of all lengths
            length = sum(map(len, islice(self._lines, i + 1))) if few else self._lengths[i]
            end = self._ends[i] = self._at.offset + length + i + 1
        return end

    def _offset(self, i: int) -> int:
        return self._reader.offset(self._end(i))

    def boundary(self, i: int) -> Any:
        offset, line = self._offset(i), self._lines[i]
        is_ended = offset == self._end(i)
        return self._reader.boundary(Mark(offset, self._at.line + i + 1), line + b"\n" if is_ended else line)

    def _keys(self) -> list[bytes]:
        line = self._at.line + 1
        return list(map(b"%d".__mod__, range(line, line + len(self._lines))))

    def positions(self) -> list[Any]:
        """Return the positions of all records, at a fifth of the cost of :meth:`complete` for each."""
        begin = self._at.offset + 1
        positions: list[Any] = list(map(add, self._lengths, range(begin, begin + len(self._lines))))
        positions[-1] = self._reader.offset(positions[-1])  # the last line of a file may lack its end
        if self._reader.prefix:
            positions = list(map(self._reader.position, positions))
        return positions

    def payloads(self, keys: Keys) -> Payloads:
        """Return all records, with the keys and positions that a plan needs."""
        ids = None  # a key is a line number, never an object
        if keys >= Keys.POSITIONS:
            ids = PayloadIds(self.positions(), self._keys() if keys is Keys.ALL else [None] * len(self._lines))
        return Payloads(self._lines, Record(0, self._metadata), ids)

    def plain(self) -> PlainBlock:
        """Return all records as columns."""
        # imported late: validating a pipeline must not import pyarrow
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        count, first = len(self._lines), self._at.line + 1
        payloads = pa.array(self._lines, pa.binary())
        # end of each line in the column, plus the line ends before it
        ends = np.frombuffer(payloads.buffers()[1], np.int32, count + 1)[1:] + np.arange(1, count + 1) + self._at.offset
        ends[-1] = self._reader.offset(int(ends[-1]))  # the last line of a file may lack its end
        positions: Any = pa.array(ends)
        if self._reader.prefix:
            parts = [pa.scalar(self._reader.prefix), positions.cast(pa.string()), pa.scalar("")]
            positions = pc.call_function("binary_join_element_wise", parts)
        return PlainBlock(payloads, positions, pa.array(np.arange(first, first + count)))

    def again(self, places: Sequence[int]) -> list[Record]:
        records = [Record(0, self._metadata, self._lines[i]) for i in places]
        for i, record in zip(places, records, strict=True):
            self.complete(i, record)
        return records

    def complete(self, i: int, record: Record) -> None:
        record.key = b"%d" % (self._at.line + i + 1)
        record.position = self._reader.position(self._offset(i))
