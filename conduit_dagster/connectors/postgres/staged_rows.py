"""Staged rows: lines of COPY text in one file per task, with a footer that maps lines to tables and columns.

Tasks write them; the driver reads them, also row by row for dead letters.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec

from conduit_dagster import storage
from conduit_dagster.change_marks import TRUNCATE, UNCHANGED_TOAST, unchanged_text
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.record import Operation, Record
from conduit_dagster.recovery.errors import FatalError
from conduit_dagster.sdk import Delivery, Part

_T = TypeVar("_T")
_TAIL = 17
"""Bytes of the footer's length at the end: 16 digits and a line end."""


Change = Literal["c", "u", "p", "m", "q", "d"]
"""``c`` create; ``u`` update or insert; ``p`` update of a row that must exist; ``m``, ``q`` the same two for a row that
gets a new key; ``d`` delete."""
MOVES: Final = frozenset({"m", "q"})
PARTIAL: Final = frozenset({"p", "q"})
"""Changes that can't insert: the record lacks unchanged values, which only the existing row has."""


class LineGroup(msgspec.Struct, frozen=True):
    """Properties shared by lines that one COPY can take."""

    table: TableName
    columns: tuple[str, ...]
    merge: bool = False
    """Each line begins with a ``Change`` and a hex bit mask of the columns it contains."""
    key: tuple[str, ...] = ()
    moves: bool = False
    """Each line ends with the previous key of the row: a merge in which keys change."""
    truncates: bool = False
    """Each line is a truncate of the table, without any values."""
    mark: str = ""
    """The change and bit mask of all lines, which then begin without one: whole rows of a snapshot."""


def mark_of(change: Change, columns: Collection[str], held: Collection[str]) -> str:
    """Return the mark of a line of these columns that holds only some of them."""
    return f"{change}{sum(1 << place for place, name in enumerate(columns) if name in held):x}"


def old_names(key: tuple[str, ...]) -> tuple[str, ...]:
    """Return the column names for the previous key of a row, in the temporary table of a merge."""
    return tuple(f"conduit old {place}" for place in range(len(key)))


class LineRun(NamedTuple):
    """Consecutive lines that belong to one group."""

    group: int
    records: int
    bytes: int


class Missing(msgspec.Struct):
    """A table to create, because it did not exist when records were staged for it."""

    table: TableName
    types: dict[str, str | None]
    """Types by column; None where all values were null."""
    key: tuple[str, ...] = ()


class Index(msgspec.Struct):
    """Footer of a part: an index of its lines, as runs."""

    groups: list[LineGroup]
    runs: list[LineRun]

    def encode(self) -> bytes:
        """Return the footer as one line, followed by a line with its length."""
        body = msgspec.json.encode(self) + b"\n"
        return body + b"%016d\n" % len(body)


def read_index(delivery: Delivery, part: Part) -> Index:
    """Return the footer of a part. Raises ``FatalError`` if the file was damaged."""
    url = storage.join(delivery.staging, part.name)
    with storage.open_read(url) as file:
        file.seek(part.bytes - _TAIL)
        tail = file.read(_TAIL)
        length = int(tail) if tail[:-1].isdigit() else 0
        file.seek(part.bytes - _TAIL - length)
        body = file.read(length)
    return _decoded(body, Index, url)


def write_missing(staging: str, part: Part, missing: list[Missing]) -> None:
    """Store the missing tables beside the part, as durably as the part."""
    with storage.NewFile(_beside(staging, part)) as file:
        file.write(msgspec.json.encode(missing))
        file.finish()


def read_missing(delivery: Delivery, part: Part) -> list[Missing]:
    """Return the tables that did not exist when the part was staged. Raises ``FatalError`` for a damaged list."""
    url = _beside(delivery.staging, part)
    if storage.size(url) is None:
        return []
    with storage.open_read(url) as file:
        return _decoded(file.read(), list[Missing], url)


def _beside(staging: str, part: Part) -> str:
    return storage.join(staging, f"{part.name}.missing")


def _decoded(body: bytes, kind: type[_T], url: str) -> _T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError:
        fix = "was it changed by hand? remove it, and it is staged again"
        raise FatalError(f"{url} is not as it was staged", code="postgres.staging", place=url, fix=fix) from None


_ESCAPED = re.compile(r"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_NAMED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_OPERATIONS: dict[str, Operation] = {"c": "create", "d": "delete"}


def staged_row(delivery: Delivery, place: int) -> Record:
    """Return the row at a place of the delivery: columns by name, each as the text sent to PostgreSQL.

    Raises ``LookupError`` if the delivery has no such row, ``FatalError`` (``postgres.staging``) for a damaged part.
    """
    for part in delivery.parts:
        if place < part.records:
            return _row(delivery, part, place)
        place -= part.records
    raise LookupError("the delivery ends before that row")


def _row(delivery: Delivery, part: Part, place: int) -> Record:
    index, left = read_index(delivery, part), place
    with storage.open_read(storage.join(delivery.staging, part.name)) as file:
        for run in index.runs:
            if left < run.records:
                lines = file.read(run.bytes).split(b"\n", left + 1)
                return row_of(index.groups[run.group], lines[left].decode())
            left -= run.records
            file.seek(run.bytes, 1)
    raise LookupError(f"row {place} of {part.name}")


def row_of(group: LineGroup, line: str) -> Record:
    """Return a line of the group, without its end, as a record: columns by name, each as text."""
    if group.truncates:
        return Record(0, {TRUNCATE: "true"}, operation="delete")
    cells = line.split("\t")
    if not group.merge:
        return Record(0, {}, _values(group.columns, cells))
    mark, *cells = [group.mark, *cells] if group.mark else cells
    change, held = mark[0], int(mark[1:], 16)
    every = _values((*group.columns, *old_names(group.key if group.moves else ())), cells)
    values = {name: every[name] for bit, name in enumerate(group.columns) if held >> bit & 1}
    lacks = [name for name in group.columns if name not in values]
    key = {name: values[name] for name in group.key}
    old = {name: every[own] for name, own in zip(group.key, old_names(group.key), strict=True) if change in MOVES}
    after = None if change == "d" else values
    metadata = {UNCHANGED_TOAST: unchanged_text(lacks)} if change in PARTIAL else {}
    return Record(0, metadata, after, key, old or None, _OPERATIONS.get(change, "update"))


def _values(columns: tuple[str, ...], cells: list[str]) -> dict[str, str | None]:
    pairs = zip(columns, cells, strict=True)
    return {name: None if cell == r"\N" else _ESCAPED.sub(_character, cell) for name, cell in pairs}


def _character(found: re.Match[str]) -> str:
    escape = found[1]
    return chr(int(escape[1:], 16)) if escape[0] == "x" and len(escape) == 3 else _NAMED.get(escape, escape)
