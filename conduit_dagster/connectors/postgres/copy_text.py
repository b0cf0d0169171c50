"""Columns of a block as lines of COPY's text."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from conduit_dagster.connectors.postgres.values import NULL_MARK, Cell, RecordError

# JSON of one value per line has no control character besides the line ends: these can stand for something
_ROW_MARK, _QUOTE_MARK, _BACKSLASH_MARK = b"\x1e", b"\x01", b"\x02"
_ROW_END = msgspec.Raw(_ROW_MARK)
_ENDS = bytes.maketrans(b"\n" + _ROW_MARK + _QUOTE_MARK, b'\t\n"')
_encode_lines = msgspec.json.Encoder().encode_lines


def copy_lines(columns: Sequence[Sequence[Cell]]) -> bytes:
    """One line per row. A row's bytes do not depend on the rows beside it. Raises for a NUL and half a character.

    Written as JSON, which a fast encoder does, and turned into COPY's text: both escape alike, but for quotation
    marks and rare control characters. Measured, that takes two thirds of the time of joining strings.
    """
    width = len(columns) + 1
    cells: list[Cell] = [_ROW_END] * (len(columns[0]) * width)
    for place, column in enumerate(columns):
        cells[place::width] = column
    data = _encode_lines(cells)
    is_escaped = b"\\" in data
    if is_escaped:
        data = _marked(data)
    data = data.replace(b"\n" + _ROW_MARK + b"\n", _ROW_MARK).translate(_ENDS, b'"')
    if is_escaped:
        data = data.replace(_BACKSLASH_MARK, rb"\\")
    return data.replace(NULL_MARK, rb"\N")


def _marked(data: bytes) -> bytes:
    """Marks for what is not to be taken for a quotation mark around a text, or for the begin of an escape."""
    # backslashes first: what follows one of a pair is no escape
    data = data.replace(rb"\\", _BACKSLASH_MARK).replace(rb"\"", _QUOTE_MARK)
    if rb"\u0000" in data:
        raise RecordError("nul", "the text holds a NUL character, which PostgreSQL can't store")
    return data.replace(rb"\u00", rb"\x")
