"""Staged lines with other columns than they were staged with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from conduit_dagster import storage
from conduit_dagster.connectors.postgres.catalog import Table
from conduit_dagster.connectors.postgres.settings import TableName
from conduit_dagster.connectors.postgres.staged_rows import LineGroup
from conduit_dagster.connectors.postgres.table_plan import Slice, lines_of
from conduit_dagster.record import Nack
from conduit_dagster.sdk import NACKED_TOGETHER, Refusal, Rejected

Placed = tuple[LineGroup, Slice]
_NULL = rb"\N"
_FEW: Final = 1_000
"""Lines that are rewritten in less time than a merge of their own takes."""


def widened_lines(slices: Sequence[Placed], url: str) -> list[Placed]:
    """Return the lines; a few that would be merged apart, only because later ones of their table have more cells, get
    these cells too. Changed lines are written to a new file at ``url``."""
    wanted = _wider_groups(slices)
    if wanted == [group for group, _ in slices]:
        return list(slices)
    found, offset = list[Placed](), 0
    with storage.NewFile(url) as file:
        for (group, one), wide in zip(slices, wanted, strict=True):
            if group is wide:
                found.append((group, one))
                continue
            cells = _Cells(group, wide)
            data = b"".join(cells.line(line) for _, line in lines_of([one]))
            file.write(data)
            found.append((wide, Slice(url, offset, len(data), one.records, one.place)))
            offset += len(data)
        file.finish()
    return found


def _wider_groups(slices: Sequence[Placed]) -> list[LineGroup]:
    """Return the group that each slice should have."""
    found: list[LineGroup] = []
    following: dict[TableName, LineGroup] = {}
    for group, one in reversed(slices):
        if group.truncates:
            following.clear()
        wide = following.get(group.table, group)
        if one.records > _FEW or not _holds(wide, group):
            wide = group
        following[group.table] = wide
        found.append(wide)
    return found[::-1]


def _holds(wide: LineGroup, narrow: LineGroup) -> bool:
    """Return whether lines of one group can be lines of the other."""
    if not (wide.merge and narrow.merge) or wide.mark or narrow.mark or wide.key != narrow.key:
        return False
    return set(narrow.columns) <= set(wide.columns) and narrow.moves <= wide.moves


def narrowed_lines(
    slices: Sequence[Placed], tables: Mapping[TableName, Table | None], url: str, ignores: bool
) -> list[Placed]:
    """Return the lines without the columns that their tables lack; changed lines are written to a new file at ``url``.

    Raises ``Rejected`` for records with values for such columns, unless ``ignores`` (``unmapped: ignore``).
    """
    known = {name: table.columns.keys() for name, table in tables.items() if table is not None}
    lacks = {group: frozenset(group.columns).difference(known.get(group.table, group.columns)) for group, _ in slices}
    if not any(lacks.values()):
        return list(slices)
    found, refused, offset = list[Placed](), list[Refusal](), 0
    with storage.NewFile(url) as file:
        for group, one in slices:
            if not lacks[group]:
                found.append((group, one))
                continue
            narrower, size = _Narrower(group, lacks[group], ignores), 0
            for alone, line in lines_of([one]):
                if (made := narrower.line(line)) is None:
                    refused.append(Refusal(alone.place, narrower.nack))
                else:
                    file.write(made)
                    size += len(made)
            found.append((narrower.group, Slice(url, offset, size, one.records, one.place)))
            offset += size
        file.finish()
    if refused:
        raise Rejected(*refused[0], more=refused[1:NACKED_TOGETHER])
    return found


class _Cells:
    """The cells of one group's lines, for lines of another group of the same kind."""

    def __init__(self, group: LineGroup, wanted: LineGroup) -> None:
        self._first = 1 if group.merge and not group.mark else 0
        self._end = self._first + len(group.columns)
        places = {name: place for place, name in enumerate(group.columns)}
        self._places = [places.get(name) for name in wanted.columns]
        self._more = [_NULL] * len(wanted.key) if wanted.moves > group.moves else []

    def line(self, line: bytes) -> bytes:
        """Return the line with the wanted cells; those that it does not hold are NULL."""
        cells = line[:-1].split(b"\t")
        own = [_NULL if place is None else cells[self._first + place] for place in self._places]
        return b"\t".join([*map(self.mark, cells[: self._first]), *own, *cells[self._end :], *self._more]) + b"\n"

    def mark(self, cell: bytes) -> bytes:
        """Return the mark of a change with the bits of the wanted columns."""
        bits = int(cell[1:], 16)
        held = (1 << bit for bit, place in enumerate(self._places) if place is not None and bits >> place & 1)
        return cell[:1] + b"%x" % sum(held)


class _Narrower:
    """Lines of one group, without some of its columns."""

    def __init__(self, group: LineGroup, lacks: frozenset[str], ignores: bool) -> None:
        first = 1 if group.merge and not group.mark else 0
        self._gone = [first + place for place, name in enumerate(group.columns) if name in lacks]
        self._ignores = ignores
        columns = tuple(name for name in group.columns if name not in lacks)
        self._is_possible = bool(columns) and not lacks.intersection(group.key)
        wanted = msgspec.structs.replace(group, columns=columns)
        self._cells = _Cells(group, wanted)
        mark = self._cells.mark(group.mark.encode()).decode() if group.mark else ""
        self.group = msgspec.structs.replace(wanted, mark=mark)
        names = ", ".join(name for name in group.columns if name in lacks)
        self.nack = Nack("postgres.unmapped", f"the table {group.table} has no column for one of {names}")

    def line(self, line: bytes) -> bytes | None:
        """Return the line without the columns; None if it has values for them."""
        cells = line[:-1].split(b"\t")
        has_values = not self._ignores and any(cells[place] != _NULL for place in self._gone)
        return None if has_values or not self._is_possible else self._cells.line(line)
