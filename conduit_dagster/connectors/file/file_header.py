"""The header of a file: a first line that is not a record."""

from __future__ import annotations

from typing import Final

from conduit_dagster.connectors.file.line_reader import Mark, nth_end, scan
from conduit_dagster.connectors.file.opened import OpenFile

_MARK: Final = "\ufeff"
_PIECE: Final = 4_096


def header_end(opened: OpenFile, upto: int, max_line: int) -> Mark | None:
    """Return the place after the header; None if it does not end before byte ``upto``.

    Raises ``FatalError`` (``file.line_too_long``).
    """
    start = Mark(0, 0)
    return nth_end(opened, start, 1) if any(scan(opened, start, upto, max_line)) else None


def header_text(opened: OpenFile, max_line: int) -> str:
    """Return the header without its line end and byte-order mark; bytes that are not UTF-8 become U+FFFD."""
    data = b""
    while len(data) < max_line and (piece := opened.read_at(len(data), _PIECE)):
        line, end, _ = piece.partition(b"\n")
        data += line
        if end:
            break
    return data.removesuffix(b"\r").decode(errors="replace").removeprefix(_MARK)
