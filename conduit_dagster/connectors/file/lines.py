"""Finding and reading lines in a range of bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from conduit_dagster.connectors.file.opened import OpenFile
from conduit_dagster.connectors.file.tracked import MARK
from conduit_dagster.recovery.errors import FatalError

Readable = str | OpenFile
"""A file: one that is open, or a URL that is opened once for the call."""
_END: Final = 10


class Mark(NamedTuple):
    """A place between two lines: the byte offset after a line end, and how many lines lie before it."""

    offset: int
    line: int


def opened(file: Readable) -> OpenFile:
    """The file, open."""
    return OpenFile(file) if isinstance(file, str) else file


def scan(file: Readable, start: Mark, upto: int, max_line: int) -> Iterator[Mark]:
    """Counts lines from ``start``: a mark after the last line end of every piece, about one per MiB."""
    file = opened(file)
    offset, line, last = start.offset, start.line, start.offset
    for data in file.chunks(start.offset, upto - start.offset):
        end = data.rfind(b"\n") + 1
        if end:
            line += _line_ends(data)
            last = offset + end
            file.passed(last, data[max(0, end - MARK) : end])
            yield Mark(last, line)
        offset += len(data)
        if offset - last > max_line:
            raise FatalError(
                f"line {line + 1} of {file.url} is longer than {max_line} bytes",
                code="file.line_too_long",
                place=f"{file.url}, byte {last}",
                fix="is it a file of lines? if so, raise the setting max-line",
            )


def _line_ends(data: bytes) -> int:
    """At two fifths of the cost of ``bytes.count``."""
    import numpy as np

    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == _END))


def nth_end(file: Readable, start: Mark, lines: int) -> Mark:
    """The place right after ``lines`` more lines."""
    file = opened(file)
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


def read_lines(file: Readable, start: int, end: int, piece: int) -> Iterator[list[bytes]]:
    """The lines of a range that begins and ends between two lines, a list per piece of about ``piece`` bytes.

    The last line of a file may lack its end. Raises ``FatalError`` where the range is shorter than it was.
    """
    file = opened(file)
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
